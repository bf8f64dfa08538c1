"""Options of ``impatience teach``; the command line shows the same texts."""

from __future__ import annotations

from dataclasses import dataclass

from impatience.config import option
from impatience.errors import OptionError


@dataclass(frozen=True)
class TeachOptions:
    """How many rows to write, and how long to train."""

    turns: int = option(2400, "questions and requests of users that the model invents, about")
    documents: int = option(1500, "documents that the model writes to give instructions over, about")
    asks: int = option(3, "instructions over each document and text; half as many lengths for each turn")
    answers: int = option(12_000, "the most instructions that are answered")
    doubted: float = option(
        0.35, "share of the answers over a text that are left out: those that the model doubts most"
    )
    steps: int = option(2400, "training steps")
    batch_size: int = option(16, "rows of a step")
    rank: int = option(16, "rank of the adapters")
    learning_rate: float = option(4e-4, "learning rate of the adapters")
    seed: int = option(0, "seed of everything random")

    def __post_init__(self) -> None:
        for name in ("asks", "answers", "steps", "batch_size", "rank"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least 1.")
        for name in ("turns", "documents", "seed"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least 0.")
        if not 0 <= self.doubted < 1:
            raise OptionError(f"doubted={self.doubted}: give a share from 0 to below 1.")
