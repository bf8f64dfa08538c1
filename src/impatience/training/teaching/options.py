"""Options of ``impatience teach``; the command line shows the same texts.

The defaults fit each other: about half of the turns, and of the answers, are fit to be learnt. Without texts of one's
own there are at most 14,000 instructions; with them, their number is bounded by ``answers``.
"""

from __future__ import annotations

from dataclasses import dataclass

from impatience.config import option
from impatience.errors import OptionError


@dataclass(frozen=True)
class TeachOptions:
    """How many rows to write, and how long to train."""

    turns: int = option(3000, "Requests of users that the model invents, about; half as many answers each as `asks`.")
    documents: int = option(2000, "Documents that the model writes, about; so many answers each as `asks`.")
    asks: int = option(4, "Instructions over each document and text.")
    answers: int = option(
        20_000, "The most answers: the other defaults make up to 14,000, each text of yours as many as `asks`."
    )
    doubted: float = option(0.35, "Share of the answers over a text that are left out: those the model doubts most.")
    steps: int = option(2400, "Training steps: two or three passes over 15,000 rows; fewer for fewer.")
    batch_size: int = option(16, "Rows of a step.")
    rank: int = option(16, "Rank of the adapters.")
    learning_rate: float = option(3e-4, "Learning rate of the adapters.")
    signal_only: bool = option(
        False,
        "Train no adapters: the weights of the model stay as they are, and its signal alone is saved.",
    )
    seed: int = option(0, "Seed of everything random.")

    def __post_init__(self) -> None:
        for name in ("asks", "answers", "steps", "batch_size", "rank"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least 1.")
        for name in ("turns", "documents", "seed"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least 0.")
        if not 0 <= self.doubted < 1:
            raise OptionError(f"doubted={self.doubted}: give a share from 0 to below 1.")
        if not 0 < self.learning_rate < 1:
            raise OptionError(f"learning_rate={self.learning_rate}: give a number between 0 and 1.")
