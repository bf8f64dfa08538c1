"""The version of this package; it has no imports, so that anything may import it."""

__version__ = "0.1.0"
