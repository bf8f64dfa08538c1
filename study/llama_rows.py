"""Time llama.cpp writing several texts at once: as rows of one ``llama_decode``, and in a context and thread for each.

    python study/llama_rows.py model.gguf [--rows 2,4,8,16] [--threads 1] [--repeats 8]

A bare loop without us, greedily, from prompts of 100 random tokens. Rows have their own places in one context, so they
cannot have signals of their own: control vectors belong to a context. Every way writes the same number of tokens for
each text, in turns; shown are tokens per second together, and the median ratio to one text at a time with as many
threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from impatience.backends.llama_cpp.model import GgufModel
from impatience.bench.reports import alternate

PROMPT, STEPS = 100, 12


class Rows:
    """Texts that are written in rows of one context."""

    def __init__(self, model: GgufModel, rows: int, threads: int, first: int = 0) -> None:
        self.model, self.library = model, model.library
        parameters = self.library("context_default_params")
        parameters.write(0, "<4I", 1024 * rows, 512, 512, rows)
        self.context = self.library("init_from_model", model._model, parameters)
        self.library("set_n_threads", self.context, threads, threads)
        self.memory, self.batch = self.library("get_memory", self.context), self.library("batch_init", 512, 0, 1)
        self.ids: list[list[int]] = []
        for row in range(rows):
            prompt = np.random.default_rng(first + row).integers(0, model.size, PROMPT).tolist()
            self.read([(token, place, row) for place, token in enumerate(prompt[:-1])])
            self.ids.append(prompt)

    def read(self, tokens: list[tuple[int, int, int]]) -> None:
        """Read tokens at their places in their rows; scores are computed for all."""
        batch = self.batch
        for n, (token, place, row) in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = (
                token,
                place,
                1,
                row,
                1,
            )
        batch.n_tokens = len(tokens)
        assert self.library.function("llama_decode")(self.context, batch) == 0

    def write(self, steps: int) -> list[list[int]]:
        """Write so many tokens in each row, from the end of the prompts; return them."""
        for row, ids in enumerate(self.ids):
            self.library("memory_seq_rm", self.memory, row, PROMPT - 1, -1)
            del ids[PROMPT:]
        scores = self.library.function("llama_get_logits_ith")
        for _ in range(steps):
            self.read([(ids[-1], len(ids) - 1, row) for row, ids in enumerate(self.ids)])
            for row, ids in enumerate(self.ids):
                ids.append(int(np.ctypeslib.as_array(scores(self.context, row), (self.model.size,)).argmax()))
        return [ids[PROMPT:] for ids in self.ids]


def in_threads(contexts: list[Rows], steps: int) -> None:
    """Write in several contexts at the same time."""
    threads = [Thread(target=context.write, args=(steps,)) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ways(model: GgufModel, rows: list[int], threads: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return the ways to write: by name, the number of texts and what writes them."""
    found: dict[str, tuple[int, Callable[[], Any]]] = {}
    for count in (1, *rows):
        name = f"{count} rows" if count > 1 else "one at a time"
        found[name] = count, partial(Rows(model, count, threads).write, STEPS)
    if threads > 1:
        contexts = [Rows(model, 1, 1, first) for first in range(threads)]
        found[f"{threads} contexts, a thread each"] = threads, partial(in_threads, contexts, STEPS)
    return found


def seconds(run: Callable[[], Any]) -> float:
    """Return the seconds of a run."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Print the tokens per second of each way, and how much faster it is than one text at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default="2,4,8,16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    sides = ways(GgufModel(given.model), [int(count) for count in given.rows.split(",")], given.threads)
    for _, run in sides.values():
        run()
    times = alternate({name: partial(seconds, run) for name, (_, run) in sides.items()}, given.repeats)
    for name, (texts, _) in sides.items():
        rate = texts * STEPS / statistics.median(times[name])
        ratios = [texts * one / taken for one, taken in zip(times["one at a time"], times[name], strict=True)]
        print(f"{name}: {rate:.1f} tokens/s, {statistics.median(ratios):.2f} × [{min(ratios):.2f}, {max(ratios):.2f}]")
    print(f"{given.threads} threads, load {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
