"""Profile length control in ``generate``: the noise of the machine, the time of each part, and the added operations.

    python study/profile_control.py [--shape flan-t5-small] [--tokens 64] [--repeats 12] [--device cuda]

First the plain model is timed against itself, as ``impatience bench overhead`` times it against the controlled one: the
difference is the noise of the machine. Then the two parts of control that run before each
step are timed: setting the signal, and counting progress within it. At the end the operations of a step, nested ones
included, and the calls of Python, which a GPU waits for, are counted with and without control.
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
from impatience.bench.base import BenchSetup, generate_options, timed
from impatience.control.generation import GenerateSteering
from impatience.control.projections import SIGNALS
from impatience.vocabulary import Vocabulary


def main() -> None:
    """Print noise, times and counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="flan-t5-small", help="flan-t5-small (the default), smollm2 or tiny")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text; 64")
    parser.add_argument("--repeats", type=int, default=12, help="pairs of runs for the noise; 12")
    parser.add_argument("--device", default=None, help="cpu or cuda; the GPU if there is one")
    options = parser.parse_args()
    setup = BenchSetup(options.shape, "glide", 16, options.repeats, device=options.device)
    itself = overhead.overhead(replace(setup, method="none"), [options.tokens]).targets[0]
    least, most = itself.ratio.low_quartile, itself.ratio.high_quartile
    print(f"noise: the plain model took {itself.ratio.median:.3f} [{least:.3f}, {most:.3f}] times as long as itself,")
    print(f"undisturbed {itself.undisturbed:.3f} times; smaller differences are noise")
    plain, model = setup.models()
    arguments = generate_options(plain, setup.prompts(1), options.tokens)
    sides: dict[str, Callable[[], Any]] = {
        "without": partial(plain.generate, **arguments),
        "with": partial(model.generate, **arguments, target_tokens=options.tokens),
    }
    for side in sides.values():
        side()
    step = 1e6 * timed(sides["without"], setup.torch_device) / options.tokens
    spent = {name: 1e6 * part / options.tokens for name, part in parts(sides["with"], setup).items()}
    print(f"a step without control: {step:.0f} µs")
    control = spent["set_signal"]
    print(f"control before a step: {control:.0f} µs ({control / step:.1%}), of it counting {spent['progress']:.0f};")
    print(f"the rest: Python, and up to {SIGNALS} signals projected at once")
    calls = {name: operations(side, setup) for name, side in sides.items()}
    for name, count in calls["without"].items():
        per_step, more = count / options.tokens, (calls["with"][name] - count) / options.tokens
        print(f"{name} a step: {per_step:.1f} without control, {more:.1f} more with it")


def parts(write: Callable[[], Any], setup: BenchSetup) -> dict[str, float]:
    """Return the seconds that control took before all steps of a text; ``progress`` is a part of ``set_signal``."""
    spent = dict.fromkeys(("set_signal", "progress"), 0.0)
    with ExitStack() as patched:
        for name, owner in zip(spent, (GenerateSteering, Vocabulary), strict=True):
            patched.enter_context(patch.object(owner, name, _timed(spent, name, getattr(owner, name))))
        timed(write, setup.torch_device)
    return spent


def _timed(spent: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        spent[name] += time.perf_counter() - begin
        return result

    return run


def operations(write: Callable[[], Any], setup: BenchSetup) -> Counter[str]:
    """Return the numbers of Python calls, torch operations and GPU kernels for one text."""
    gpu = [ProfilerActivity.CUDA] * (setup.torch_device.type == "cuda")
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler:
        write()
    counts = Counter(calls=_calls(write), operations=0, kernels=0)
    for event in profiler.key_averages():
        counts["operations"] += event.count * event.key.startswith("aten::")
        counts["kernels"] += event.count * ("LaunchKernel" in event.key)
    return counts


def _calls(write: Callable[[], Any]) -> int:
    profiler = cProfile.Profile()
    profiler.runcall(write)
    return sum(entry.callcount for entry in profiler.getstats())


if __name__ == "__main__":
    main()
