"""LIFEBench, the English tasks of its small version: write a story, an answer, an inference or a summary.

Zhang et al., "LIFEBench: Evaluating Length Instruction Following in Large Language Models" (2025). The texts to write
are not given, so ``target`` is empty. A task of the benchmark says how long its text must be, with holes for the kind
of requirement and the number:

    [Requirement] Your answer must be {word_count_type} {word_count} words long.

``meta["prompt"]`` has the whole task, for the protocol ``lifebench``. ``source`` has it without that statement, so any
protocol may ask for a length, and the task can be read without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from impatience.data._built import Benchmark
from impatience.data.base import Example, get_column, make_example
from impatience.errors import DataError

HOLES = ("{word_count_type}", "{word_count}")
_STATEMENT = re.compile(r"(?<=[\s\]])[^.?!,\n\]]*\{word_count_type\} \{word_count\}[^.?!\n]*[.?!]?")
_LEFT_OVER = re.compile(r"(\s*\[Requirement\])?[\s,]*$")


class LifeBench(Benchmark):
    """Tasks with a statement of length, which the source does not have."""

    def _examples(self, row: dict[str, Any], _part: str, where: str) -> Iterator[Example]:
        name, prompt = (get_column(row, column, where) for column in ("id", "source"))
        checked = make_example(name, prompt, "none", {}, where)
        prompt = checked.source
        source, statements = _STATEMENT.subn("", prompt)
        if statements != 1 or any(prompt.count(hole) != 1 for hole in HOLES):
            raise DataError(f"{where}: a task states its length once, as in 'must be {' '.join(HOLES)} words long'.")
        yield Example(checked.id, _LEFT_OVER.sub("", source), "", {**(row.get("meta") or {}), "prompt": prompt})


DATASET = LifeBench(
    name="lifebench_lite",
    summary="Writing tasks of LIFEBench, without references; for measuring only",
    licence="MIT",
)
