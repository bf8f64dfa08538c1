"""The command line."""

from impatience.cli.commands import main

__all__ = ["main"]
