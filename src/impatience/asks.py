"""What a writer is asked for, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from impatience.begun import FRESH, Begun
from impatience.data import TASKS
from impatience.endings import Landed
from impatience.errors import OptionError, SourceError, TargetError
from impatience.landing import Landing
from impatience.lengths import Unit, measure
from impatience.registry import nearest
from impatience.scripts import unspaced

MOST = 10_000_000
"""The most that can be asked for, in any unit."""


@dataclass(frozen=True)
class Ask:
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
class Result:
    """A text and how it ended.

    Attributes:
        text: What was written.
        length: How long it is, in the unit asked for.
        target: How long it was asked to be.
        unit: What is counted.
        landed: "natural", "forced" or "missed"; see ``LengthReport``.
        eos_probability: What the model itself gave EOS where the text stops; 0 if it did not end.
        id: That of the ask.
        parts: In how many parts the source was read; more than 1 if it was longer than the model reads at once.
        note: What was done with such a source, in words, and what to know of how the text was counted.
        drawn: Whether its ending was drawn, since that of the first text did not land well; see ``impatience.tries``.
        taken_back: How many characters at the end of the streamed pieces are not in the text: the landing left them
            out, or a later token changed how they are written.
        ids: The tokens of the text as the model wrote them, without EOS.
    """

    text: str
    length: int
    target: int
    unit: Unit
    landed: Landed
    eos_probability: float
    id: str = ""
    parts: int = 1
    note: str = ""
    drawn: bool = False
    taken_back: int = 0
    ids: tuple[int, ...] = field(default=(), repr=False)

    @property
    def tokens(self) -> int:
        """How many tokens the text has, whatever the unit."""
        return len(self.ids)


@dataclass(frozen=True)
class Piece:
    """A piece of a text that is being written.

    Attributes:
        text: What is new since the piece before.
        progress: How long the text is so far, in the unit asked for.
        target: How long it is to be.
        unit: What is counted.
        stage: What is being done while nothing is shown: the parts of a long source are read, or other endings tried.
    """

    text: str
    progress: int
    target: int
    unit: Unit
    stage: str = ""

    @property
    def ratio(self) -> float:
        """The share of the text that is written, at most 1."""
        return min(1.0, self.progress / self.target)


def ratio_target(text: str, ratio: float) -> tuple[int, Unit]:
    """Return a share of a text's length: in words, or in characters where words are not set apart by spaces."""
    unit = Unit.CHARACTERS if unspaced(text) else Unit.WORDS
    return max(1, round(ratio * measure(text, unit))), unit


def remark(text: str, unit: Unit) -> str:
    """Return what a reader should know of how a text was counted; mostly nothing."""
    if unit is Unit.WORDS and unspaced(text):
        return "This text sets no spaces between its words, so they cannot be counted: ask for characters instead."
    return ""
