"""Measures speed. Every bench times two or more sides in one run, in turns."""
