"""Several endings of one text, and the best of them kept.

A model that is told where its text must end may plan its last sentence badly and go on to its end, some words late.
Such a text is taken back to shortly before its target, and from there endings are drawn, by a model that is told the
target all the time. None of them is forced. What is drawn is the same every time (``control.sampling``), and which
ending is kept depends on nothing but the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from impatience.data import FRESH, Begun
from impatience.errors import OptionError, SourceError
from impatience.lengths import Landing, Unit, ends_sentence
from impatience.vocabulary import Vocabulary

TRIES = 9
"""How many texts are written for one where somebody waits for it: of eight endings one nearly always lands."""
MOST_TRIES = 16
"""The most texts that are written for one."""
BACK = 24
"""How many tokens before the target, by and large, endings begin; but half of a short text stays."""


class Text(Protocol):
    """What is known of a text that was written without force."""

    @property
    def ids(self) -> tuple[int, ...]:
        """What the model wrote, without EOS."""

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


class Try(NamedTuple):
    """A text that is to be written: for which goal, who decides where it ends, and what is there of it."""

    place: int
    landing: Landing
    begun: Begun = FRESH


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

    def endings(self, first: Text, vocabulary: Vocabulary) -> list[Begun]:
        """Return the beginnings that a text is given other endings from.

        Some tokens are always written anew, so that there is room for them where a text filled the model.

        Args:
            first: That text.
            vocabulary: Counts.
        """
        back = max(1, min(round(BACK / self.unit.tokens), self.target // 2))
        most = min(self.target, first.length) - back
        begun = vocabulary.beginning(first.ids[: -BACK // 2], max(0, most), self.unit)
        return [Begun(begun, draw) for draw in range(1, self.tries)]

    def finished(self, text: Text) -> bool:
        """Tell whether the model ended a text itself, and the last sentence with it if it has to be one."""
        return bool(text.eos_probability) and (not self.sentence or ends_sentence(text.text))

    def met(self, text: Text) -> bool:
        """Tell whether a text that was written without force leaves nothing to wish for."""
        return self._on_target(text) and self.finished(text)

    def landed(self, text: Text) -> Literal["natural", "missed"]:
        """Say of a text that was written without force how it landed."""
        return "natural" if self._on_target(text) and text.eos_probability else "missed"

    def best(self, texts: Iterable[T]) -> T | None:
        """Return the text that is kept; of equals the first.

        Args:
            texts: In the order they were tried. With ``natural`` a finished one is taken before any other, then the
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


def tried(
    goals: Sequence[Goal],
    vocabulary: Vocabulary,
    write: Callable[[Sequence[Try]], Iterable[tuple[Try, T | SourceError]]],
) -> Iterator[tuple[int, T | SourceError]]:
    """Write texts, then other endings for those that did not land well, and keep the best.

    Args:
        goals: What is wished for.
        vocabulary: Counts.
        write: Writes texts, in any order. It is called at most three times, never with none, and with mixed landings
            only if the goals have several.

    Yields:
        The text for each goal, by its position, as soon as it is known. Where one try is all there is, or no text will
        do, it is written as the landing says.
    """
    texts: dict[int, dict[Begun, T]] = {}
    as_ever = {place for place, goal in enumerate(goals) if goal.tries == 1}
    first = [Try(place, Landing.NATURAL) for place in range(len(goals)) if place not in as_ever]
    for one, text in write(first) if first else ():
        if isinstance(text, SourceError) or goals[one.place].met(text):
            yield one.place, text
        else:
            texts[one.place] = {FRESH: text}
    endings = {place: goals[place].endings(own[FRESH], vocabulary) for place, own in texts.items()}
    again = [Try(place, Landing.NATURAL, begun) for place, some in endings.items() for begun in some]
    for one, text in write(again) if again else ():
        if not isinstance(text, SourceError):
            texts[one.place][one.begun] = text
    for place, own in texts.items():
        kept = goals[place].best(own[begun] for begun in (FRESH, *endings[place]) if begun in own)
        if kept is None:
            as_ever.add(place)
        else:
            yield place, kept
    last = [Try(place, goals[place].landing) for place in sorted(as_ever)]
    for one, text in write(last) if last else ():
        yield one.place, text
