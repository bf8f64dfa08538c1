"""Let an instruct model write its own training rows: prompts, documents, and answers of many lengths.

    python study/teach/rows.py MODEL OUT [--texts FILE.jsonl …] [--turns N] [--documents N] [--asks N] [--seconds S]

The model invents user turns (the chat template up to an open user turn, and a few first words of ours), writes
documents of many kinds, and answers: its own turns, and instructions over its documents and over given texts
(``text`` of each row), each asked for a length. It answers greedily. A row keeps its prompt with the length that the
answer really has. Left out are answers that were cut, break off, loop, are marked up, begin with "Sure!", copy their
text, or have a number or name that their text does not have. Writes OUT.train.jsonl and OUT.validation.jsonl, and
prints what was left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from impatience.control.attach import attach
from impatience.control.storage import load_base
from impatience.data import Encoder, Request
from impatience.decoding.generator import TextGenerator
from impatience.lengths import Unit, ends_sentence, measure, split_sentences
from impatience.looping import is_looping

PROMPTS = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
_PROGRAMS = re.compile(
    r"\b(code|function|python|javascript|program|algorithm|sql|html|array|words?|sentences?)\b|[`{}<>=]"
)
_BOILERPLATE = re.compile(
    r"(sure|certainly|of course|here is|here's|here are|absolutely|as an ai|i'm sorry|title:|summary:)"
)
_MARKUP = re.compile(r"```|\*\*|##|\|")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass
class Ask:
    """A prompt with a hole for the length."""

    form: str  # an instruction with {} for the length, or a whole turn
    unit: str  # unit of the length, or "none"
    length: int  # length asked for
    text: str = ""  # the text that the instruction is about; "" for a turn

    def prompt(self, length: int) -> str:
        """Return the prompt for a length."""
        noun = self.unit if length != 1 else self.unit.removesuffix("s")
        asked = "" if self.unit == "none" else f" in {length} {noun}"
        if self.text:
            return f"{self.form.format(asked)}\n\n{self.text}"
        return self.form + (f" Answer{asked}." if asked else "")


class Author:
    """A model that writes turns, documents and answers."""

    def __init__(self, name: str, chance: random.Random) -> None:
        base, self.tokenizer = load_base(name, dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32)
        self.base = base.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        if self.base.generation_config.pad_token_id is None:
            self.base.generation_config.pad_token_id = self.tokenizer.pad_token_id
        model = attach(self.base, "none", tokenizer=self.tokenizer)
        self.generator, self.chance = TextGenerator(model, Encoder(self.tokenizer, False, "chat", 10**6)), chance

    @torch.no_grad()
    def turns(self, count: int) -> list[str]:
        """Invent user turns, about so many; those about programs or lengths are left out."""
        mark = "@@@@"
        chat = self.tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
        head, openings = chat.split(mark)[0], PROMPTS["openings"]
        begun = [head + opening for opening in openings for _ in range(max(1, count // len(openings)))]
        self.tokenizer.padding_side = "left"
        turns = []
        for start in range(0, len(begun), 512):
            batch = self.tokenizer(
                begun[start : start + 512], return_tensors="pt", padding=True, add_special_tokens=False
            )
            ids = self.base.generate(
                **batch.to(self.base.device), do_sample=True, top_p=0.95, top_k=0, max_new_tokens=70
            )
            for before, row in zip(begun[start:], ids[:, batch["input_ids"].shape[1] :].tolist(), strict=False):
                if self.tokenizer.eos_token_id in row:
                    written = self.tokenizer.decode(
                        row[: row.index(self.tokenizer.eos_token_id)], skip_special_tokens=True
                    )
                    turns.append(" ".join((before.removeprefix(head) + written).split()))
        good = [turn for turn in turns if 4 <= len(turn.split()) <= 60 and not _PROGRAMS.search(turn.lower())]
        return list(dict.fromkeys(good))

    def documents(self, count: int) -> list[str]:
        """Write documents."""
        prompts = []
        for _ in range(count):
            kind, subject = self.chance.choice(PROMPTS["kinds"]), self.chance.choice(PROMPTS["subjects"])
            language = self.chance.choice(
                [""] * 7 + [" Write it in German.", " Write it in French.", " Write it in Spanish."]
            )
            words = self.chance.choice((80, 150, 300, 500))
            prompts.append(
                f"Write a {kind} about {subject}, with names, places, dates and numbers, in about {words} words. Write "
                f"plain text without headings.{language}"
            )
        texts = [text for text in self.answers(prompts) if text and len(text.split()) >= 40]
        return [text for text in texts if not _MARKUP.search(text) and not re.search(r"\[[A-Z][^\]]*\]", text)]

    def answers(self, prompts: Sequence[str], limit: int = 900) -> list[str | None]:
        """Answer prompts greedily; None where the limit cut the answer."""
        requests = [Request(str(number), prompt, 1, Unit.TOKENS) for number, prompt in enumerate(prompts)]
        if not requests:
            return []
        results = self.generator.generate_without_signal(requests, limit=limit, no_loops=8, do_sample=False)
        return [result.text if result.ended else None for result in results]


def asks(texts: Sequence[str], turns: Sequence[str], each: int, chance: random.Random) -> list[Ask]:
    """Return what to ask: ``each`` instructions a text, and half as many lengths a turn."""

    def length(least: float, most: float) -> tuple[str, int]:
        words = round(math.exp(chance.uniform(math.log(least), math.log(max(least, most)))))
        unit = chance.choices(("words", "sentences", "characters", "none"), (6, 1, 1, 2))[0]
        return unit, {"words": words, "sentences": max(1, words // 18), "characters": 6 * words, "none": 0}[unit]

    found = []
    for text in texts:
        for _ in range(each):
            if chance.random() < 0.25:
                found.append(Ask(chance.choice(PROMPTS["short_tasks"]), *length(5, 30), text))
            else:
                found.append(Ask(chance.choice(PROMPTS["tasks"]), *length(10, min(400, 0.6 * len(text.split()))), text))
    for turn in turns:
        ended = turn if turn[-1] in ".!?" else f"{turn}."
        found += [Ask(ended, *length(12, 500)) for _ in range(max(1, each // 2))]
    chance.shuffle(found)
    return found


def fault(ask: Ask, answer: str | None) -> str:
    """Return why an answer is left out; "" if it is kept."""
    if answer is None:
        return "cut"
    if len(answer.split()) < 2:
        return "empty"
    if _BOILERPLATE.match(answer.lower()):
        return "boilerplate"
    if _MARKUP.search(answer):
        return "markup"
    if is_looping(answer):
        return "loops"
    if not ends_sentence(answer) and not ask.form.startswith(("Write a title", "Write a headline")):
        return "breaks off"
    if ask.text and foreign(answer, ask.text):
        return "foreign"
    if ask.text and copied(answer, ask.text) > 0.6:
        return "copied"
    return ""


def foreign(answer: str, source: str) -> list[str]:
    """Return numbers, and capitalised words inside sentences, that the source does not have; inflection is allowed."""
    known = source.lower()
    words, numbers = set(_WORD.findall(known)), set(re.findall(r"\d+", known.replace(",", "")))
    found = [number for number in re.findall(r"\d+", answer.replace(",", "")) if number not in numbers]
    for sentence in split_sentences(answer):
        for match in list(_WORD.finditer(sentence))[1:]:
            stem = match.group().lower()[: max(4, len(match.group()) - 3)]
            if match.group()[0].isupper() and len(stem) > 1 and not any(word.startswith(stem) for word in words):
                found.append(match.group())
    return found


def copied(answer: str, source: str, size: int = 8) -> float:
    """Return the share of an answer's word sequences that its source has; 0 for a short answer."""
    of, have = answer.lower().split(), source.lower().split()
    known = {tuple(have[start : start + size]) for start in range(len(have))}
    grams = [tuple(of[start : start + size]) for start in range(len(of) - size + 1)]
    return sum(gram in known for gram in grams) / len(grams) if len(grams) > size else 0.0


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--turns", type=int, default=2400)
    parser.add_argument("--documents", type=int, default=340)
    parser.add_argument("--asks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=math.inf, help="ask nothing more after so many seconds")
    wanted = parser.parse_args()
    begun, chance = time.monotonic(), random.Random(0)
    torch.manual_seed(0)
    author = Author(wanted.model, chance)
    turns, texts = author.turns(wanted.turns), author.documents(wanted.documents)
    print(f"{time.monotonic() - begun:.0f} s: {len(turns)} turns, {len(texts)} documents", flush=True)
    for file in wanted.texts:
        texts += [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    chance.shuffle(texts)
    held = {"validation": slice(0, len(texts) // 20), "train": slice(len(texts) // 20, None)}
    held_turns = {"validation": slice(0, len(turns) // 20), "train": slice(len(turns) // 20, None)}
    for split in held:
        todo, rows, counts = asks(texts[held[split]], turns[held_turns[split]], wanted.asks, chance), [], Counter[str]()
        for start in range(0, len(todo), 2000):
            if time.monotonic() - begun > wanted.seconds:
                print(f"time is over: {len(todo) - start} of {len(todo)} were not asked")
                break
            part = todo[start : start + 2000]
            for ask, answer in zip(part, author.answers([ask.prompt(ask.length) for ask in part]), strict=True):
                counts[reason := fault(ask, answer)] += 1
                if not reason and answer:
                    length = 0 if ask.unit == "none" else measure(answer, Unit(ask.unit))
                    rows.append({"id": f"{split}-{len(rows)}", "source": ask.prompt(length), "target": answer})
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        wanted.out.with_name(f"{wanted.out.name}.{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        words = sorted(len(row["target"].split()) for row in rows) or [0]
        spread = [words[round(share * (len(words) - 1))] for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
        print(
            f"{time.monotonic() - begun:.0f} s: {split}: {len(rows)} rows of {spread} words; {dict(counts)}", flush=True
        )


if __name__ == "__main__":
    main()
