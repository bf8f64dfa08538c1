"""Asks: which texts the author is asked for, of which lengths, and the rows that are made of its answers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from impatience.data import instruct
from impatience.lengths import Unit, measure, name_length, split_sentences

SHORT = (5, 28)  # words of a title and the like
LONG = (10, 400)  # words of other texts; over a document at most ``SHARE`` of its words
TURN = (12, 500)  # words of answers to turns
SHARE = 0.6
SHORT_TASKS = 0.25  # share of the asks over a document that are for a title and the like
# Lengths up to so many words, and how the author is asked for them: it writes shorter when asked for sentences.
_PHRASES = (
    (14, "in one short sentence"),
    (28, "in one sentence"),
    (48, "in two short sentences"),
    (70, "in two or three sentences"),
    (math.inf, "in about {words} words"),
)
UNNAMED = 0.2  # share of the rows whose prompt does not name the length: the signal alone says it
WORDS_A_PREFIX = 30  # a long answer gives one beginning a row for each so many words; one below 60 words gives one


@cache
def prompts() -> dict[str, Any]:
    """Return the words that the author is prompted with."""
    text = files(__package__).joinpath("prompts.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


@dataclass(frozen=True)
class Document:
    """A text to give instructions over."""

    text: str
    language: str = "en"  # ISO code


@dataclass(frozen=True)
class Ask:
    """An instruction with the length to ask for."""

    instruction: str
    words: int  # length asked for
    text: str = ""  # the text that the instruction is about; empty for a turn
    title: bool = False  # whether the answer may be less than a sentence

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def message(self) -> str:
        """Return what the author reads. To be told to stay with the text would make it copy the text instead."""
        if not self.text:
            return f"{self.instruction} Answer in about {self.words} words of plain prose, without headings or lists."
        length = next(phrase for most, phrase in _PHRASES if self.words <= most).format(words=self.words)
        if self.instruction[-1] != ".":
            return instruct(f"{self.instruction} Answer {length}.", self.text)
        return instruct(f"{self.instruction[:-1]} {length}.", self.text)


def make_asks(documents: Sequence[Document], turns: Sequence[str], each: int, chance: random.Random) -> list[Ask]:
    """Return what to ask, in random order: ``each`` instructions over a document, and half as many lengths a turn."""
    found = []
    for document in documents:
        most = min(LONG[1], SHARE * len(document.text.split()))
        for _ in range(each):
            if document.language != "en":
                tasks = prompts()["languages"][document.language]["tasks"]
                found.append(Ask(chance.choice(tasks), _length(LONG[0], most, chance), document.text))
            elif title := chance.random() < SHORT_TASKS:
                words = _length(SHORT[0], min(SHORT[1], most), chance)
                found.append(Ask(chance.choice(prompts()["short_tasks"]), words, document.text, title))
            else:
                tasks = [*prompts()["summaries"], *prompts()["tasks"]]
                found.append(Ask(chance.choice(tasks), _length(LONG[0], most, chance), document.text))
    for turn in turns:
        ended = turn if turn[-1] in ".!?" else f"{turn}."
        found += [Ask(ended, _length(*TURN, chance)) for _ in range(max(1, each // 2))]
    chance.shuffle(found)
    return found


def _length(least: float, most: float, chance: random.Random) -> int:
    return round(math.exp(chance.uniform(math.log(least), math.log(max(least, most)))))


def rows_of(ask: Ask, answer: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yield prompts and targets: the answer, and some of its beginnings that end with a sentence.

    Prompts name the length that the target has, in words, characters or sentences, or none.
    """
    sentences = split_sentences(answer)
    counts = list(range(1, len(sentences)))
    most = max(1, len(answer.split()) // WORDS_A_PREFIX)
    chosen = chance.sample(counts, min(most, len(counts))) if "\n" not in answer.strip() else []
    for target in [answer, *(" ".join(sentences[:count]) for count in chosen)]:
        yield row_of(ask, target, chance)


def row_of(ask: Ask, target: str, chance: random.Random) -> tuple[str, str]:
    """Return a prompt that names the length of a target, or none, and the target."""
    return instruct(ask.instruction, ask.text, _name_length(target, chance)), target


def _name_length(target: str, chance: random.Random) -> str:
    if chance.random() < UNNAMED:
        return ""
    unit = chance.choices((Unit.WORDS, Unit.CHARACTERS, Unit.SENTENCES), (6, 1, 1))[0]
    return name_length(measure(target, unit), unit)
