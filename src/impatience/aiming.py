"""Several texts, each written for a length of its own, and the best of them kept.

A model that is told where its text must end may plan its last sentence badly and go on to its end, some words late.
What was written for 36 words may then end on 40. So a text is written for its target and, if it did not land well, for
a few lengths below it: the *aims*. None of them is forced, and which one is kept depends on nothing but the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from impatience.errors import OptionError
from impatience.landing import Landing
from impatience.lengths import Unit, ends_sentence

MOST_TRIES = 16
"""The most texts that are written for one."""
STRIDE = 3
"""Tokens between two aims, by and large."""


class Text(Protocol):
    """What is known of a text that was written without force."""

    @property
    def text(self) -> str:
        """As a reader gets it."""

    @property
    def length(self) -> int:
        """In the unit asked for."""

    @property
    def eos_probability(self) -> float | None:
        """What the model itself gave the end where the text stops; nothing if it did not end."""


def check_tries(tries: int) -> None:
    """Refuse a number of texts that are not written for one.

    Raises:
        OptionError: If it is no whole number from 1 to ``MOST_TRIES``.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MOST_TRIES:
        raise OptionError(f"tries={tries!r}: give a whole number from 1 to {MOST_TRIES}.")


def aims(target: int, unit: Unit, tries: int) -> list[int]:
    """Return the lengths that texts are written for: the target, and some below it.

    Args:
        target: How long the text must be.
        unit: What is counted; in sentences there is nothing between two lengths, so the target is the only aim.
        tries: How many there are at most.
    """
    if unit is Unit.SENTENCES:
        return [target]
    lengths = (target - round(n * STRIDE / unit.tokens) for n in range(tries))
    return [length for length in lengths if length >= 1]


def finished(text: Text, *, sentence: bool) -> bool:
    """Tell whether the model ended a text itself, and the last sentence with it if it has to be one."""
    return bool(text.eos_probability) and (not sentence or ends_sentence(text.text))


def landed_well(text: Text, target: int, landing: Landing, *, sentence: bool) -> bool:
    """Tell whether nothing is left to wish for.

    Args:
        text: What was written without force.
        target: How long it must be.
        landing: What is asked of its end; with ``at_most`` it may be shorter.
        sentence: Whether its last sentence must be whole: a title's need not.
    """
    on_target = text.length <= target if landing is Landing.AT_MOST else text.length == target
    return on_target and finished(text, sentence=sentence)


def best(texts: Sequence[Text], target: int, landing: Landing, *, sentence: bool) -> int | None:
    """Return which of several texts is kept; of equals the first.

    Args:
        texts: In the order of their aims.
        target: How long the text must be.
        landing: ``natural`` takes a finished text before any other, then the nearest. The others take only what landed
            well, ``at_most`` the longest of that.
        sentence: Whether the last sentence must be whole.

    Returns:
        A position, or None if none will do and the text must be forced.
    """
    order = {
        place: (not finished(text, sentence=sentence), abs(text.length - target))
        for place, text in enumerate(texts)
        if landing is Landing.NATURAL or landed_well(text, target, landing, sentence=sentence)
    }
    return min(order, key=order.__getitem__, default=None)
