"""Say where the time that control adds to ``generate`` goes, and how far that can be told apart on this machine.

    python study/profile_control.py [--shape flan-t5-small] [--tokens 64] [--repeats 12] [--device cuda]

First the model is timed against itself, as ``impatience bench overhead`` times it against the controlled one: what that
says is what the machine adds. Then the two parts of control that run before each step are timed: setting the signal,
and counting progress within it. In the end the operations of a step are counted without and with control, those within
others and in hooks too, and the calls of Python, which a GPU waits for.
"""

from __future__ import annotations

import argparse
import cProfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile

from impatience.bench import overhead
from impatience.bench.base import BenchSetup, timed
from impatience.control.generation import GenerateSteering
from impatience.control.projections import SIGNALS
from impatience.vocabulary import Vocabulary


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="flan-t5-small", help="flan-t5-small (if none is given), smollm2 or tiny")
    parser.add_argument("--tokens", type=int, default=64, help="of each text; 64")
    parser.add_argument("--repeats", type=int, default=12, help="pairs of the plain model against itself; 12")
    parser.add_argument("--device", default=None, help="cpu or cuda; the GPU if there is one")
    wanted = parser.parse_args()
    trial = BenchSetup(wanted.shape, "glide", 16, wanted.repeats, device=wanted.device)
    itself = overhead.overhead(replace(trial, method="none"), [wanted.tokens]).targets[0]
    least, most = itself.ratio.low_quartile, itself.ratio.high_quartile
    print(f"noise: the plain model took {itself.ratio.median:.3f} [{least:.3f}, {most:.3f}] times as long as itself,")
    print(f"undisturbed {itself.undisturbed:.3f} times; smaller differences mean nothing")
    plain, model = trial.models()
    given = overhead.inputs(trial, plain.config.vocab_size, wanted.tokens)
    sides: dict[str, Callable[[], Any]] = {
        "without": partial(plain.generate, **given),
        "with": partial(model.generate, **given, target_tokens=wanted.tokens),
    }
    for side in sides.values():
        side()
    step = 1e6 * timed(sides["without"], trial.where) / wanted.tokens
    spent = {name: 1e6 * part / wanted.tokens for name, part in parts(sides["with"], trial).items()}
    print(f"a step without control: {step:.0f} µs")
    control = spent["set_signal"]
    print(f"control before a step: {control:.0f} µs ({control / step:.1%}), of it counting {spent['progress']:.0f};")
    print(f"the rest: Python, and up to {SIGNALS} signals projected at once")
    calls = {name: operations(side, trial) for name, side in sides.items()}
    for name, count in calls["without"].items():
        per_step, more = count / wanted.tokens, (calls["with"][name] - count) / wanted.tokens
        print(f"{name} a step: {per_step:.1f} without control, {more:.1f} more with it")


def parts(write: Callable[[], Any], trial: BenchSetup) -> dict[str, float]:
    """Return the seconds that control took before all steps of a text; ``progress`` is a part of ``set_signal``."""
    spent = dict.fromkeys(("set_signal", "progress"), 0.0)
    with ExitStack() as patched:
        for name, owner in zip(spent, (GenerateSteering, Vocabulary), strict=True):
            patched.enter_context(patch.object(owner, name, _timed(spent, name, getattr(owner, name))))
        timed(write, trial.where)
    return spent


def _timed(spent: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        spent[name] += time.perf_counter() - begin
        return result

    return run


def operations(write: Callable[[], Any], trial: BenchSetup) -> Counter[str]:
    """Return how many calls Python made for a text, operations torch, and kernels were started on a GPU."""
    gpu = [ProfilerActivity.CUDA] * (trial.where.type == "cuda")
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as found:
        write()
    counts = Counter(calls=_calls(write), operations=0, kernels=0)
    for event in found.key_averages():
        counts["operations"] += event.count * event.key.startswith("aten::")
        counts["kernels"] += event.count * ("LaunchKernel" in event.key)
    return counts


def _calls(write: Callable[[], Any]) -> int:
    profiler = cProfile.Profile()
    profiler.runcall(write)
    return sum(entry.callcount for entry in profiler.getstats())


if __name__ == "__main__":
    main()
