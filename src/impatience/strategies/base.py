"""The base of strategies: a strategy gets texts of given lengths from a model, with or without its signal.

A strategy is a frozen dataclass whose fields are its options. It writes with a ``Generator``, which holds the model
and encodes sources. Its results depend on its requests and options alone: texts are searched for (greedily, or with
the beams of the model's generation settings) unless a strategy samples, and samples are seeded from the requests.
"""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from impatience.config import option
from impatience.data import Request
from impatience.decoding.base import LIMIT, Generator
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Result
from impatience.errors import OptionError
from impatience.lengths import Landing
from impatience.registry import Registry

__all__ = ["STRATEGIES", "Generator", "Limited", "Request", "Result", "Sampled", "Strategy"]


@dataclass(frozen=True)
class Strategy(ABC):
    """One strategy; the fields of a subclass are its options."""

    summary: ClassVar[str]  # what it does, in a line

    def check(self, generator: Generator) -> None:
        """Check that this strategy can use a model; ``write`` does so too, before anything is written."""
        del generator

    @abstractmethod
    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write a text for each request; all of them have one unit."""


@dataclass(frozen=True)
class Limited(Strategy):
    """A strategy whose texts may be far longer than their targets."""

    limit: int = option(LIMIT, "the most tokens of a text; fewer where the model has less room")

    def __post_init__(self) -> None:
        """Check the options."""
        check_range("limit", self.limit, 1)


@dataclass(frozen=True)
class Sampled(Limited):
    """A strategy that samples its texts."""

    top_p: float = option(0.95, "draw from the likeliest tokens that have this share of the probability")
    seed: int = option(0, "of what is drawn; the requests' keys are mixed in")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_range("top_p", self.top_p, 0.01, 1)

    def sampling(self, temperature: float = 1.0) -> dict[str, Any]:
        """Return the sampling options of ``generate``; they replace the model's generation settings."""
        return {"do_sample": True, "num_beams": 1, "temperature": temperature, "top_p": self.top_p, "top_k": 0}


@contextmanager
def seeded(seed: int, requests: Sequence[Request], generator: Generator) -> Iterator[random.Random]:
    """Seed all sampling inside from a seed and the requests' ids, and leave the state of sampling outside alone."""
    content = json.dumps([seed, [request.id for request in requests]])
    entropy = int.from_bytes(hashlib.sha256(content.encode()).digest()[:7], "big")
    device = on_transformers(generator).model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(entropy)
        yield random.Random(entropy)


def on_transformers(generator: Generator) -> TextGenerator:
    """Return a generator that runs on transformers, whose ``generate`` a strategy uses.

    Raises:
        OptionError: If it runs on another backend.
    """
    if isinstance(generator, TextGenerator):
        return generator
    raise OptionError(
        f"This strategy searches or samples by transformers, and the model runs on {generator.backend}. Choose "
        f"--backend transformers, or another strategy, e.g. 'natural', 'endings' or 'forced_eos'."
    )


def with_landing(requests: Sequence[Request], landing: Landing) -> list[Request]:
    """Return requests with another landing; one that is exact keeps no range."""
    if landing is Landing.EXACT:
        return [replace(request, landing=landing, within=None) for request in requests]
    return [replace(request, landing=landing) for request in requests]


def check_range(name: str, value: float, least: float, most: float | None = None) -> None:
    """Check that an option is not too small or too large."""
    if value < least or (most is not None and value > most):
        accepted = f"{least} or more" if most is None else f"a number from {least} to {most}"
        raise OptionError(f"{name}={value!r}: give {accepted}.")


STRATEGIES: Registry[type[Strategy]] = Registry("impatience.strategies", "STRATEGY", "strategy")
