"""A scripted author for ``impatience teach``, tiny models to teach, and files with rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from impatience.lengths import split_sentences
from impatience.sources.toy import WORDS
from impatience.training.teaching import TeachOptions
from impatience.training.teaching.asks import Document
from impatience.training.teaching.rows import Rows
from support.toys import byte_level_tokenizer, tiny_model

SOURCE = (
    "The ferry Hulda will not sail on Tuesday. A crack was found in one of her two shafts, and the yard in Bergen "
    "needs a day to weld it. A smaller boat leaves at eight and at five; it takes no cars. Tickets for Tuesday stay "
    "valid all week, and the harbour office answers questions from Monday morning on."
)
OPTIONS = TeachOptions(turns=40, documents=40, asks=4, answers=400, doubted=0.1, steps=2, batch_size=32, rank=2)


def text_of(seed: object, sentences: int) -> str:
    """Return sentences of seven words each."""
    chance = random.Random(f"{seed}")
    return " ".join(f"{' '.join(chance.sample(WORDS, 7))}.".capitalize() for _ in range(sentences))


class Scripted:
    """An author that writes at once; what it was asked for is kept."""

    made = 0
    asked: tuple[str, ...] = ()
    killed_after: int | None = None  # parts of answers

    def __init__(self, *_: Any) -> None:
        type(self).made += 1

    def turns(self, count: int) -> list[str]:
        type(self).asked += ("turns",)
        return [f"Write a note about {WORDS[n % 50]} number {n}" for n in range(count)]

    def documents(self, count: int) -> list[Document]:
        type(self).asked += ("documents",)
        return [Document(text_of(n, 8)) for n in range(count)]

    def answers(self, messages: Sequence[str]) -> list[str | None]:
        if self.killed_after is not None and self.asked.count("answers") >= self.killed_after:
            raise KeyboardInterrupt
        type(self).asked += ("answers",)
        found: list[str | None] = []
        for message in messages:
            source, _, _ = message.rpartition("\n\n")  # the text comes first
            found.append(" ".join(split_sentences(source)[::-1][:2]) if source else text_of(message, 2))
        return found

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [random.Random(statement).random() for _, statement in pairs]


def save_tiny(folder: Path, *, chats: bool = True, kind: str = "llama", **sizes: Any) -> str:
    tokenizer = byte_level_tokenizer()
    if not chats:
        tokenizer.chat_template = None
    sizes = {"num_hidden_layers": 3, "max_position_embeddings": 2048} | sizes
    for part in (tiny_model(kind, vocab_size=len(tokenizer), **sizes), tokenizer):
        part.save_pretrained(folder)
    return str(folder)


def write_rows(folder: Path, make: Callable[..., Any], options: TeachOptions = OPTIONS, **given: Any) -> Rows:
    made = Rows(folder, options, given.pop("reads", lambda _: True), lambda _: None)
    made.write(make, given.pop("texts", ()), given.pop("human", ()))
    return made


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def data_file(folder: Path, *lines: dict[str, Any]) -> str:
    file = folder / "human.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)
