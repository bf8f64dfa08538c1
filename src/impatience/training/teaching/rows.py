"""Rows: what the author wrote, kept and left out, in files that a killed run goes on with.

turns.jsonl, documents.jsonl      what the author invented
answers.jsonl                     each ask with its answer, why it was left out, and how far the author believes it
train.jsonl, validation.jsonl     the rows to train on
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from impatience.errors import DataError, RunError
from impatience.files import JsonLines, write_whole
from impatience.training.teaching.asks import Ask, Document, make_asks, row_of, rows_of
from impatience.training.teaching.author import Author
from impatience.training.teaching.filters import fault
from impatience.training.teaching.human import Pair, without
from impatience.training.teaching.options import TeachOptions

HELD_OUT = 20  # one document or turn of so many is kept for validation
LEAST_ROWS = 8
_PART = 2048  # answers that are written before they are saved


class Rows:
    """The rows of one folder.

    Args:
        folder: Where the files are.
        options: How many to write.
        reads: Says whether the model to teach reads a text whole; others are left out.
        report: Takes lines of progress.
    """

    def __init__(
        self, folder: Path, options: TeachOptions, reads: Callable[[str], bool], report: Callable[[str], None]
    ) -> None:
        self.folder, self.options, self.reads, self.report = folder, options, reads, report

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

    def write(self, make_author: Callable[[], Author], texts: Sequence[str], human: Sequence[Pair] = ()) -> None:
        """Write what is missing; the author is made only if it has to write something."""
        if self.complete:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        author, options = cache(make_author), self.options
        turns = self._once("turns", lambda: [{"text": turn} for turn in author().turns(options.turns)])
        own = self._once("documents", lambda: [asdict(document) for document in author().documents(options.documents)])
        known = {row["text"]: Document(**row) for row in own} | {text: Document(text) for text in texts}
        documents = [document for document in known.values() if self.reads(document.text)]
        self.report(
            f"{len(turns):,} turns, {len(own):,} documents, {len(texts):,} texts of yours; left out, because the model "
            f"would not read them whole: {len(known) - len(documents):,}"
        )
        chance = random.Random(f"{options.seed} asks")
        chance.shuffle(documents)
        held, rest = documents[: len(documents) // HELD_OUT], documents[len(documents) // HELD_OUT :]
        all_turns = [row["text"] for row in turns]
        held_turns, other_turns = all_turns[: len(turns) // HELD_OUT], all_turns[len(turns) // HELD_OUT :]
        asks = [("validation", ask) for ask in make_asks(held, held_turns, options.asks, chance)]
        asks += [("train", ask) for ask in make_asks(rest, other_turns, options.asks, chance)]
        answered = self._answer(author, asks[: options.answers])
        self._save(answered, without(human, [document.text for document in held]))

    def _once(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows of a file, which is written if it is missing."""
        file = self.folder / f"{name}.jsonl"
        if not file.exists():
            write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in make()))
        rows = [row for row, _ in JsonLines(file).read()]
        if damaged := [number for number, row in enumerate(rows, 1) if row is None or "text" not in row]:
            raise RunError(f"{file}, line {damaged[0]} is damaged. Restore it from a copy, or name another --out.")
        return [row for row in rows if row is not None]

    def _answer(self, author: Callable[[], Author], asks: Sequence[tuple[str, Ask]]) -> list[dict[str, Any]]:
        """Answer what was not answered before, part by part; each answer over a text is checked by its author."""
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
            if len(done) >= len(asks) or row.get("ask") != asks[len(done)][1].to_dict():
                raise RunError(f"{file.file} does not fit these options. Teach into another folder with --out.")
            done.append(row)
        file.truncate(end)
        while part := asks[len(done) : len(done) + _PART]:
            answers = author().answers([ask.message() for _, ask in part])
            rows: list[dict[str, Any]] = [
                {"split": split, "ask": ask.to_dict(), "answer": answer, "fault": fault(ask, answer)}
                for (split, ask), answer in zip(part, answers, strict=True)
            ]
            kept = [row for row in rows if row["ask"]["text"] and not row["fault"]]
            support = author().support([(row["ask"]["text"], row["answer"]) for row in kept])
            for row, value in zip(kept, support, strict=True):
                row["support"] = round(value, 4)
            file.append(rows)
            done += rows
            fit = sum(not row["fault"] for row in done)
            self.report(f"{len(done):,} of {len(asks):,} answers, {fit:,} of them fit to be learnt")
        return done

    def _save(self, answered: Sequence[dict[str, Any]], human: Sequence[Pair]) -> None:
        """Leave out the answers that their author believes least, and write the rows; those to train on last."""
        doubted = self._doubted(answered)
        faults = [row["fault"] or ("doubted" if number in doubted else "") for number, row in enumerate(answered)]
        self.report(f"answers left out: {dict(Counter(filter(None, faults)).most_common())}")
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
            if split == "train":
                pairs += [row_of(ask, target, chance) for ask, target in human]
            lines = [
                json.dumps({"id": f"{split}-{number}", "source": source, "target": target}, ensure_ascii=False)
                for number, (source, target) in enumerate(pairs)
            ]
            write_whole(file, "\n".join(lines) + "\n")
            words = sorted(len(target.split()) for _, target in pairs)
            shown = ", ".join(str(words[round(share * (len(words) - 1))]) for share in (0.05, 0.25, 0.5, 0.75, 0.95))
            self.report(f"{len(pairs):,} rows for {split}; words at 5, 25, 50, 75, 95 %: {shown}")

    def _doubted(self, answered: Sequence[dict[str, Any]]) -> set[int]:
        """Return the places of the answers that are believed least, of statements and of questions alike.

        A question states nothing, so the author believes any of them less than a statement.
        """
        found: set[int] = set()
        for asks in (False, True):
            values = sorted(
                (row["support"], number)
                for number, row in enumerate(answered)
                if "support" in row and row["answer"].rstrip().endswith("?") is asks
            )
            found.update(number for _, number in values[: int(self.options.doubted * len(values))])
        return found
