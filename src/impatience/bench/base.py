"""Shared parts of benches on torch: models with random weights, prompts and clocks.

The weights are random because the speed of a dense model does not depend on their values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers

from impatience.bench.reports import alternate
from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.environment import environment
from impatience.errors import OptionError
from impatience.registry import nearest

LLAMA_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
T5_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
SHAPES = {  # of Llamas with tied embeddings (smollm2 is SmolLM2-135M), and of T5s like the flan models
    "tiny": dict(zip(LLAMA_SIZES, (512, 64, 128, 2, 4, 2), strict=True)),
    "smollm2": dict(zip(LLAMA_SIZES, (49152, 576, 1536, 30, 9, 3), strict=True)),
    "flan-t5-small": dict(zip(T5_SIZES, (32128, 512, 64, 1024, 8, 6), strict=True)),
}


@dataclass(frozen=True)
class BenchSetup:
    """Model, prompts and number of runs of a bench."""

    shape: str = "smollm2"  # a name in SHAPES
    method: str = "glide"  # a name from `impatience methods`
    prompt: int = 64  # tokens of each prompt
    repeats: int = 5  # runs of each side, at least 2, after one that warms up
    seed: int = 0  # seed of weights and prompts
    device: str | None = None  # "cpu" or "cuda"; None takes the GPU if there is one
    dtype: str | None = None  # "float32" or "bfloat16"; None takes bfloat16 on a GPU, else float32

    def __post_init__(self) -> None:
        shape_config(self.shape)
        find_device(self.device)
        if self.repeats < 2 or self.prompt < 1:
            given = f"repeats={self.repeats}, prompt={self.prompt}"
            raise OptionError(f"{given}: give at least 2 repeats and a prompt of 1 token.")

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return find_device(self.device)

    def models(self) -> tuple[Any, LengthControlled]:
        """Return a plain model without hooks, and a controlled model with the same weights."""
        # Both are built by their class: attributes of a copied object are looked up more slowly, per cents of a step.
        plain, twin = (build(self.shape, self.seed, self.torch_device, self.dtype) for _ in range(2))
        for twin_module, plain_module in zip(twin.modules(), plain.modules(), strict=True):
            for name, weight in plain_module.named_parameters(recurse=False):
                setattr(twin_module, name, weight)
        controlled = attach(twin, self.method)
        controlled.taught = True  # no warning that random weights were not trained
        return plain, controlled

    def prompts(self, rows: int) -> list[list[int]]:
        """Return random token ids, one list for each row."""
        generator, vocabulary = torch.Generator().manual_seed(self.seed), shape_config(self.shape).vocab_size
        ids: list[list[int]] = torch.randint(3, vocabulary, (rows, self.prompt), generator=generator).tolist()
        return ids

    def time(self, sides: Mapping[str, Callable[[], object]]) -> dict[str, tuple[float, ...]]:
        """Return the seconds of each run of all sides, see ``alternate``."""
        return alternate({name: partial(timed, run, self.torch_device) for name, run in sides.items()}, self.repeats)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a report that describe this setup."""
        about = environment() | {"seed": self.seed, "device": self.torch_device.type}
        return {"environment": about, "shape": self.shape, "method": self.method, "prompt_tokens": self.prompt}


def shape_config(shape: str) -> Any:
    """Return the configuration of a model by the name of its shape."""
    if shape not in SHAPES:
        raise OptionError(f"shape={shape!r}: give one of {', '.join(SHAPES)}.{nearest(shape, SHAPES)}")
    sizes = SHAPES[shape]
    if "d_model" not in sizes:
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return transformers.LlamaConfig(**sizes, **ids, max_position_embeddings=8192, tie_word_embeddings=True)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = transformers.T5Config(**sizes, **ids, feed_forward_proj="gated-gelu", dropout_rate=0.0)
    config.tie_word_embeddings = False  # the constructor sets it to True
    return config


def untrained(shape: str) -> Any:
    """Return a model as its class initialises it."""
    config = shape_config(shape)
    if not config.is_encoder_decoder:
        return transformers.LlamaForCausalLM(config)
    model = transformers.T5ForConditionalGeneration(config)
    model.set_input_embeddings(model.shared)  # encoder and decoder share a table; the output head has its own
    return model


def build(shape: str, seed: int, device: torch.device, dtype: str | None = None) -> Any:
    """Return a model with random weights that never writes EOS; by default bfloat16 on a GPU, float32 elsewhere."""
    if dtype not in (None, "float32", "bfloat16"):
        raise OptionError(f"dtype={dtype!r}: give 'float32' or 'bfloat16'.")
    name = dtype or ("bfloat16" if device.type == "cuda" else "float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = untrained(shape)
    with torch.no_grad():  # logit 0, which of so many is never the largest: no text ends before its limit
        model.get_output_embeddings().weight[model.config.eos_token_id] = 0
    return model.to(device, getattr(torch, name)).eval()


def find_device(name: str | None) -> torch.device:
    """Return the device of that name; None takes the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    if name not in (None, "cpu", "cuda") or (name == "cuda" and not has_gpu):
        others = " or 'cuda'" if has_gpu else "; this machine has no GPU"
        raise OptionError(f"device={name!r}: give 'cpu'{others}.")
    return torch.device(name or ("cuda" if has_gpu else "cpu"))


def generate_options(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
    """Return arguments with which ``generate`` writes exactly so many tokens, greedily; it still checks for EOS."""
    ids = torch.tensor(prompts, device=model.device)
    limits = {"max_new_tokens": tokens, "do_sample": False}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **limits}


class Clock:
    """Measures turns, each from start to stop; at both it waits until a GPU is done."""

    def __init__(self, device: torch.device) -> None:
        self.turns: list[float] = []  # seconds of each
        self.cpu_seconds = 0.0  # processor seconds of all
        self._wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def start(self) -> None:
        """Begin a turn."""
        self._wait()
        self._begin, self._cpu_begin = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """End the turn."""
        self._wait()
        self.turns.append(time.perf_counter() - self._begin)
        self.cpu_seconds += time.process_time() - self._cpu_begin


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one run."""
    clock = Clock(device)
    clock.start()
    run()
    clock.stop()
    return clock.turns[0]


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes; the best of several."""
    size = 2**30 if device.type == "cuda" else 2**28
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source), device) for _ in range(6)]
    return 2 * size / min(seconds[1:])
