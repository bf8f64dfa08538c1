"""Which lengths are asked for, one file each; the file name is the protocol's name."""

from impatience.protocols.base import PROTOCOLS, Count, Protocol

__all__ = ["PROTOCOLS", "Count", "Protocol"]
