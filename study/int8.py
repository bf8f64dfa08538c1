"""Would eight bits help on a processor? A step of ``generate`` in float32 beside two ways of int8, side by side.

    python study/int8.py [--repeats 5]

``torch``: torch.ao's dynamic quantisation, fast, which PyTorch has marked for removal. ``torchao``: its successor's
weight-only int8, if that package is there; without a compiler it is slower than float32. So the library uses neither.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import time
import warnings
from typing import Any

import torch

from impatience.bench.base import build

TOKENS = 24


def main() -> None:
    """Print milliseconds a step, and how many times as fast each way is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    plain = build("smollm2", 0, torch.device("cpu")).eval()
    ways = {"torch": dynamic(plain)}
    if importlib.util.find_spec("torchao"):
        ways["torchao"] = weight_only(plain)
    for rows in (1, 8):
        for name, model in ways.items():
            step(plain, rows), step(model, rows)
            pairs = [(step(plain, rows), step(model, rows)) for _ in range(repeats)]
            ratios = sorted(float32 / int8 for float32, int8 in pairs)
            times = [statistics.median(side) for side in zip(*pairs, strict=True)]
            shown = f"float32 {times[0]:.0f} ms, int8 {times[1]:.0f} ms"
            print(
                f"{rows} rows, {name}: {shown}, {statistics.median(ratios):.2f} × [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
            )


def dynamic(model: Any) -> Any:
    """Return a copy whose linear layers hold int8 weights and round what they read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def weight_only(model: Any) -> Any:
    """Return a copy whose linear layers hold int8 weights."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    copied = copy.deepcopy(model)
    quantize_(copied, Int8WeightOnlyConfig())
    return copied


def step(model: Any, rows: int) -> float:
    """Return the milliseconds of one step."""
    ids = torch.arange(3, 67).expand(rows, -1)
    begin = time.perf_counter()
    limit = {"max_new_tokens": TOKENS, "eos_token_id": model.config.vocab_size, "do_sample": False}
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **limit)
    return (time.perf_counter() - begin) / TOKENS * 1e3


if __name__ == "__main__":
    main()
