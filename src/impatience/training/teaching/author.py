"""The author: the instruct model that writes turns, documents and answers, and checks its answers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import torch

from impatience.control.attach import attach
from impatience.control.storage import load_base
from impatience.data import Encoder, Request
from impatience.decoding.generator import TextGenerator
from impatience.errors import OptionError
from impatience.grounding.support import SupportReader
from impatience.lengths import Unit
from impatience.sources import resolve
from impatience.training.teaching.asks import Document, prompts
from impatience.training.teaching.filters import is_document, is_general_turn

TURN_TOKENS, DOCUMENT_TOKENS, ANSWER_TOKENS = 70, 800, 720  # the most tokens of each
DOCUMENT_WORDS = (100, 180, 300, 450)
FOREIGN = 0.12  # share of the documents in other languages
DRAWN = 0.95  # of the likelihood, that tokens are drawn from
DOCUMENT_TEMPERATURE = 0.7  # small models lose the thread of a long text at 1
_BATCH_TEXTS = {"cuda": 512, "cpu": 16}  # texts that are drawn at the same time
_MARK = "@@@@"


class Author:
    """A chat model in its own words, without a length signal."""

    def __init__(self, name: str, seed: int) -> None:
        cuda = torch.cuda.is_available()
        base, self.tokenizer = load_base(resolve(name), dtype=torch.bfloat16 if cuda else torch.float32)
        if self.tokenizer.chat_template is None or base.config.is_encoder_decoder:
            raise OptionError(
                f"{name} takes no chats, so it cannot write the rows. Name an instruct model that can with --teacher."
            )
        self.device = "cuda" if cuda else "cpu"
        self.base = base.to(self.device).eval()
        if self.base.generation_config.pad_token_id is None:
            self.base.generation_config.pad_token_id = self.tokenizer.pad_token_id or self.tokenizer.eos_token_id
        model = attach(self.base, "none", tokenizer=self.tokenizer)
        self._generator = TextGenerator(model, Encoder(self.tokenizer, False, "chat", 10**6))
        self._chance, self._seed = random.Random(f"{seed} author"), seed

    def turns(self, count: int) -> list[str]:
        """Invent about so many turns of users; those about programs or lengths are left out."""
        torch.manual_seed(self._seed)
        chat = self.tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
        head, openings = chat.split(_MARK)[0], prompts()["openings"]
        begun = [opening for opening in openings for _ in range(max(1, count // len(openings)))][:count]
        written = self._draw([head + opening for opening in begun], TURN_TOKENS)
        turns = [" ".join((a + b).split()) for a, b in zip(begun, written, strict=True) if b]
        return list(dict.fromkeys(filter(is_general_turn, turns)))

    def documents(self, count: int) -> list[Document]:
        """Write about so many documents of all kinds; those that are cut, marked up or too short are left out."""
        torch.manual_seed(self._seed + 1)  # the same, also where a run is continued that has its turns
        asked, languages = [], []
        for _ in range(count):
            kind, subject = self._chance.choice(prompts()["kinds"]), self._chance.choice(prompts()["subjects"])
            others = sorted(prompts()["languages"])
            language = self._chance.choice(others) if self._chance.random() < FOREIGN else "en"
            also = prompts()["languages"][language]["document"] if language != "en" else ""
            asked.append(
                f"Write a {kind} about {subject}, with names, places, dates and numbers, in about "
                f"{self._chance.choice(DOCUMENT_WORDS)} words. Write plain text without headings.{also}"
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
        """Answer messages with the likeliest tokens; None where the limit cut the answer."""
        requests = [Request(str(number), message, 1, Unit.TOKENS) for number, message in enumerate(messages)]
        if not requests:
            return []
        results = self._generator.generate_without_signal(requests, limit=ANSWER_TOKENS, no_loops=8, do_sample=False)
        return [result.text if result.ended else None for result in results]

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return, for pairs of a text and a statement, how far the model believes that the text states it: P(Yes)."""
        return SupportReader(self.base, self.tokenizer).support(pairs)

    @torch.inference_mode()
    def _draw(self, begun: Sequence[str], most: int, temperature: float = 1.0) -> list[str]:
        """Continue prompts by drawing tokens; "" where the limit cut the text."""
        written, size = [], _BATCH_TEXTS[self.device]
        eos = self.tokenizer.eos_token_id
        self.tokenizer.padding_side = "left"
        for start in range(0, len(begun), size):
            batch = self.tokenizer(
                list(begun[start : start + size]), return_tensors="pt", padding=True, add_special_tokens=False
            ).to(self.device)
            options: dict[str, Any] = {"do_sample": True, "top_p": DRAWN, "top_k": 0, "max_new_tokens": most}
            options["temperature"] = temperature
            ids = self.base.generate(**batch, **options)[:, batch["input_ids"].shape[1] :].tolist()
            texts = [row[: row.index(eos)] if eos in row else [] for row in ids]
            written += [self.tokenizer.decode(row, skip_special_tokens=True) for row in texts]
        return written
