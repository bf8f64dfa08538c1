"""Prompts: how an instruction and a text are put to a model, and how much of it the model reads.

A model that takes instructions, a chat model or one that was taught with the template ``instruct``, is asked in words,
with the length at the end of the instruction; a task is a shortcut for an instruction. A model that a recipe trained
for one task reads a text as in training, and any other reads the text as it stands: both refuse instructions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from threading import RLock
from typing import Any

from impatience.data import TASKS, TEMPLATES, Encoder, Example, Request, instruct
from impatience.decoding.base import ModelFacts
from impatience.decoding.packing import BUDGET
from impatience.errors import DataError, SourceError, TargetError, UnsupportedModelError
from impatience.lengths import Target, Unit, measure, name_length
from impatience.steps.budget import step_budget
from impatience.user_text import encode_chats, encode_text
from impatience.writing.languages import language_remark

log = logging.getLogger(__name__)

_ENDLESS = 1_000_000  # a limit of so many tokens is none; tokenizers that know none give a number like 10**30
_DEFAULT_LIMIT = 1024  # tokens of a source that a model reads where nothing sets a limit
_DENSEST = {Unit.TOKENS: 1.0, Unit.WORDS: 4.0, Unit.CHARACTERS: 4.0, Unit.SENTENCES: 96.0}
"""The most tokens expected for one of each unit, however dense the source is."""
_SAMPLE = 20_000
"""Characters of a source that its density is measured on; splitting sentences is slow where quotes stay open."""
_TAUGHT = "instruct"  # template of models that were taught to take any instruction


class Prompts:
    """Encodes prompts for one model; threads may share it.

    ``trained`` are the prompt settings of its training: template, prefix, max_source_tokens, and all its tasks; empty
    for a model that was not trained by a recipe.
    """

    def __init__(self, model: ModelFacts, trained: Mapping[str, Any] | None = None) -> None:
        self.vocabulary = model.vocabulary
        self.tokenizer = self.vocabulary.require_tokenizer(Unit.WORDS)
        self.trained = dict(trained or {})
        self.encoder_decoder, self._model = model.encoder_decoder, model
        self.room, self._source_room = model.room, model.source_room
        self._chat = not self.encoder_decoder and self.tokenizer.chat_template is not None
        self._encoders: dict[str, Encoder] = {}
        self._announced: set[str] = set()
        self._lock = RLock()  # each call changes the tokenizer's settings, so two at a time may read wrong ones

    @property
    def takes_instructions(self) -> bool:
        """True if the model takes instructions in words."""
        return self.trained.get("template") == _TAUGHT if self.trained else self._chat

    @property
    def takes_chats(self) -> bool:
        """True if the model takes instructions in words, and earlier messages."""
        return self._chat and self.takes_instructions

    def knows_length(self, unit: Unit) -> bool:
        """Check whether the model learns the target of a text, by its signal or in words."""
        return self._model.steers or (self.takes_instructions and unit is not Unit.TOKENS)

    def tries(self, request: Request, tries: int) -> int:
        """Return the number of tries of a request: 1 if it has a prefix or the model does not know its length."""
        once = request.prefix or request.draw or not self.knows_length(request.unit)
        return 1 if once else tries

    @property
    def task(self) -> str:
        """The task of requests that name none."""
        return "summarize" if self.takes_instructions else str(self.trained.get("template", "summarize"))

    @property
    def tasks(self) -> list[str]:
        """The tasks that the model can do on any text; none for a model that continues texts."""
        if self.takes_instructions:
            return list(TASKS)
        return [task for task in self._own_tasks if task in TASKS and not TEMPLATES[task].form] if self.trained else []

    @property
    def _own_tasks(self) -> list[str]:
        return list(self.trained.get("tasks") or [self.task])

    @property
    def _trained_for(self) -> str:
        *others, last = map(repr, self._own_tasks)
        return f"the tasks {', '.join(others)} and {last}" if others else f"the task {last}"

    def encoder(self, template: str | None = None) -> Encoder:
        """Return an encoder that puts texts to the model as in training, and cuts none."""
        name = template or str(self.trained.get("template", "summarize"))
        if name not in self._encoders:
            self._encoders[name] = Encoder(
                self.tokenizer, self.encoder_decoder, name, _ENDLESS, prefix=self.trained.get("prefix", "")
            )
        return self._encoders[name]

    def encode(self, request: Request) -> list[int]:
        """Return the ids of a request's whole prompt.

        Raises:
            SourceError: If its task needs another form of source, or the model takes no earlier messages.
            UnsupportedModelError: If the model does not take its instruction or task.
        """
        if not self.takes_instructions:
            self._check_task(request)
        if request.history and not self.takes_chats:
            raise SourceError("This model reads one text: it takes no system message and no earlier turns.")
        with self._lock:
            return self._encode(request)

    def _encode(self, request: Request) -> list[int]:
        try:
            if self.takes_chats:
                turns = (*request.history, ("user", self._message(request)))
                (ids,) = encode_chats(self.tokenizer, [[{"role": role, "content": text} for role, text in turns]])
                return ids
            if self.takes_instructions:
                return self.encoder().prompt(Example("The text", self._message(request), ""))
            if self.trained:
                return self.encoder(self._template(request)).prompt(request.as_example())
        except DataError as error:
            raise SourceError(str(error)) from error
        return encode_text(self.tokenizer, request.text)

    def _message(self, request: Request) -> str:
        """Return the message that asks for a request's text."""
        length = "" if request.unit is Unit.TOKENS else name_length(request.target, request.unit)
        if request.instruction.strip():
            return instruct(request.instruction, request.text, length)
        instruction = TASKS[request.task or self.task]
        return instruct(instruction, request.text, length) if instruction else instruct(request.text, "", length)

    def _template(self, request: Request) -> str:
        """Return the name of the template of a request's task."""
        return request.task or self.task

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text alone."""
        with self._lock:
            return len(encode_text(self.tokenizer, text, add_special_tokens=False))

    def estimate_output(self, request: Request, source: int) -> int:
        """Estimate the number of tokens of a text from the density of its source, whose prompt has so many tokens."""
        if request.unit is Unit.TOKENS:
            return request.target + 1
        text, unit = request.text.strip(), request.unit
        if not text:
            asked = request.instruction
            density = max(unit.tokens, self.count_tokens(asked) / max(1, measure(asked, unit)))
        else:
            sample = text[:_SAMPLE]
            density = max(unit.tokens, source * len(sample) / len(text) / max(1, measure(sample, unit)))
        return math.ceil(request.target * min(density, _DENSEST[unit])) + 1

    def source_limit(self, output: int) -> int:
        """Return the most tokens that the model reads before it writes so many; at least a quarter of its positions."""
        room, trained = self._source_room, self.trained.get("max_source_tokens")
        if trained:
            limits = [int(trained)]
        elif room is not None and not self.encoder_decoder:
            limits = [BUDGET]  # its positions are the limit; a tokenizer may name fewer, or more than memory holds
        else:
            limits = [int(self.tokenizer.model_max_length)]
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
        """Check whether a request has a text that can be read in parts; an answer with its passage cannot."""
        form = self.trained and not self.takes_instructions and self.encoder(self._template(request)).template.form
        return bool(request.text.strip()) and not form

    def remark(self, request: Request) -> str:
        """Return a remark if a request is clearly in a language that the model was not taught in; mostly empty."""
        return language_remark((request.text, request.instruction), self.trained.get("languages") or ())

    def _check_task(self, request: Request) -> None:
        """Refuse what a model that takes no instructions cannot do, and warn once of a task it was not made for."""
        if request.instruction.strip():
            reason = f"it was trained for {self._trained_for}" if self.trained else "it has no chat template"
            raise UnsupportedModelError(
                f"This model takes no instruction: {reason}. Leave the instruction out, or use an instruct model."
            )
        task = request.task
        own = task is None or task in self._own_tasks
        form = TEMPLATES[self._template(request)].form if self.trained else None
        if form and not own:
            raise UnsupportedModelError(
                f"This model cannot do the task {task!r}: it was trained for {self._trained_for}. "
                "Use an instruct model."
            )
        if form and not form[0].match(request.text):
            raise SourceError(
                f"This model makes a question from an answer and its passage: give them as {form[1]!r}, or use an "
                "instruct model, which asks about any text."
            )
        if not own and task not in self._announced:
            self._announced.add(str(task))
            if self.trained:
                log.warning("This model was trained for %s, not %r: expect less of it.", self._trained_for, task)
            else:
                log.warning("This model takes no instruction: it reads the text as it stands, whatever the task is.")
