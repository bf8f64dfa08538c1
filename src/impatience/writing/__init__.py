"""Writes texts of a given length: the writer, prompts, long texts, streams, documents and batch jobs."""
