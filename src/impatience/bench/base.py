"""What benches share: trials of models of known shapes with random weights, clocks, and the rate of copies.

The weights are random: how fast a dense model is does not depend on what it says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.environment import environment
from impatience.errors import OptionError
from impatience.registry import nearest

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
SHAPES = {"tiny": (512, 64, 128, 2, 4, 2), "smollm2": (49152, 576, 1536, 30, 9, 3)}
"""Llama shapes that can be timed, all with tied embeddings; ``smollm2`` is that of SmolLM2-135M."""
_T5_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
T5_SHAPES = {"flan-t5-small": (32128, 512, 64, 1024, 8, 6)}
"""T5 shapes that can be timed, all gated and with a head of their own, as flan types are."""


@dataclass(frozen=True)
class Spread:
    """Where repeated measurements lie."""

    minimum: float
    low_quartile: float
    median: float
    high_quartile: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise measurements; one alone is all of its own spread."""
        ordered = sorted(values)
        if len(ordered) == 1:
            return cls(*ordered * 5)
        low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
        return cls(ordered[0], low, middle, high, ordered[-1])

    def shown(self, digits: int = 2) -> str:
        """Return the median and, in brackets, the quartiles, for a table."""
        return f"{self.median:.{digits}f} \\[{self.low_quartile:.{digits}f}, {self.high_quartile:.{digits}f}]"


@dataclass(frozen=True)
class BenchSetup:
    """What is timed, and how often.

    Attributes:
        shape: A name in ``SHAPES`` or ``T5_SHAPES``.
        method: A name from ``impatience methods``.
        prompt: Tokens of each prompt.
        repeats: Runs of each side, at least 2, after one to warm up.
        seed: Of weights and prompts.
        device: "cpu" or "cuda"; None is the GPU if there is one.
        dtype: "float32" or "bfloat16"; None is bfloat16 on a GPU, else float32.

    Raises:
        OptionError: If there is no such shape or device, or a number is too small.
    """

    shape: str = "smollm2"
    method: str = "glide"
    prompt: int = 64
    repeats: int = 5
    seed: int = 0
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Check the values once, here."""
        shape_config(self.shape)
        device_of(self.device)
        if self.repeats < 2 or self.prompt < 1:
            raise OptionError(
                f"repeats={self.repeats}, prompt={self.prompt}: give at least 2 repeats and a prompt of 1 token."
            )

    @property
    def where(self) -> torch.device:
        """The device itself."""
        return device_of(self.device)

    def models(self) -> tuple[Any, LengthControlled]:
        """Return a plain model, and one with the method around the same weights: the first carries no hook at all.

        Both are built by their class, as a copied object's attributes are found more slowly: some per cent of a step.
        """
        plain, twin = (build(self.shape, self.seed, self.where, self.dtype) for _ in range(2))
        for mine, its in zip(twin.modules(), plain.modules(), strict=True):
            for name, weight in its.named_parameters(recurse=False):
                setattr(mine, name, weight)
        controlled = attach(twin, self.method)
        controlled.taught = True  # nothing that random weights say is meant, so no warning about it either
        return plain, controlled

    def prompts(self, rows: int) -> list[list[int]]:
        """Return rows of made-up ids."""
        chance, vocabulary = torch.Generator().manual_seed(self.seed), shape_config(self.shape).vocab_size
        found: list[list[int]] = torch.randint(3, vocabulary, (rows, self.prompt), generator=chance).tolist()
        return found

    def environment(self) -> dict[str, Any]:
        """Return where it was measured, the seed included."""
        return environment() | {"seed": self.seed, "device": self.where.type}


def shape_config(shape: str) -> Any:
    """Return the configuration of a model of some shape.

    Raises:
        OptionError: If there is no such shape.
    """
    if shape in T5_SHAPES:
        sizes = dict(zip(_T5_SIZES, T5_SHAPES[shape], strict=True))
        kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
        config = transformers.T5Config(**sizes, **kind, dropout_rate=0.0, pad_token_id=0, eos_token_id=1)
        config.tie_word_embeddings = False  # the class itself sets it back
        return config
    if shape not in SHAPES:
        known = [*SHAPES, *T5_SHAPES]
        raise OptionError(f"shape={shape!r}: give one of {', '.join(known)}.{nearest(shape, known)}")
    sizes = dict(zip(_SIZES, SHAPES[shape], strict=True)) | {"max_position_embeddings": 8192}
    return transformers.LlamaConfig(**sizes, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def untrained(shape: str) -> Any:
    """Return a model as its class makes it."""
    config = shape_config(shape)
    if shape not in T5_SHAPES:
        return transformers.LlamaForCausalLM(config)
    model = transformers.T5ForConditionalGeneration(config)
    model.set_input_embeddings(model.shared)  # one table for both sides, and a head of its own
    return model


def build(shape: str, seed: int, device: torch.device, dtype: str | None = None) -> Any:
    """Return a model with random weights: unless a dtype is named, bfloat16 on a GPU and float32 elsewhere.

    Raises:
        OptionError: If the dtype is neither of them.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise OptionError(f"dtype={dtype!r}: give 'float32' or 'bfloat16'.")
    kind = dtype or ("bfloat16" if device.type == "cuda" else "float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = untrained(shape)
    return model.to(device, torch.float32 if kind == "float32" else torch.bfloat16).eval()


def device_of(name: str | None) -> torch.device:
    """Return the device of a name; None is the GPU if there is one.

    Raises:
        OptionError: If there is no such device.
    """
    there = torch.cuda.is_available()
    if name not in (None, "cpu", "cuda") or (name == "cuda" and not there):
        raise OptionError(f"device={name!r}: give 'cpu'{' or cuda' if there else '; there is no GPU here'}.")
    return torch.device(name or ("cuda" if there else "cpu"))


class Clock:
    """Measures seconds, and sums up processor seconds, between going and stopping, once all is done on a device."""

    def __init__(self, device: torch.device) -> None:
        self.turns: list[float] = []
        self.cpu_seconds = 0.0
        self._wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def go(self) -> None:
        """Begin to measure."""
        self._wait()
        self._begin, self._cpu_begin = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Measure no more, for now."""
        self._wait()
        self.turns.append(time.perf_counter() - self._begin)
        self.cpu_seconds += time.process_time() - self._cpu_begin


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one run."""
    clock = Clock(device)
    clock.go()
    run()
    clock.stop()
    return clock.turns[0]


def copy_bandwidth(device: torch.device, repeats: int = 5) -> float:
    """Return the bytes a second that a large copy reads and writes, the best of some."""
    size = 2**30 if device.type == "cuda" else 2**28
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source), device) for _ in range(repeats + 1)]
    return 2 * size / min(seconds[1:])


def place(about: dict[str, Any]) -> str:
    """Say where something was measured, for the line under a table, from a report's ``environment``."""
    threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
    where = about["gpu"] if about.get("device") != "cpu" and about["gpu"] else f"{about['cpu']}, {threads}"
    return f"{where}; torch {about['torch']}, transformers {about['transformers']}"
