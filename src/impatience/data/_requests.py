"""The request that carries a text from the edge to the model: what to write, from what, and how long."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from impatience.data._templates import TASKS
from impatience.data.base import Example
from impatience.errors import OptionError, SourceError, TargetError
from impatience.lengths import Landing, Unit
from impatience.registry import nearest

MOST = 10_000_000  # the largest target in any unit
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Request:
    """What to write, a text to write from, and the length of the new text.

    Raises:
        SourceError: If there is neither a source nor an instruction, or a text has a lone surrogate.
        TargetError: If the target is not such a number, or the range is none.
        OptionError: If the unit, landing, task or a role does not exist, or a request has a task and an instruction.
    """

    id: str  # name of the request; the result has the same one
    text: str  # the source; may be empty if there is an instruction
    target: int  # length of the new text: a whole number from 1 to 10,000,000
    unit: Unit = Unit.WORDS  # unit of the target
    landing: Landing = Landing.NATURAL  # stopping mode
    task: str | None = None  # name in ``TASKS``; None is what the model was trained for, or else a summary
    history: tuple[tuple[str, str], ...] = ()  # messages before the text, e.g. turns of a chat: (role, text) pairs
    prefix: tuple[int, ...] = ()  # ids of the new text that are written already; the model continues them
    draw: int = 0  # number of the draw of the rest (``steps.sampling``); 0 takes the likeliest tokens
    within: tuple[int, int] | None = None  # lengths that are on target, first and last; None is the target alone
    instruction: str = ""  # what to write, in a user's words, instead of a task
    limit: int | None = None  # the most tokens of the new text with EOS, whatever the target needs; None for no limit
    whole: str = ""  # the whole source, where ``text`` is only what was written of its parts
    references: tuple[str, ...] = ()  # texts to compare the new one with in an evaluation; may be empty
    group: str = ""  # group in an evaluation report; "" for none
    example: str = ""  # id of the example that an evaluation request comes from

    def __post_init__(self) -> None:
        if not isinstance(self.instruction, str):
            raise OptionError(f"instruction={reprlib.repr(self.instruction)}: say in words what to write.")
        if not isinstance(self.text, str) or not (self.text.strip() or self.instruction.strip()):
            raise SourceError("The text to write from is empty. Give a text, or say in an instruction what to write.")
        try:
            "".join((self.id, self.text, self.instruction, *(text for _, text in self.history))).encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"The text has half a character (a lone surrogate, {error.object[error.start]!r}), so it is no text."
            ) from None
        if isinstance(self.target, bool) or not isinstance(self.target, int) or not 1 <= self.target <= MOST:
            raise TargetError(f"A length of {reprlib.repr(self.target)}: give a whole number from 1 to {MOST:,}.")
        if self.unit not in list(Unit):
            raise OptionError(f"unit={self.unit!r}: give one of {', '.join(map(repr, map(str, Unit)))}.")
        if self.task is not None and self.task not in TASKS:
            raise OptionError(
                f"There is no task {self.task!r}.{nearest(str(self.task), list(TASKS))} There are: {', '.join(TASKS)}."
            )
        if self.instruction.strip() and self.task is not None:
            raise OptionError(f"A request has an instruction and the task {self.task!r}: give one of them.")
        self._check_range()
        for role, _ in self.history:
            if role not in _ROLES:  # a chat template writes it as it stands, so it could end a message
                raise OptionError(f"history: there is no role {reprlib.repr(role)}. Give one of {', '.join(_ROLES)}.")
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "landing", Landing.parse(self.landing))

    def _check_range(self) -> None:
        if self.within is None:
            return
        pair = self.within
        fits = isinstance(pair, tuple) and len(pair) == 2 and all(type(number) is int for number in pair)
        if not fits or not 1 <= pair[0] <= self.target <= pair[1] <= MOST:
            raise TargetError(f"A range of {reprlib.repr(pair)}: give the first and the last length, e.g. 120-160.")
        if self.landing == Landing.EXACT:
            raise TargetError("A range is not one exact length. Give one number, or another landing than exact.")

    def accepts(self, length: int) -> bool:
        """Check whether a text of this length is on target; with ``at_most`` any shorter one is, unless it is empty."""
        if self.within is not None:
            return self.within[0] <= length <= self.within[1]
        return 0 < length <= self.target if self.landing is Landing.AT_MOST else length == self.target

    @property
    def source(self) -> str:
        """All that the new text may take names and numbers from; empty if there is no text to write from.

        The message of a chat is an instruction, not a source.
        """
        if self.task == "chat" or not self.text.strip():
            return ""
        return "\n\n".join((self.whole or self.text, self.instruction, *(text for _, text in self.history))).strip()

    def as_example(self) -> Example:
        """Return the source as an example without a target, for an ``Encoder``, which reads nothing else.

        Raises:
            OptionError: If there is an instruction or history.
        """
        if self.instruction.strip() or self.history:
            raise OptionError("A prompt by a template has no instruction and no history. Write the text by a Writer.")
        return Example(self.example or self.id or "The text", self.text, "")
