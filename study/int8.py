"""Time a step of ``generate`` on a processor in float32 against two kinds of int8.

    python study/int8.py [--repeats 5]

``torch``: torch.ao's dynamic quantisation, which is fast, but PyTorch has marked it for removal. ``torchao``: the
weight-only int8 of its successor, if that package is installed; without a compiler it is slower than float32. So the
library uses neither.
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

from impatience.bench.base import build, generate_options

TOKENS = 24


def main() -> None:
    """Print milliseconds per step, and the speed of each kind over float32."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    plain = build("smollm2", 0, torch.device("cpu")).eval()
    quantised = {"torch": dynamic(plain)}
    if importlib.util.find_spec("torchao"):
        quantised["torchao"] = weight_only(plain)
    for rows in (1, 8):
        for name, model in quantised.items():
            step(plain, rows), step(model, rows)
            pairs = [(step(plain, rows), step(model, rows)) for _ in range(repeats)]
            ratios = sorted(float32 / int8 for float32, int8 in pairs)
            times = [statistics.median(side) for side in zip(*pairs, strict=True)]
            shown = f"float32 {times[0]:.0f} ms, int8 {times[1]:.0f} ms"
            print(
                f"{rows} rows, {name}: {shown}, {statistics.median(ratios):.2f} × [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
            )


def dynamic(model: Any) -> Any:
    """Return a copy with int8 weights in its linear layers, which also round their inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def weight_only(model: Any) -> Any:
    """Return a copy with int8 weights in its linear layers."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    copied = copy.deepcopy(model)
    quantize_(copied, Int8WeightOnlyConfig())
    return copied


def step(model: Any, rows: int) -> float:
    """Return the milliseconds of one step."""
    ids = [list(range(3, 67))] * rows
    begin = time.perf_counter()
    model.generate(**generate_options(model, ids, TOKENS))
    return (time.perf_counter() - begin) / TOKENS * 1e3


if __name__ == "__main__":
    main()
