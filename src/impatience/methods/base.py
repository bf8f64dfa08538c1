"""Defines a method: a pure function of progress and target that knows no model.

A method is a frozen dataclass whose fields are its options; all methods have the four options of ``Method``, so that
comparisons are fair. An ``EmbeddingMethod`` computes a vector for each step, which is added at the decoder's input or,
through trained projections, at chosen layers. An ``AttentionMethod`` computes a bias for the decoder's last
cross-attention. A method that is neither does not change the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from impatience.arrays import Array
from impatience.config import option
from impatience.errors import OptionError
from impatience.registry import nearest
from impatience.signals import RMS

STEP_NOISE = 0.25
"""Standard deviation of the ``"step"`` noise, in steps."""


@dataclass(frozen=True)
class Method:
    """Options of all methods."""

    strength: float | Literal["auto", "raw"] = option(
        "auto",
        "amplitude of the signal: 'auto' matches the RMS of the token embeddings as the decoder sees them, "
        "a number is a multiple of that, 'raw' is the paper's unit amplitude",
    )
    noise: float | Literal["paper", "step"] = option(
        "paper",
        "standard deviation of the training noise on progress: 'paper' is 2/D of the target, 'step' a quarter "
        "of one step whatever the target, a number that many steps, 0 none",
    )
    layers: tuple[int, ...] | Literal["all"] | None = option(
        None,
        "where the signal enters: None adds it at the decoder's input, a list of layers or 'all' adds it there "
        "through zero-initialised projections that are trained and saved",
    )
    rank: int | None = option(
        None, "rank of those projections, e.g. 64 to save space; None is full: the square of the model's width"
    )

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Return the method with these options; an unknown option is an error that names the nearest one."""
        known = [item.name for item in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(
                    f"{cls.__module__.rpartition('.')[2]} has no option {name!r}.{nearest(name, known)} "
                    f"It takes: {', '.join(known)}."
                )
        return cls(**options)

    def __post_init__(self) -> None:
        """Check the values once, here."""
        _check_number("strength", self.strength, ("auto", "raw"))
        _check_number("noise", self.noise, ("paper", "step"))
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        chosen = self.layers if isinstance(self.layers, tuple) else ()
        if (self.layers is not None and self.layers != "all" and not chosen) or not all(
            isinstance(layer, int) and layer >= 0 and chosen.count(layer) == 1 for layer in chosen
        ):
            raise OptionError(f"layers={self.layers!r}: give None, 'all' or a list of layer numbers from 0, each once.")
        if self.rank is not None and (self.rank < 1 or self.layers is None):
            raise OptionError(
                f"rank={self.rank}: give at least 1, together with layers: it is the rank of their projections."
            )

    def check(self, width: int) -> None:
        """Check that a model of this width can have these options."""

    def options(self) -> dict[str, Any]:
        """Return the options as plain values that JSON can hold."""
        return asdict(self)

    def amplitude(self, embedding_rms: float) -> float:
        """Return the factor for the signal, given the RMS of the token embeddings the decoder sees."""
        if self.strength == "raw":
            return 1.0
        return (1.0 if self.strength == "auto" else float(self.strength)) * embedding_rms / RMS

    def noisy(self, progress: Array, target: Array, width: int) -> Array:
        """Return progress with training noise, clipped to [0, target].

        The paper's r ← clip(r + 2δ/D, 0, 1) (eq. 4) is the same as noise of 2/D of the target on progress.

        Args:
            progress: (B, T).
            target: (B, 1).
            width: D.
        """
        if self.noise == 0:
            return progress
        import torch

        steps = 2.0 / width * target if self.noise == "paper" else STEP_NOISE if self.noise == "step" else self.noise
        noise = torch.randn_like(progress) * steps
        return torch.minimum((progress + noise).clamp(min=0), target)


@dataclass(frozen=True)
class EmbeddingMethod(Method, ABC):
    """A method that computes a vector for each step."""

    @abstractmethod
    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return the (B, T, D) float32 signal for (B, T) progress and (B, 1) target, progress ≤ target.

        Each value may depend on its own progress and target alone: the columns of a text come together, one by one, or,
        while training, each as a row of its own with T = 1.
        """


@dataclass(frozen=True)
class AttentionMethod(Method, ABC):
    """A method that computes a bias for the last decoder layer's cross-attention."""

    @abstractmethod
    def bias(self, scores: Array, readable: Array, progress: Array, target: Array) -> Array:
        """Return the bias to add to attention scores before their softmax.

        Args:
            scores: (B, H, T, S) float32 scores of each step for each source token, H heads.
            readable: (B, S) True where the source has a token, not padding.
            progress: (B, T).
            target: (B, 1).

        Returns:
            (B, H, T, S) float32.
        """

    def amplitude(self, embedding_rms: float) -> float:
        """Return the factor for the bias: the strength if it is a number, else 1."""
        del embedding_rms
        return 1.0 if isinstance(self.strength, str) else float(self.strength)

    def __post_init__(self) -> None:
        """Check the values: the bias has no choice of layers."""
        super().__post_init__()
        if self.layers is not None:
            raise OptionError("layers: an attention method always works in the last layer; leave it out.")


def _check_number(name: str, value: object, words: tuple[str, ...]) -> None:
    if value in words:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        choices = " or ".join(map(repr, words))
        raise OptionError(f"{name}={value!r}: give {choices}, or a number that is not negative.")
