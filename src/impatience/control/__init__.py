"""Length control: a method joined to a model, from the signal to how a text ended."""
