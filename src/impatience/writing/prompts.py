"""How a text and a task are put to a model, and how much of it the model reads.

A model that was trained by a recipe reads a text as it did in training. Any other is asked in words if it takes chats,
the length among them, and otherwise reads the text as it stands.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from threading import RLock
from typing import Any

import jinja2

from impatience.control.generation import step_budget
from impatience.control.model import LengthControlled
from impatience.data import Encoder, Example, Request
from impatience.errors import DataError, SourceError, TargetError
from impatience.families import unwrap
from impatience.lengths import Target, Unit, measure

log = logging.getLogger(__name__)

_ENDLESS = 1_000_000
"""A limit of so many tokens is none; tokenizers that know none give a number like 10**30."""
_UNKNOWN = 1024
"""Tokens of a source that a model reads where nothing says how many it can."""
_DENSEST = {Unit.TOKENS: 1.0, Unit.WORDS: 4.0, Unit.CHARACTERS: 4.0, Unit.SENTENCES: 96.0}
"""The most tokens that one is expected to take, however dense the source is."""
_SAMPLE = 20_000
"""Characters of a source that say how dense it is; to find all sentences takes long where quotes stay open."""
_REQUESTS = {
    "summarize": "Summarize the following text{length}.",
    "rewrite": "Rewrite the following text{length}.",
    "title": "Write a title for the following text{length}.",
    "question": "Write a question{length} that the following text answers.",
    "chat": "",
}


class Prompts:
    """Puts texts to one model, in as many threads as one likes.

    Args:
        model: What reads.
        trained: How sources were put to it in training: template, prefix and max_source_tokens, and all its tasks;
            nothing for a model that was not trained by a recipe.
    """

    def __init__(self, model: LengthControlled, trained: Mapping[str, Any] | None = None) -> None:
        self.vocabulary = model.vocabulary
        self.tokenizer = self.vocabulary.require_tokenizer(Unit.WORDS)
        self.trained = dict(trained or {})
        self.encoder_decoder, self._model = model.family.encoder_decoder, model
        self.room = model.family.room(unwrap(model.base_model))
        self._chat = not self.encoder_decoder and self.tokenizer.chat_template is not None
        self._encoders: dict[str, Encoder] = {}
        self._announced: set[str] = set()
        self._lock = RLock()  # a tokenizer is set anew by each call, so two at a time may read with wrong settings

    @property
    def takes_chats(self) -> bool:
        """Whether the model can be asked in words, and be told what was said before."""
        return self._chat and not self.trained

    def tells_length(self, unit: Unit) -> bool:
        """Tell whether the model learns how long a text is to be, by its signal or in words."""
        return self._model.steers or (self.takes_chats and unit is not Unit.TOKENS)

    @property
    def task(self) -> str:
        """What the model does when no task is named."""
        return str(self.trained.get("template", "summarize"))

    def encoder(self, task: str | None = None) -> Encoder:
        """Return what puts texts to the model as in training, and cuts none."""
        name = task or self.task
        if name not in self._encoders:
            self._encoders[name] = Encoder(
                self.tokenizer, self.encoder_decoder, name, _ENDLESS, prefix=self.trained.get("prefix", "")
            )
        return self._encoders[name]

    def reads(self, ask: Request) -> list[int]:
        """Return the ids that the model reads, all of them.

        Raises:
            SourceError: If the task needs a source of another form.
        """
        self._announce(ask.task)
        if ask.before and not self.takes_chats:
            raise SourceError("This model reads one text: it takes no system message and no earlier turns.")
        with self._lock:
            return self._reads(ask)

    def _reads(self, ask: Request) -> list[int]:
        if self.trained:
            try:
                return self.encoder(ask.task).reads(Example(ask.id or "The text", ask.text, ""))
            except DataError as error:
                raise SourceError(str(error)) from error
        if not self._chat:
            return list(self.tokenizer(ask.text, split_special_tokens=True, verbose=False)["input_ids"])
        length = "" if ask.unit is Unit.TOKENS else f" in {ask.target} {ask.unit}"
        request = _REQUESTS[ask.task or self.task].format(length=length)
        messages = [{"role": role, "content": text} for role, text in ask.before]
        messages.append({"role": "user", "content": f"{request}\n\n{ask.text.strip()}".strip()})
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise SourceError(f"The model's chat template does not take these messages: {error}.") from error
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def count(self, text: str) -> int:
        """Count the tokens of a text alone."""
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        with self._lock:
            return len(self.tokenizer(text, **options)["input_ids"])

    def output(self, ask: Request, source: int) -> int:
        """Estimate how many tokens a text will take, from how densely its source is written.

        Args:
            ask: What is to be written.
            source: Tokens that are read.
        """
        if ask.unit is Unit.TOKENS:
            return ask.target + 1
        text = ask.text.strip()
        sample = text[:_SAMPLE]
        density = max(ask.unit.tokens, source * len(sample) / len(text) / max(1, measure(sample, ask.unit)))
        return math.ceil(ask.target * min(density, _DENSEST[ask.unit])) + 1

    def limit(self, output: int) -> int:
        """Return how many tokens the model can read before it writes so many; a quarter of its positions at least."""
        limits = [int(self.trained.get("max_source_tokens") or self.tokenizer.model_max_length)]
        if self.room is not None:
            limits.append(self.room if self.encoder_decoder else max(self.room - output, self.room // 4))
        least = min(limits)
        return least if least < _ENDLESS else _UNKNOWN

    def check(self, ask: Request, source: int) -> None:
        """Refuse what the model has no room to write.

        Args:
            ask: What is to be written.
            source: Tokens that are read.

        Raises:
            TargetError: If it is too long for the model.
        """
        room = None if self.room is None else self.room - (1 if self.encoder_decoder else source)
        try:
            step_budget(Target(ask.unit, (ask.target,)), ask.landing, room)
        except TargetError:
            raise TargetError(
                f"{ask.target:,} {ask.unit} are more than this model can write: beside the source it has room for "
                f"{max(0, room or 0):,} tokens. Ask for less, or use a model with a longer context."
            ) from None

    def overhead(self, ask: Request) -> int:
        """Count the tokens that are read besides the source."""
        return max(0, len(self.reads(replace(ask, text="x"))) - 1)

    def splits(self, ask: Request) -> bool:
        """Tell whether a text can be read in parts; an answer with its passage cannot."""
        return not (self.trained and self.encoder(ask.task).template.form)

    def _announce(self, task: str | None) -> None:
        """Say once what a model was not made for."""
        if task is None or task in self._announced:
            return
        self._announced.add(task)
        known = self.trained.get("tasks") or [self.task]
        if self.trained and task not in known:
            named = " and ".join(map(repr, known))
            log.warning("This model was trained with the template %s, not %r: expect less of it.", named, task)
        elif not self.trained and not self._chat:
            log.warning("This model takes no instruction: it reads the text as it stands, whatever the task is.")
