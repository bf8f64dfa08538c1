"""Text in, text of the length asked for out."""
