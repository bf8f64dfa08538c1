"""What a strategy is: a way to get texts of the lengths asked for out of a model, with or without its signal.

A strategy is a frozen dataclass whose fields are its options. It writes with a *pen*, which holds the model and knows
how sources are put to it. What a strategy returns depends on its requests and options alone: texts are searched for
(greedily, or with as many beams as the model's own generation settings say) unless a strategy says that it samples,
and what is sampled is seeded from the requests.
"""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from impatience.config import option
from impatience.data import EvalRequest
from impatience.decoding.generator import LIMIT, TextGenerator
from impatience.decoding.results import Draft
from impatience.errors import OptionError
from impatience.registry import Registry

__all__ = ["STRATEGIES", "Draft", "Limited", "Sampled", "Strategy", "TextGenerator", "seeded", "within"]


@contextmanager
def seeded(seed: int, requests: Sequence[EvalRequest], generator: TextGenerator) -> Iterator[random.Random]:
    """Let what is drawn inside depend on a seed and the requests' keys alone, and leave what is drawn outside alone."""
    content = json.dumps([seed, [request.key for request in requests]])
    entropy = int.from_bytes(hashlib.sha256(content.encode()).digest()[:7], "big")
    device = generator.model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(entropy)
        yield random.Random(entropy)


@dataclass(frozen=True)
class Strategy(ABC):
    """One strategy; a subclass's fields are its options.

    Attributes:
        summary: What it does, in a line.
    """

    summary: ClassVar[str]

    def check(self, generator: TextGenerator) -> None:
        """Refuse a model that this strategy cannot use; ``write`` does so too, before anything is written."""
        del generator

    @abstractmethod
    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write a text for each request; all of them are in one unit."""


@dataclass(frozen=True)
class Limited(Strategy):
    """A strategy whose texts nothing holds to their targets while they are written."""

    limit: int = option(LIMIT, "the most tokens of a text; fewer where the model has less room")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        within("limit", self.limit, 1)


@dataclass(frozen=True)
class Sampled(Limited):
    """A strategy that draws its texts, held by nothing."""

    top_p: float = option(0.95, "draw from the likeliest tokens that have this share of the probability")
    seed: int = option(0, "of what is drawn; the requests' keys are mixed in")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        within("top_p", self.top_p, 0.01, 1)

    def sampling(self, temperature: float = 1.0) -> dict[str, Any]:
        """Return what ``generate`` needs to draw as the options say, whatever the model's own settings are."""
        return {"do_sample": True, "num_beams": 1, "temperature": temperature, "top_p": self.top_p, "top_k": 0}


def within(name: str, value: float, least: float, most: float | None = None) -> None:
    """Refuse an option that is too small or too large."""
    if value < least or (most is not None and value > most):
        accepted = f"{least} or more" if most is None else f"a number from {least} to {most}"
        raise OptionError(f"{name}={value!r}: give {accepted}.")


STRATEGIES: Registry[type[Strategy]] = Registry("impatience.strategies", "STRATEGY", "strategy")
