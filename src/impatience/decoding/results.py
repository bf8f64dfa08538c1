"""Results of requests: a text and how it ended, and the pieces of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from impatience.control.length_report import LengthReport
from impatience.lengths import Unit


@dataclass(frozen=True, kw_only=True)
class Result(LengthReport):
    """A text and how it ended; see ``impatience.judging`` for the words.

    What changes the text judges it again. A strategy of an evaluation may report ``landed="forced"`` too where it cut
    the text or chose among several, and ``eos_probability`` None where it does not know it. A ``Writer`` always gives a
    number.
    """

    text: str  # text as a reader gets it
    # ids of the text without EOS. The last one may reach over the end of a text that was cut inside a token; a text
    # that was rewritten has the ids that its tokenizer gives it
    ids: tuple[int, ...] = field(default=(), repr=False)
    id: str = ""  # id of the request
    within: tuple[int, int] | None = None  # lengths that were on target; None for the target alone
    ended: bool = True  # by EOS or because a strategy stopped at a sentence end; False if a limit cut the text
    tokens_spent: int = 0  # tokens generated for it, with EOS, all beams, and texts that were thrown away
    parts: int = 1  # parts that the source was read in; more than 1 if it is longer than the model reads at once
    note: str = ""  # remarks on how such a source was read, and on how the text was counted
    drawn: bool = False  # its ending was drawn because the first text was not good; see ``decoding.retries``
    unsupported: tuple[str, ...] = ()  # its names and numbers that the source does not have; see ``grounding``
    backend: str = ""  # library that ran the model
    first_unsupported: tuple[str, ...] | None = None  # those of the first text; None where this is the first
    # characters at the end of the streamed pieces that are not in the text: the landing removed them, or a later token
    # changed how they are written
    taken_back: int = 0
    # the model's own EOS probability after 0, 1, 2, … of the ids, as far as it is known; a ``Writer`` leaves it out
    eos_curve: tuple[float, ...] = field(default=(), repr=False)
    # the model's own log-probability of each of the ids, 0 for those of a prefix; empty where it is not known (beams)
    log_probabilities: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """The number of tokens of the text, in any unit."""
        return len(self.ids)

    @property
    def added(self) -> tuple[str, ...]:
        """The unsupported words that the first text did not have."""
        first = self.unsupported if self.first_unsupported is None else self.first_unsupported
        return tuple(word for word in self.unsupported if word not in first)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the command line and batch files show."""
        shown = ("text", "length", "target", "unit", "landed", "finished", "looping", "unsupported", "eos_probability")
        fields = {name: getattr(self, name) for name in (*shown, "parts", "note", "drawn", "backend")}
        return fields | ({"within": self.within} if self.within else {})

    @property
    def asked_for(self) -> str:
        """The length asked for in words: the target, or the range."""
        return "-".join(f"{length:,}" for length in self.within or (self.target,))


@dataclass(frozen=True)
class Piece:
    """A piece of a text that is being written."""

    text: str  # new text since the last piece
    progress: int  # length of the text so far
    target: int  # length of the whole text
    unit: Unit  # unit of both
    stage: str = ""  # the work while no text is shown: parts of a long source are read, or endings are drawn

    @property
    def ratio(self) -> float:
        """The share of the text that is written, at most 1."""
        return min(1.0, self.progress / self.target)
