"""Rows: what the author wrote, kept and dropped, in files that a killed run goes on with.

turns.jsonl, documents.jsonl      what the author invented, and the user's texts
answers.jsonl                     each ask with its answer, and why it was left out
train.jsonl, validation.jsonl     the rows to train on
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from impatience.errors import DataError, RunError
from impatience.files import JsonLines, write_whole
from impatience.training.teaching.asks import Ask, Document, make_asks, rows_of
from impatience.training.teaching.author import Author
from impatience.training.teaching.filters import fault
from impatience.training.teaching.options import TeachOptions

HELD_OUT = 20  # one document or turn of so many is kept for validation
LEAST_ROWS = 8
_PART = 2048  # answers that are written before they are saved


class Rows:
    """The folder of the rows."""

    def __init__(self, folder: Path, options: TeachOptions, report: Callable[[str], None]) -> None:
        self.folder, self.options, self.report = folder, options, report

    @property
    def train(self) -> Path:
        """The rows to train on."""
        return self.folder / "train.jsonl"

    @property
    def validation(self) -> Path:
        """Held-out rows, of documents and turns of their own."""
        return self.folder / "validation.jsonl"

    @property
    def complete(self) -> bool:
        """True if all rows are written; the training rows are written last."""
        return self.train.exists()

    def write(self, author: Callable[[], Author], texts: Sequence[str]) -> None:
        """Write what is missing; the author is called only if anything is."""
        if self.complete:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        writer = author()
        options = self.options
        turns = self._once("turns", lambda: [{"text": turn} for turn in writer.turns(options.turns)])
        own = self._once("documents", lambda: [asdict(document) for document in writer.documents(options.documents)])
        self.report(f"{len(turns)} turns, {len(own)} documents, {len(texts)} texts of yours")
        documents = [Document(**row) for row in own] + [Document(text) for text in texts]
        chance = random.Random(f"{options.seed} asks")
        chance.shuffle(documents)
        held, rest = documents[: len(documents) // HELD_OUT], documents[len(documents) // HELD_OUT :]
        all_turns = [row["text"] for row in turns]
        held_turns, other_turns = all_turns[: len(turns) // HELD_OUT], all_turns[len(turns) // HELD_OUT :]
        asks = [("validation", ask) for ask in make_asks(held, held_turns, options.asks, chance)]
        asks += [("train", ask) for ask in make_asks(rest, other_turns, options.asks, chance)]
        answered = self._answer(writer, asks[: options.answers])
        self._save(answered)

    def _once(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of a file, which is written if it is missing."""
        file = self.folder / f"{name}.jsonl"
        if not file.exists():
            write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in make()))
        rows = [row for row, _ in JsonLines(file).read()]
        if damaged := [number for number, row in enumerate(rows, 1) if row is None or "text" not in row]:
            raise RunError(f"{file}, line {damaged[0]} is damaged. Restore it from a copy, or name another --out.")
        return [row for row in rows if row is not None]

    def _answer(self, author: Author, asks: Sequence[tuple[str, Ask]]) -> list[dict[str, Any]]:
        """Answer what was not answered before, part by part; each answer of a document is checked by its author."""
        file = JsonLines(self.folder / "answers.jsonl", checked=True)
        done: list[dict[str, Any]] = []
        end = 0
        for row, position in file.read():
            end = position
            if row is None:
                raise RunError(
                    f"{file.file}, line {len(done) + 1} is damaged. Remove it and all lines after it, and continue "
                    f"with --resume."
                )
            if len(done) >= len(asks) or row["ask"] != asks[len(done)][1].to_dict():
                raise RunError(f"{file.file} does not fit these options. Teach into another folder with --out.")
            done.append(row)
        file.truncate(end)
        while part := asks[len(done) : len(done) + _PART]:
            answers = author.answers([ask.message() for _, ask in part])
            rows: list[dict[str, Any]] = [
                {"split": split, "ask": ask.to_dict(), "answer": answer}
                for (split, ask), answer in zip(part, answers, strict=True)
            ]
            kept = [row for row in rows if row["ask"]["text"] and not _fault(row)]
            support = author.support([(row["ask"]["text"], row["answer"]) for row in kept])
            for row, value in zip(kept, support, strict=True):
                row["support"] = round(value, 4)
            file.append(rows)
            done += rows
            self.report(f"{len(done):,} of {len(asks):,} answers, {sum(not _fault(row) for row in done):,} kept")
        return done

    def _save(self, answered: Sequence[dict[str, Any]]) -> None:
        """Leave out the answers that their author believes least, and write the rows; those to train on last."""
        faults = [_fault(row) for row in answered]
        values = sorted(
            row["support"] for row, wrong in zip(answered, faults, strict=True) if not wrong and "support" in row
        )
        bound = values[int(self.options.doubted * len(values))] if values else 0.0
        faults = [
            wrong or ("doubted" if row.get("support", 1.0) < bound else "")
            for row, wrong in zip(answered, faults, strict=True)
        ]
        self.report(f"answers left out: {dict(Counter(filter(None, faults)))}")
        for split, file in (("validation", self.validation), ("train", self.train)):
            chance = random.Random(f"{self.options.seed} {split}")
            pairs = [
                pair
                for row, wrong in zip(answered, faults, strict=True)
                if row["split"] == split and not wrong
                for pair in rows_of(Ask(**row["ask"]), row["answer"], chance)
            ]
            if len(pairs) < LEAST_ROWS:
                raise DataError(
                    f"Only {len(pairs)} rows for {split} are left of {len(answered)} answers. Ask for more turns and "
                    f"documents, or name a larger model with --teacher."
                )
            lines = [
                json.dumps({"id": f"{split}-{number}", "source": source, "target": target}, ensure_ascii=False)
                for number, (source, target) in enumerate(pairs)
            ]
            write_whole(file, "\n".join(lines) + "\n")
            words = sorted(len(target.split()) for _, target in pairs)
            shown = ", ".join(str(words[round(share * (len(words) - 1))]) for share in (0.05, 0.25, 0.5, 0.75, 0.95))
            self.report(f"{len(pairs):,} rows for {split}; words at 5, 25, 50, 75, 95 %: {shown}")


def _fault(row: dict[str, Any]) -> str:
    return fault(Ask(**row["ask"]), row["answer"])
