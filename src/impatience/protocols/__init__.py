"""Evaluation protocols, one file each; the file name is the protocol's name."""

from impatience.protocols.base import PROTOCOLS, Count, Protocol, request_for

__all__ = ["PROTOCOLS", "Count", "Protocol", "request_for"]
