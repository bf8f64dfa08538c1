"""Prompts: how a text and a task are put to a model, and how much of it the model reads.

A model that was trained by a recipe reads a text as in training. Any other is asked in words if it takes chats, with
the length in the instruction, and otherwise reads the text as it stands.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from threading import RLock
from typing import Any

from impatience.control.generation import step_budget
from impatience.control.model import LengthControlled
from impatience.data import Encoder, Request
from impatience.errors import DataError, SourceError, TargetError
from impatience.families import unwrap
from impatience.lengths import Target, Unit, measure
from impatience.user_text import encode_chats, encode_text

log = logging.getLogger(__name__)

_ENDLESS = 1_000_000  # a limit of so many tokens is none; tokenizers that know none give a number like 10**30
_DEFAULT_LIMIT = 1024  # tokens of a source that a model reads where nothing sets a limit
_DENSEST = {Unit.TOKENS: 1.0, Unit.WORDS: 4.0, Unit.CHARACTERS: 4.0, Unit.SENTENCES: 96.0}
"""The most tokens expected for one of each unit, however dense the source is."""
_SAMPLE = 20_000
"""Characters of a source that its density is measured on; splitting sentences is slow where quotes stay open."""
_INSTRUCTIONS = {
    "summarize": "Summarize the following text{length}.",
    "rewrite": "Rewrite the following text{length}.",
    "title": "Write a title for the following text{length}.",
    "question": "Write a question{length} that the following text answers.",
    "chat": "",
}


class Prompts:
    """Encodes prompts for one model; threads may share it.

    ``trained`` are the prompt settings of its training: template, prefix, max_source_tokens, and all its tasks; empty
    for a model that was not trained by a recipe.
    """

    def __init__(self, model: LengthControlled, trained: Mapping[str, Any] | None = None) -> None:
        self.vocabulary = model.vocabulary
        self.tokenizer = self.vocabulary.require_tokenizer(Unit.WORDS)
        self.trained = dict(trained or {})
        self.encoder_decoder, self._model = model.family.encoder_decoder, model
        inner = unwrap(model.base)
        self.room, self._source_room = model.family.room(inner), model.family.source_room(inner)
        self._chat = not self.encoder_decoder and self.tokenizer.chat_template is not None
        self._encoders: dict[str, Encoder] = {}
        self._announced: set[str] = set()
        self._lock = RLock()  # each call changes the tokenizer's settings, so two at a time may read wrong ones

    @property
    def takes_chats(self) -> bool:
        """True if the model takes instructions in words, and earlier messages."""
        return self._chat and not self.trained

    def knows_length(self, unit: Unit) -> bool:
        """Check whether the model learns the target of a text, by its signal or in words."""
        return self._model.steers or (self.takes_chats and unit is not Unit.TOKENS)

    def tries(self, request: Request, tries: int) -> int:
        """Return the number of tries of a request: 1 if it has a prefix or the model does not know its length."""
        once = request.prefix or request.draw or not self.knows_length(request.unit)
        return 1 if once else tries

    @property
    def task(self) -> str:
        """The task of requests that name none."""
        return str(self.trained.get("template", "summarize"))

    def encoder(self, task: str | None = None) -> Encoder:
        """Return an encoder that puts texts to the model as in training, and cuts none."""
        name = task or self.task
        if name not in self._encoders:
            self._encoders[name] = Encoder(
                self.tokenizer, self.encoder_decoder, name, _ENDLESS, prefix=self.trained.get("prefix", "")
            )
        return self._encoders[name]

    def encode(self, request: Request) -> list[int]:
        """Return the ids of a request's whole prompt, or raise SourceError if its task needs another form of source."""
        self._announce(request.task)
        if request.history and not self.takes_chats:
            raise SourceError("This model reads one text: it takes no system message and no earlier turns.")
        with self._lock:
            return self._encode(request)

    def _encode(self, request: Request) -> list[int]:
        if self.trained:
            try:
                return self.encoder(request.task).prompt(request.as_example())
            except DataError as error:
                raise SourceError(str(error)) from error
        if not self._chat:
            return encode_text(self.tokenizer, request.text)
        length = "" if request.unit is Unit.TOKENS else f" in {request.target} {request.unit}"
        instruction = _INSTRUCTIONS[request.task or self.task].format(length=length)
        messages = [{"role": role, "content": text} for role, text in request.history]
        messages.append({"role": "user", "content": f"{instruction}\n\n{request.text.strip()}".strip()})
        return encode_chats(self.tokenizer, [messages])[0]

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text alone."""
        with self._lock:
            return len(encode_text(self.tokenizer, text, add_special_tokens=False))

    def estimate_output(self, request: Request, source: int) -> int:
        """Estimate the number of tokens of a text from the density of its source, whose prompt has so many tokens."""
        if request.unit is Unit.TOKENS:
            return request.target + 1
        text = request.text.strip()
        sample = text[:_SAMPLE]
        density = max(request.unit.tokens, source * len(sample) / len(text) / max(1, measure(sample, request.unit)))
        return math.ceil(request.target * min(density, _DENSEST[request.unit])) + 1

    def source_limit(self, output: int) -> int:
        """Return the most tokens that the model reads before it writes so many; at least a quarter of its positions."""
        limits = [int(self.trained.get("max_source_tokens") or self.tokenizer.model_max_length)]
        room = self._source_room
        if room is not None:
            limits.append(room if self.encoder_decoder else max(room - output, room // 4))
        least = min(limits)
        return least if least < _ENDLESS else _DEFAULT_LIMIT

    def fits(self, request: Request, source: int) -> bool:
        """Check whether the model can read a request's prompt of so many tokens at once."""
        return source <= self.source_limit(self.estimate_output(request, source))

    def check_room(self, request: Request, source: int) -> None:
        """Check that the model has room for a text after a prompt of so many tokens, else raise TargetError."""
        room = None if self.room is None else self.room - (1 if self.encoder_decoder else source)
        try:
            step_budget(Target(request.unit, (request.target,)), request.landing, room)
        except TargetError:
            raise TargetError(
                f"{request.target:,} {request.unit} are more than this model can write: beside the source it has room "
                f"for {max(0, room or 0):,} tokens. Ask for less, or use a model with a longer context."
            ) from None

    def overhead(self, request: Request) -> int:
        """Count the tokens of a prompt besides the source."""
        return max(0, len(self.encode(replace(request, text="x"))) - 1)

    def can_split(self, request: Request) -> bool:
        """Check whether a text can be read in parts; an answer with its passage cannot."""
        return not (self.trained and self.encoder(request.task).template.form)

    def _announce(self, task: str | None) -> None:
        """Warn once about a task that the model was not made for."""
        if task is None or task in self._announced:
            return
        self._announced.add(task)
        known = self.trained.get("tasks") or [self.task]
        if self.trained and task not in known:
            templates = " and ".join(map(repr, known))
            log.warning("This model was trained with the template %s, not %r: expect less of it.", templates, task)
        elif not self.trained and not self._chat:
            log.warning("This model takes no instruction: it reads the text as it stands, whatever the task is.")
