"""Evaluates a made-up strategy in a process that is killed while it writes a batch.

evaluate_child.py DATA FOLDER BATCH
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from impatience import attach
from impatience.data import Request
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Result
from impatience.evaluation.predictions import Predictions
from impatience.evaluation.report import EvalReport
from impatience.evaluation.run import evaluate
from impatience.lengths import decode
from impatience.metrics import Prediction
from impatience.sources import toy
from impatience.strategies import Strategy


@dataclass(frozen=True)
class Scripted(Strategy):
    """Writes random words, with a random error of length."""

    summary: ClassVar[str] = "random words"
    off: int = 2

    def write(self, generator: TextGenerator, requests: Sequence[Request]) -> list[Result]:
        results = []
        for request in requests:
            count = max(1, request.target + int(torch.randint(-self.off, self.off + 1, ())))
            ids = tuple(torch.randint(4, generator.vocabulary.size, (count,)).tolist())
            length = generator.vocabulary.count(ids, request.unit)
            landed: Any = "forced" if length == request.target else "missed"  # random words end no sentence
            text, spent = decode(generator.tokenizer, ids), count + 1
            results.append(
                Result(length, request.target, request.unit, landed, 0.5, False, text=text, ids=ids, tokens_spent=spent)
            )
        return results


def run(data: Path, folder: Path, **changes: Any) -> EvalReport:
    base, tokenizer = toy.build("toy-bart")
    options: dict[str, Any] = {"strategy": Scripted(), "batch_size": 4, "bucket": 10, **changes}
    return evaluate(attach(base, "pre", tokenizer=tokenizer), str(data), folder, **options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("batch", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    append = Predictions.append

    def append_then_die(self: Predictions, batch: int, predictions: Sequence[Prediction]) -> None:
        before = self.file.stat().st_size
        append(self, batch, predictions)
        if batch == arguments.batch:
            os.truncate(self.file, (before + self.file.stat().st_size) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    Predictions.append = append_then_die  # type: ignore[method-assign]
    run(arguments.data, arguments.folder)


if __name__ == "__main__":
    main()
