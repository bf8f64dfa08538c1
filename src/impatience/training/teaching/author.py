"""The author: the instruct model that writes turns, documents and answers, and checks its answers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import torch

from impatience.control.attach import attach
from impatience.control.generation import eos_ids
from impatience.control.storage import load_base
from impatience.data import Encoder, Request
from impatience.decoding.generator import TextGenerator
from impatience.decoding.kv_cache import token_bytes
from impatience.decoding.packing import memory_budget
from impatience.families import family_of, text_config
from impatience.grounding.support import SupportReader
from impatience.grounding.torch_reading import TorchReader
from impatience.lengths import Unit
from impatience.sources import resolve
from impatience.training.teaching.asks import Document, prompts
from impatience.training.teaching.filters import is_document, is_general_turn

TURN_TOKENS, DOCUMENT_TOKENS, ANSWER_TOKENS = 70, 800, 720  # the most tokens of each
DOCUMENT_WORDS = (100, 180, 300, 450)
FOREIGN = 0.12  # share of the documents in other languages
DRAWN = 0.95  # of the likelihood, that tokens are drawn from
DOCUMENT_TEMPERATURE = 0.7  # small models lose the thread of a long text at 1
_BATCH_TEXTS = {"cuda": 512, "cpu": 16}  # the most texts that ``generate`` writes at the same time
_CHECK_TOKENS = 64  # what the question after a check has more than the text and the statement
_MARK = "@@@@"


class Author:
    """A chat model in its own words, without a length signal; ``Pupil.check_chats`` refuses other models."""

    def __init__(self, name: str, seed: int) -> None:
        cuda = torch.cuda.is_available()
        base, self.tokenizer = load_base(resolve(name), dtype=torch.bfloat16 if cuda else torch.float32)
        self.device = "cuda" if cuda else "cpu"
        self.base = base.to(self.device).eval()
        self.seed, self._eos = seed, eos_ids(self.base.generation_config)  # often more than the tokenizer's one
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.convert_ids_to_tokens(self._eos[0])
        self.base.generation_config.pad_token_id = self.tokenizer.pad_token_id
        model = attach(self.base, "none", tokenizer=self.tokenizer)
        self._generator = TextGenerator(model, Encoder(self.tokenizer, False, "chat", 10**6))
        family = family_of(self.base)
        # Half of the positions are for what it reads, half for what it writes.
        self._half = (family.room(self.base) or 10**6) // 2
        self._token_bytes = token_bytes(text_config(self.base), len(family.layers_of(self.base)), self.base.dtype)

    def turns(self, count: int) -> list[str]:
        """Invent about so many turns of users; those about programs or lengths are left out."""
        torch.manual_seed(self.seed)  # for each of its works, so that a killed run goes on as it would have gone
        chat = self.tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
        head, openings = chat.split(_MARK)[0], prompts()["openings"]
        begun = [openings[number % len(openings)] for number in range(count)]
        written = self._draw([head + opening for opening in begun], TURN_TOKENS)
        turns = [" ".join((a + b).split()) for a, b in zip(begun, written, strict=True) if b]
        return list(dict.fromkeys(filter(is_general_turn, turns)))

    def documents(self, count: int) -> list[Document]:
        """Write about so many documents of all kinds; those that are cut, marked up or too short are left out."""
        torch.manual_seed(self.seed + 1)
        asked, languages, chance = [], [], random.Random(f"{self.seed} author")
        for _ in range(count):
            kind, subject = chance.choice(prompts()["kinds"]), chance.choice(prompts()["subjects"])
            others = sorted(prompts()["languages"])
            language = chance.choice(others) if chance.random() < FOREIGN else "en"
            also = prompts()["languages"][language]["document"] if language != "en" else ""
            asked.append(
                f"Write a {kind} about {subject}, with names, places, dates and numbers, in about "
                f"{chance.choice(DOCUMENT_WORDS)} words. Write plain text without headings.{also}"
            )
            languages.append(language)
        chats = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": ask}], tokenize=False, add_generation_prompt=True
            )
            for ask in asked
        ]
        texts = [
            re.sub(r"\n{3,}", "\n\n", text.strip()) for text in self._draw(chats, DOCUMENT_TOKENS, DOCUMENT_TEMPERATURE)
        ]
        pairs = zip(texts, languages, strict=True)
        return [Document(text, language) for text, language in pairs if text and is_document(text)]

    def answers(self, messages: Sequence[str]) -> list[str | None]:
        """Answer messages with the likeliest tokens; None where a limit cut the answer, or the message is too long."""
        requests = [Request(str(number), message, 1, Unit.TOKENS) for number, message in enumerate(messages)]
        prompts_of = self._generator.encode_sources(requests)
        fitting = [number for number, ids in enumerate(prompts_of) if len(ids) <= self._half]
        limit = min(ANSWER_TOKENS, max(1, self._half - _CHECK_TOKENS))
        options: dict[str, Any] = {"no_loops": 8, "do_sample": False}
        found: list[str | None] = [None] * len(messages)
        size = max(1, len(fitting))
        if fitting and not self._generator.can_use_loop(size, options):  # else the loop makes the batches
            size = self._rows(max(len(prompts_of[number]) for number in fitting) + limit)
        for start in range(0, len(fitting), size):
            part = fitting[start : start + size]
            sources = [prompts_of[number] for number in part]
            results = self._generator.generate_without_signal(
                [requests[number] for number in part], sources=sources, limit=limit, **options
            )
            for number, result in zip(part, results, strict=True):
                found[number] = result.text if result.ended else None
        return found

    def _rows(self, width: int) -> int:
        """Return how many texts of so many tokens ``generate`` writes at the same time."""
        budget = memory_budget(self.base.device, self._token_bytes)
        return max(1, min(_BATCH_TEXTS[self.device], budget // width))

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return, for pairs of a text and a statement, how far the model believes that the text states it: P(Yes)."""
        return SupportReader(TorchReader(self.base, self.tokenizer)).support(pairs)

    @torch.inference_mode()
    def _draw(self, begun: Sequence[str], most: int, temperature: float = 1.0) -> list[str]:
        """Continue prompts by drawing tokens; "" where the limit cut the text."""
        if not begun:
            return []
        written, most = [], min(most, self._half)
        self.tokenizer.padding_side = "left"
        size = self._rows(max(map(len, self.tokenizer(list(begun))["input_ids"])) + most)
        for start in range(0, len(begun), size):
            batch = self.tokenizer(
                list(begun[start : start + size]), return_tensors="pt", padding=True, add_special_tokens=False
            ).to(self.device)
            options: dict[str, Any] = {"do_sample": True, "top_p": DRAWN, "top_k": 0, "max_new_tokens": most}
            options["temperature"] = temperature
            ids = self.base.generate(**batch, **options)[:, batch["input_ids"].shape[1] :].tolist()
            ends = [next((place for place, token in enumerate(row) if token in self._eos), 0) for row in ids]
            texts = [row[:end] for row, end in zip(ids, ends, strict=True)]
            written += [self.tokenizer.decode(row, skip_special_tokens=True) for row in texts]
        return written
