"""Say where the time that control adds to ``generate`` goes, and how far that can be told apart on this machine.

    python study/profile_control.py [--shape flan-t5-small] [--tokens 64] [--repeats 12] [--device cuda]

First the model is timed against itself, as ``impatience bench overhead`` times it against the controlled one: what that
says is what the machine adds. Then the parts of control are timed where they run: ``step``, all of them, and in it
``latest``, which counts, and ``tell``. In the end the operations of a step are counted without and with control.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch.profiler import ProfilerActivity, profile

from impatience import bench
from impatience.bench_shapes import Trial, timed


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="flan-t5-small")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--device", default=None)
    wanted = parser.parse_args()
    trial = Trial(wanted.shape, "glide", 16, wanted.repeats, device=wanted.device)
    itself = bench.overhead(replace(trial, method="none"), [wanted.tokens]).targets[0]
    ratio = itself.ratio
    print(f"against itself: {ratio.median:.3f} [{ratio.low_quartile:.3f}, {ratio.high_quartile:.3f}] times")
    print(f"undisturbed: {itself.undisturbed:.3f} times")
    plain, model = trial.models()
    given = bench.inputs(trial, plain.config.vocab_size, wanted.tokens)
    sides: dict[str, Callable[[], Any]] = {
        "without": partial(plain.generate, **given),
        "with": partial(model.generate, **given, target_tokens=wanted.tokens),
    }
    for side in sides.values():
        side()
    seconds = timed(sides["without"], trial.where)
    print(f"a step: {1e6 * seconds / wanted.tokens:.0f} µs without control; of one with it:")
    for name, part in parts(model, sides["with"], trial).items():
        print(f"{1e6 * part / wanted.tokens:10.1f} µs  {name}")
    calls = {name: operations(side) for name, side in sides.items()}
    print(f"operations a step: {calls['without'].total() / wanted.tokens:.1f} without control; with it, more:")
    more = calls["with"].copy()
    more.subtract(calls["without"])
    for name, count in more.most_common():
        if abs(count) >= wanted.tokens / 4:
            print(f"{count / wanted.tokens:10.1f}     {name}")
    print(f"{more.total() / wanted.tokens:10.1f}     in all")


def parts(model: Any, write: Callable[[], Any], trial: Trial) -> dict[str, float]:
    """Return the seconds that the parts of control took while a text was written, those in others among these."""
    steering, spent = model.steering, dict.fromkeys(("step", "latest", "tell"), 0.0)
    owners = dict(zip(spent, (steering, steering.vocabulary, steering.hearing), strict=True))
    for name, owner in owners.items():
        vars(owner)[name] = _timed(spent, name, getattr(owner, name))
    timed(write, trial.where)
    for name, owner in owners.items():
        del vars(owner)[name]
    return spent


def _timed(spent: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        spent[name] += time.perf_counter() - begin
        return result

    return run


def operations(write: Callable[[], Any]) -> Counter[str]:
    """Return how often each operation of torch was called while a text was written."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        write()
    return Counter({event.key: event.count for event in found.key_averages() if event.key.startswith("aten::")})


if __name__ == "__main__":
    main()
