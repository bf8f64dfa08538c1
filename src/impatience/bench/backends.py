"""Times writing with llama.cpp: a bare loop, ours without and with a signal, and transformers in float32.

All sides write the same number of tokens from the same prompt with the same model, greedily, and never end before. Each
is a process of its own, so that its peak of memory is its own; they take turns. The rate is that of all tokens after
the first, so reading the prompt is left out. A model that has no signal gets one with random maps into all layers that
llama.cpp reaches: it costs the same time, but the text means nothing. The time to the first text is that of cold
processes, see ``startup``; the files are in the system's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from impatience.backends import BACKENDS
from impatience.bench.reports import Report, ReportTable, Spread, alternate
from impatience.bench.sides import Process
from impatience.bench.startup import first_text, run_once
from impatience.environment import environment
from impatience.errors import OptionError

SIDES = {  # and what each is called
    "plain": "llama.cpp, bare loop",
    "no signal": "ours, no signal",
    "signal": "ours, with a signal",
    "transformers": "transformers, float32",
}
_STARTED = {"no signal": "llama.cpp", "transformers": "transformers"}  # sides whose cold start is timed: the backend
_WORDS = 20  # of the text of a cold start


@dataclass(frozen=True)
class SideRun:
    """Measurements of one side at one target."""

    side: str
    target: int
    seconds: tuple[float, ...]  # from the first token to the last, in each round
    same: int  # tokens at the beginning of the text that are those of the bare loop

    @property
    def rate(self) -> Spread:
        """Tokens per second after the first token, in each round."""
        return Spread.of((self.target - 1) / seconds for seconds in self.seconds)


@dataclass(frozen=True)
class BackendsReport(Report):
    """All sides and targets of one run."""

    model: str
    method: str
    prompt_tokens: int
    runs: tuple[SideRun, ...]
    memory: dict[str, int]  # bytes, by side
    first_text: dict[str, tuple[float, ...]]  # seconds from the start of a process, by side
    left_out: str  # why transformers was not timed; empty if it was

    def faster(self, run: SideRun, other: str) -> Spread | None:
        """Return the speed of a run over that of another side in the same rounds; None if that was not run."""
        others = [one for one in self.runs if (one.side, one.target) == (other, run.target) and one is not run]
        return Spread.of_ratios(others[0].seconds, run.seconds) if others else None

    def table(self) -> ReportTable:
        """Return a row for each side and target."""
        columns = ("", "tokens", "tokens/s", "× bare loop", "× transformers", "same tokens", "peak MB", "first text, s")
        title = f"{self.model}, prompts of {self.prompt_tokens} tokens, a random signal of {self.method} if it has none"
        notes = "medians, quartiles in brackets" + (f"; {self.left_out}" if self.left_out else "")
        return ReportTable(title, columns, [self._cells(run) for run in self.runs], notes, words=1)

    def _cells(self, run: SideRun) -> Sequence[str]:
        ratios = (self.faster(run, side) for side in ("plain", "transformers"))
        started = self.first_text.get(run.side)
        return (
            *(SIDES[run.side], str(run.target), run.rate.format(1)),
            *(ratio.format() if ratio else "" for ratio in ratios),
            "" if run.side == "plain" else f"{run.same} of {run.target}",
            f"{self.memory[run.side] / 1e6:.0f}",
            Spread.of(started).format() if started else "",
        )


@dataclass(frozen=True)
class Setup:
    """Facts that all sides share."""

    method: str = "glide"  # of the random signal
    prompt: int = 64  # tokens of the prompt
    repeats: int = 5  # rounds, after one that warms up
    seed: int = 0  # of the random signal


def backends(model: str, targets: Sequence[int], against: int = 100, setup: Setup | None = None) -> BackendsReport:
    """Time all sides for all targets, transformers for those up to ``against``."""
    setup = setup or Setup()
    repeats, described = setup.repeats, (setup.method, setup.prompt, setup.seed)
    if repeats < 2 or setup.prompt < 1 or min(targets) < 2:
        given = f"repeats={repeats}, prompt={setup.prompt}, targets={tuple(targets)}"
        raise OptionError(f"{given}: give at least 2 repeats, a prompt of 1 token and targets of 2.")
    if reason := BACKENDS["llama_cpp"].why_not(model):
        raise OptionError(f"model={model!r}: {reason}")
    left_out = BACKENDS["transformers"].why_not(model) or ""
    compared = not left_out and min(targets) <= against
    names = [side for side in SIDES if side != "transformers" or compared]
    runs: list[SideRun] = []
    memory: dict[str, int] = {}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(Process(name, model, *described)) for name in names}
        if compared:
            try:
                processes["transformers"].write(2)
            except OptionError as error:
                left_out = str(error)
                del processes["transformers"]
        for target in targets:
            sides = {
                name: partial(process.write, target)
                for name, process in processes.items()
                if name != "transformers" or target <= against
            }
            for write in sides.values():
                write()  # warms up
            answers = alternate(sides, repeats)
            memory |= {name: max(answer["memory"] for answer in given) for name, given in answers.items()}
            runs += [_run(name, target, answers[name], answers["plain"]) for name in sides]
    timed = {name: backend for name, backend in _STARTED.items() if name in memory}
    starts = alternate({name: partial(run_once, model, _WORDS, backend) for name, backend in timed.items()}, repeats)
    first = {name: tuple(map(first_text, given)) for name, given in starts.items()}
    libraries = ["llama.cpp", *(("torch", "transformers") if "transformers" in memory else ())]
    about = environment() | {"seed": setup.seed, "device": "cpu", "libraries": libraries}
    return BackendsReport(about, model, setup.method, setup.prompt, tuple(runs), memory, first, left_out)


def _run(side: str, target: int, answers: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> SideRun:
    """Return what a side did, from what its process answered in each round."""
    seconds = tuple(answer["times"][target] - answer["times"][1] for answer in answers)
    pairs = zip(answers[0]["ids"], plain[0]["ids"], strict=False)
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), target)
    return SideRun(side, target, seconds, same)
