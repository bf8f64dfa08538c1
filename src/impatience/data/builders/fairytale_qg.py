"""FairytaleQA from a checkout of uci-soe/FairytaleQAData: answer and section of a story to the question."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from impatience.data._templates import answer_and_context
from impatience.data.builders._writing import SplitWriter, find_files, one_line, word_count

ORIGIN = "uci-soe/FairytaleQAData at a24ddc17"
FOLDER = "data-by-train-split"
FOLDERS = {"train": "train", "val": "validation", "test": "test"}


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``fairytale_qg.*``, in the splits of the repository."""
    seen: set[tuple[str, str, str]] = set()
    with SplitWriter(out, "fairytale_qg") as writer:
        for folder, split in FOLDERS.items():
            for file in find_files(checkout, f"{FOLDER}/questions/{folder}/*", ORIGIN):
                story = file.name.replace("-questions.csv", "")
                text = checkout / FOLDER / "section-stories" / folder / f"{story}-story.csv"
                if not text.is_file():
                    writer.drop("no story")
                    continue
                sections = {one_line(row["section"]): one_line(row["text"] or "") for row in _rows(text, lower=True)}
                for row in _rows(file):
                    _add(writer, story, split, row, sections, seen)
    return writer.counts()


def _add(
    writer: SplitWriter,
    story: str,
    split: str,
    row: dict[str, str],
    sections: dict[str, str],
    seen: set[tuple[str, str, str]],
) -> None:
    question, answer = one_line(row["question"] or ""), one_line(row["answer1"] or "")
    chosen = re.findall(r"\d+", row["cor_section"] or "")
    if not answer or word_count(question) < 3:
        writer.drop("short question or no answer")
        return
    if not chosen or any(number not in sections for number in chosen):
        writer.drop("section not found")
        return
    if not question.endswith("?"):
        question = question.rstrip(".") + "?"
    key = (story, question.lower(), answer.lower())
    if key in seen:
        writer.drop("duplicate")
        return
    seen.add(key)
    context = " ".join(sections[number] for number in chosen)
    meta = {
        "story": story,
        "answer": answer,
        "sections": chosen,
        "attribute": row.get("attribute1"),
        "explicit": row.get("ex-or-im1"),
        "scope": row.get("local-or-sum"),
        "split": split,
        "licence": "Apache-2.0",
    }
    name = f"{story}-{row.get('question_id')}"
    writer.write({"id": name, "source": answer_and_context(answer, context), "target": question, "meta": meta})


def _rows(file: Path, lower: bool = False) -> Iterator[dict[str, str]]:
    """Read a table; some have a byte order mark, or spaces or capitals in column names."""
    content = file.read_bytes().decode("utf-8", "replace")
    for row in csv.DictReader(io.StringIO(content)):
        named = {name.strip().lstrip("\ufeff"): value for name, value in row.items() if name}
        yield {name.lower(): value for name, value in named.items()} if lower else named
