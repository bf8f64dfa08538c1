"""Texts that are not written from their first token on."""

from __future__ import annotations

from typing import NamedTuple


class Begun(NamedTuple):
    """What is there of a text, and how it goes on.

    Attributes:
        ids: What is written already.
        draw: The number of the draw that the rest comes from, see ``impatience.draws``; 0 takes the likeliest.
    """

    ids: tuple[int, ...] = ()
    draw: int = 0


FRESH = Begun()
