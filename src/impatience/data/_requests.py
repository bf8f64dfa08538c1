"""What a writer is asked for, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from impatience.data._templates import TASKS
from impatience.data.base import Example
from impatience.errors import OptionError, SourceError, TargetError
from impatience.lengths import Landing, Unit
from impatience.registry import nearest

MOST = 10_000_000
"""The most that can be asked for, in any unit."""


class Begun(NamedTuple):
    """What is there of a text, and how it goes on.

    Attributes:
        ids: What is written already.
        draw: The number of the draw that the rest comes from (``control.sampling``); 0 takes the likeliest.
    """

    ids: tuple[int, ...] = ()
    draw: int = 0


FRESH = Begun()


@dataclass(frozen=True)
class Request:
    """A text to write from, and how long the new one must be.

    Attributes:
        id: What the ask is called; it is in the result again.
        text: The source.
        target: How long the new text must be: a whole number from 1 to 10,000,000.
        unit: What is counted.
        landing: Who decides where the text ends.
        task: What is done with the source, a name in ``TASKS``; None is what the model was trained for, and a summary
            where nobody knows.
        before: What was said before the text, as (role, text) pairs: a system message, or earlier turns of a chat.
        begun: What is there of the new text already; it is gone on with, once.

    Raises:
        SourceError: If the source is empty, or something is half a character.
        TargetError: If the target is no such number.
        OptionError: If there is no such unit, landing or task.
    """

    id: str
    text: str
    target: int
    unit: Unit = Unit.WORDS
    landing: Landing = Landing.NATURAL
    task: str | None = None
    before: tuple[tuple[str, str], ...] = ()
    begun: Begun = FRESH

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise SourceError("The text to write from is empty.")
        try:
            "".join((self.id, self.text, *(text for _, text in self.before))).encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"The text has half a character (a lone surrogate, {error.object[error.start]!r}), so it is no text."
            ) from None
        if isinstance(self.target, bool) or not isinstance(self.target, int) or not 1 <= self.target <= MOST:
            raise TargetError(f"A length of {self.target!r}: give a whole number from 1 to {MOST:,}.")
        if self.unit not in list(Unit):
            raise OptionError(f"unit={self.unit!r}: give one of {', '.join(map(repr, map(str, Unit)))}.")
        if self.task is not None and self.task not in TASKS:
            raise OptionError(
                f"There is no task {self.task!r}.{nearest(str(self.task), list(TASKS))} There are: {', '.join(TASKS)}."
            )
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "landing", Landing.parse(self.landing))


@dataclass(frozen=True)
class EvalRequest:
    """A text of some length to be written about an example.

    Attributes:
        key: Names the request; no two of a protocol share it.
        example: What is read; its target is not shown to the model.
        target: How long the text is to be.
        unit: What is counted.
        references: What it is compared with; empty if there is nothing of that length.
        group: What results are grouped by; "" if there is nothing to group by.
    """

    key: str
    example: Example
    target: int
    unit: Unit
    references: tuple[str, ...] = ()
    group: str = ""
