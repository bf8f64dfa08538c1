"""Several texts, each written for a length of its own, and the best of them kept.

A model that is told where its text must end may plan its last sentence badly and go on to its end, some words late.
What was written for 36 words may then end on 40. So a text is written for its target and, if it did not land well, for
a few lengths below it: the *aims*. None of them is forced, and which one is kept depends on nothing but the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from impatience.errors import OptionError, SourceError
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


T = TypeVar("T", bound=Text)


class Shot(NamedTuple):
    """A text that is to be written: for which goal, for what length, and who decides where it ends."""

    place: int
    aim: int
    landing: Landing


@dataclass(frozen=True)
class Goal:
    """What is wished for, and how many texts may be written to get it.

    Attributes:
        target: How long the text must be.
        unit: What is counted.
        landing: What is asked of its end; with ``at_most`` it may be shorter.
        sentence: Whether its last sentence must be whole: a title's need not.
        tries: How many texts are written at most.
    """

    target: int
    unit: Unit
    landing: Landing
    sentence: bool
    tries: int

    @property
    def aims(self) -> list[int]:
        """The lengths that texts are written for: the target, and some below it.

        In sentences there is nothing between two lengths, so the target is the only aim.
        """
        if self.unit is Unit.SENTENCES:
            return [self.target]
        lengths = (self.target - round(n * STRIDE / self.unit.tokens) for n in range(self.tries))
        return [length for length in lengths if length >= 1]

    def finished(self, text: Text) -> bool:
        """Tell whether the model ended a text itself, and the last sentence with it if it has to be one."""
        return bool(text.eos_probability) and (not self.sentence or ends_sentence(text.text))

    def met(self, text: Text) -> bool:
        """Tell whether a text that was written without force leaves nothing to wish for."""
        return self._on_target(text) and self.finished(text)

    def landed(self, text: Text) -> Literal["natural", "missed"]:
        """Say of a text that was written without force how it landed, whatever length it was written for."""
        return "natural" if self._on_target(text) and text.eos_probability else "missed"

    def best(self, texts: Iterable[T]) -> T | None:
        """Return the text that is kept; of equals the first.

        Args:
            texts: In the order of their aims. With ``natural`` a finished one is taken before any other, then the
                nearest. The other landings take only what leaves nothing to wish for, ``at_most`` the longest of that.

        Returns:
            One of them, or None if none will do and the text must be forced.
        """
        fit = [text for text in texts if self.landing is Landing.NATURAL or self.met(text)]
        return min(fit, key=lambda text: (not self.finished(text), abs(text.length - self.target)), default=None)

    def _on_target(self, text: Text) -> bool:
        return text.length <= self.target if self.landing is Landing.AT_MOST else text.length == self.target


def check_tries(tries: int) -> None:
    """Refuse a number of texts that are not written for one.

    Raises:
        OptionError: If it is no whole number from 1 to ``MOST_TRIES``.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MOST_TRIES:
        raise OptionError(f"tries={tries!r}: give a whole number from 1 to {MOST_TRIES}.")


def aimed(
    goals: Sequence[Goal], write: Callable[[Sequence[Shot]], Iterable[tuple[Shot, T | SourceError]]]
) -> Iterator[tuple[int, T | SourceError]]:
    """Write texts for their targets, then for their other aims where that did not land well, and keep the best.

    Args:
        goals: What is wished for.
        write: Writes shots, in any order. It is called at most three times, never with none, and with mixed landings
            only if the goals have several.

    Yields:
        The text for each goal, by its position, as soon as it is known. Where only one aim is there, or no text will
        do, it is written as the landing says.
    """
    texts: dict[int, dict[int, T]] = {}
    as_ever = {place for place, goal in enumerate(goals) if len(goal.aims) == 1}
    first = [Shot(place, goal.target, Landing.NATURAL) for place, goal in enumerate(goals) if place not in as_ever]
    for shot, text in write(first) if first else ():
        if isinstance(text, SourceError) or goals[shot.place].met(text):
            yield shot.place, text
        else:
            texts[shot.place] = {shot.aim: text}
    again = [Shot(place, aim, Landing.NATURAL) for place in texts for aim in goals[place].aims[1:]]
    for shot, text in write(again) if again else ():
        if not isinstance(text, SourceError):
            texts[shot.place][shot.aim] = text
    for place, own in texts.items():
        kept = goals[place].best(own[aim] for aim in goals[place].aims if aim in own)
        if kept is None:
            as_ever.add(place)
        else:
            yield place, kept
    last = [Shot(place, goals[place].target, goals[place].landing) for place in sorted(as_ever)]
    for shot, text in write(last) if last else ():
        yield shot.place, text
