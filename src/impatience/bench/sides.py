"""Processes that write texts for the bench of backends, one for each side, so that each has its own memory.

A side opens the model, writes a text for each target that it reads from standard input, and answers with a line of
JSON: the ids, the time of the start and of each token, and the most memory that the process has had so far.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from impatience.backends import open_model
from impatience.data import Request
from impatience.errors import ImpatienceError, OptionError
from impatience.lengths import Landing, Unit
from impatience.writing.writer import Writer

Text = tuple[list[int], list[float]]  # ids, and the time of the start and of each
Write = Callable[[list[int], int], Text]  # writes from a prompt to a number of tokens

_PROMPT = "The harbour office counted 41 boats on Monday and fewer on Tuesday, when a wind kept the fleet in. "
_SPREAD = 1e-3  # standard deviation of random maps


class Process:
    """A side in a process of its own, from ``with`` on."""

    def __init__(self, side: str, model: str, method: str, prompt: int, seed: int) -> None:
        self.side = side
        self._command = [sys.executable, "-m", __name__, side, model, method, str(prompt), str(seed)]

    def __enter__(self) -> Process:
        self._errors = TemporaryFile("w+")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()

    def write(self, target: int) -> dict[str, Any]:
        """Write a text of so many tokens; return its ``ids``, ``times`` and the ``memory`` in bytes."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # it has ended; what it printed says why
            self._process.stdin.write(f"{target}\n")
            self._process.stdin.flush()
        if line := self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise OptionError(answer["error"])
            return answer
        self._errors.seek(0)
        raise OptionError(f"The side {self.side!r} could not write a text. {self._errors.read().strip()[-500:]}")


class _Stopwatch:
    """A ``TokenListener`` that notes when each token comes."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def put(self, _position: int, _token: int) -> None:
        self.times.append(time.perf_counter())

    def cancelled(self, _position: int) -> bool:
        return False


def _plain(opened: tuple[Any, Any]) -> Write:
    """Return a bare loop: ``llama_decode``, and the token with the largest score."""
    model = opened[0]

    def write(prompt: list[int], target: int) -> Text:
        context, watch, ids = model.model.new_context(len(prompt) + target, steered=False), _Stopwatch(), list[int]()
        scores = context.read(prompt, [len(prompt) - 1])[0]
        while True:
            scores[model.tokenizer.eos_ids] = -np.inf
            ids.append(int(scores.argmax()))
            watch.put(0, ids[-1])
            if len(ids) == target:
                return ids, watch.times
            scores = context.step(ids[-1])

    return write


def _ours(opened: tuple[Any, Any]) -> Write:
    """Return our own way of writing, which counts, lands and reports."""
    generator = Writer(*opened).generator

    def write(prompt: list[int], target: int) -> Text:
        request, watch = Request("", _PROMPT, target, Unit.TOKENS, Landing.EXACT), _Stopwatch()
        (result,) = generator.generate_with_signal([request], sources=[prompt], listener=watch, no_loops=None)
        return list(result.ids), watch.times

    return write


def _transformers(opened: tuple[Any, Any]) -> Write:
    """Return transformers' ``generate`` in float32."""
    import torch
    from transformers import GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):  # type: ignore[misc, unused-ignore]
        """Notes when each token comes; the first call passes the prompt."""

        def __init__(self) -> None:
            self.watch = _Stopwatch()
            self._calls = 0

        def put(self, _: Any) -> None:
            if self._calls:
                self.watch.put(0, 0)
            self._calls += 1

        def end(self) -> None:
            pass

    base, eos = opened[0].base.float(), Writer(*opened).generator.eos

    def write(prompt: list[int], target: int) -> Text:
        limits = {"max_new_tokens": target, "min_new_tokens": target}
        greedy = GenerationConfig(do_sample=False, **limits, eos_token_id=eos, pad_token_id=eos[0])
        ids, streamer = torch.tensor([prompt], device=base.device), Streamer()
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        written = base.generate(**inputs, generation_config=greedy, streamer=streamer)
        return written[0, len(prompt) :].tolist(), streamer.watch.times

    return write


def random_signal(method: str, layers: int, width: int, seed: int) -> Any:
    """Return a signal with random maps into all layers that llama.cpp reaches."""
    from impatience.backends.llama_cpp.signal import Signal, SignalSettings
    from impatience.backends.llama_cpp.vectors import FIRST_LAYER

    random = np.random.default_rng(seed)
    maps = {
        f"projections.{layer}.weight": _SPREAD * random.standard_normal((width, width), np.float32)
        for layer in range(FIRST_LAYER, layers)
    }
    return Signal(SignalSettings(method, {"layers": list(range(FIRST_LAYER, layers))}, 1.0), maps, layers, width)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had, the pages of files that it reads included."""
    status = Path("/proc/self/status")
    if status.exists():  # what the other interface says may be the peak of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Write as long as targets come; the arguments are side, model, method, tokens of the prompt and seed."""
    side, name, method, tokens, seed = sys.argv[1:]
    backend = "transformers" if side == "transformers" else "llama.cpp"
    try:
        opened = open_model(name, backend=backend, quiet=True)
    except ImpatienceError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    model = opened[0]
    if side == "signal" and not model.steers:
        model.signal = random_signal(method, model.model.layers, model.model.width, int(seed))
    elif side == "no signal":
        model.signal = None
    prompt = list(Writer(*opened).generator.encode(_PROMPT * (1 + int(tokens) // 10)))[: int(tokens)]
    write = {"plain": _plain, "transformers": _transformers}.get(side, _ours)(opened)
    for line in sys.stdin:
        ids, times = write(prompt, int(line))
        print(json.dumps({"ids": ids, "times": times, "memory": peak_memory()}), flush=True)


if __name__ == "__main__":
    main()
