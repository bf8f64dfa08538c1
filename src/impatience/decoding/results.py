"""What comes of a request: a text and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from impatience.control.report import Landed
from impatience.lengths import Unit


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
        drawn: Whether its ending was drawn, since that of the first text did not land well; see ``decoding.retries``.
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


@dataclass(frozen=True)
class Draft:
    """A written text.

    Attributes:
        ids: What was written, without the EOS and what follows it. The last may reach over the end of a text that was
            cut inside a token; a text that was rewritten has the ids that its tokenizer gives it.
        text: The same, as a reader gets it.
        length: In the unit asked for.
        ended: Whether it comes to an end, by EOS or because a strategy stopped at the end of a sentence; False if a
            limit cut it where it happened to be.
        landed: "natural": on target, and the model chose to end there; "forced": on target because the strategy cut
            or changed the text, or drew several; "missed": anything else. On target is where the strategy aims: at
            the target, or not over it.
        eos_probability: What the model itself gave EOS where the text stops; None if that is not known.
        tokens_spent: Tokens that were generated to get it, EOS and thrown away ones included; each beam counts.
        eos_curve: What the model itself gave EOS after 0, 1, 2, … of the ids, as far as it is known.
    """

    ids: tuple[int, ...]
    text: str
    length: int
    ended: bool
    landed: Landed
    eos_probability: float | None
    tokens_spent: int
    eos_curve: tuple[float, ...] = field(default=(), repr=False)
