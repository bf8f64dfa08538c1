"""Writes requests with llama.cpp, one text at a time.

What the model has read is kept from text to text: other endings of a text go on from where they differ, and the prompt
is read once. A step is the same whatever was read before it, so texts do not depend on what was written before them.
Shape letters: V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from impatience.backends.llama_cpp.choosing import Chooser
from impatience.backends.llama_cpp.model import Context, Scores, log_sum
from impatience.backends.llama_cpp.opened import SteeredGguf
from impatience.backends.llama_cpp.signal import Vectors
from impatience.control.length_report import LengthReporter
from impatience.data import Encoder, Request
from impatience.decoding.base import LIMIT, Generator, TokenListener, TokenRequest, TokenResult
from impatience.decoding.packing import BUDGET, PackedBatch, TextSize
from impatience.decoding.results import Result
from impatience.errors import OptionError, SourceError
from impatience.lengths import Landing, Unit
from impatience.methods import METHODS
from impatience.registry import name_of
from impatience.steps.landing import LandingRules
from impatience.vocabulary.step_counter import StepCounter

_OPTIONS = ("no_loops", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "seed")


class GgufGenerator(Generator):
    """Writes requests with a GGUF model; the settings are the options below."""

    backend = "llama.cpp"
    writes_together = False

    def __init__(self, model: SteeredGguf, encoder: Encoder, **settings: Any) -> None:
        super().__init__(model, encoder, **settings)
        self.model, self.eos = model, model.tokenizer.eos_ids
        self._context: Context | None = None
        self._read: list[tuple[object, ...]] = []  # for each token that the context holds: what it was read as
        self._counters: dict[Unit, StepCounter] = {}
        self._rules: dict[tuple[Landing, Unit], LandingRules] = {}

    def generate_with_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        rows: int = 1,  # noqa: ARG002
        listener: TokenListener | None = None,
        **options: Any,
    ) -> list[Result]:
        """Write requests, one after the other."""
        sources = sources or self.encode_sources(requests, steered=True)
        return self._write_all(requests, sources, self.settings | options, listener, steered=self.model.steers)

    def generate_without_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> list[Result]:
        """Write requests with the base model alone, one after the other."""
        requests = [replace(request, prefix=(), draw=0) for request in requests]
        sources, options = self.pad(sources or self.encode_sources(requests)), self.settings | options
        if self._target(requests)[1] is Landing.NATURAL:
            options.setdefault("max_new_tokens", limit)
        return self._write_all(requests, sources, options, None, steered=False)

    def pad(self, rows: list[list[int]]) -> list[list[int]]:
        """Return prompts as they are; each is read alone."""
        if (longest := max(map(len, rows))) + 2 > self.model.room:
            raise SourceError(
                f"A source has {longest} tokens, but this model has {self.model.room} positions. Shorten it."
            )
        return rows

    def describe(self) -> dict[str, Any]:
        """Return the type of the weights, and the method with its options."""
        signal = self.model.signal
        return {
            "dtype": self.model.model.description,
            "method": "none" if signal is None else name_of(METHODS, signal.method),
            "options": {} if signal is None else signal.method.options(),
            "conventions": "paper",
        }

    def _write_all(
        self,
        requests: Sequence[Request],
        sources: list[list[int]],
        options: Mapping[str, Any],
        listener: TokenListener | None,
        *,
        steered: bool,
    ) -> list[Result]:
        unknown = sorted(name for name, value in options.items() if value is not None and name not in _OPTIONS)
        if unknown:
            raise OptionError(
                f"llama.cpp takes no option {unknown[0]!r} here. It takes: {', '.join(_OPTIONS)}. Or use "
                f"--backend transformers."
            )
        target, landing = self._target(requests)
        results = []
        for position, (request, ids) in enumerate(zip(requests, sources, strict=True)):
            left = self.model.room - len(ids)
            budget = len(request.prefix) + self._budget(request, left, options)
            asked = TokenRequest(ids, request.target, min(budget, left), request.prefix, request.draw)
            written = self._write(asked, target.unit, landing, options, position, listener, steered=steered)
            results.append(self._result(request, written))
        return results

    def pack(self, sizes: Sequence[TextSize], tokens: int, options: Mapping[str, Any]) -> list[PackedBatch]:
        """Return a batch for each text."""
        del tokens, options
        return [PackedBatch((position,), 1) for position in range(len(sizes))]

    @property
    def memory(self) -> int:
        """The most tokens in memory: a context grows to what a text needs."""
        return BUDGET

    def fingerprint(self) -> str:
        """Return a checksum of the model's files."""
        return self.model.fingerprint()

    def _write(
        self,
        request: TokenRequest,
        unit: Unit,
        landing: Landing,
        options: Mapping[str, Any],
        position: int,
        listener: TokenListener | None,
        *,
        steered: bool,
    ) -> TokenResult:
        """Write one text."""
        counter, eos = self._counter(unit), np.array(self.eos)
        chooser = Chooser(request, unit, landing, options, self.rules)
        ids, numbers = list(request.prefix), np.array([counter.after(request.prefix)])
        curve, probabilities, logs = ([0.0] * len(ids) for _ in range(3))
        choices, held = list(ids), list(ids)
        scores = self._begin(request, unit, counter, steered=steered)
        while True:
            total = log_sum(scores)
            curve.append(float(np.exp(scores[eos] - total).sum()))
            allowed = chooser.bar_loops(ids, scores)
            barred = allowed is not scores
            chance = float(np.exp(allowed[eos] - log_sum(allowed)).sum()) if barred else curve[-1]
            choice, kept, token = chooser.choose(ids, allowed)
            probabilities.append(chance)
            choices.append(choice)
            held.append(kept)
            logs.append(float(scores[token] - total))
            ids.append(token)
            if listener is not None:
                listener.put(position, token)
            if token in self.eos or len(ids) >= request.budget:
                break
            if listener is not None and listener.cancelled(position):
                break
            numbers = counter.advance(numbers, np.array([token]))
            state = (min(float(counter.progress(numbers)[0]), request.target), request.target, unit)
            scores = self._step(token, state if steered else None)
        reporter = LengthReporter(unit, landing, self.eos, self.vocabulary)
        kept_ids, report = reporter.report(ids, request.target, probabilities, choices, held=held)
        return TokenResult(tuple(ids), kept_ids, report, tuple(curve), tuple(logs))

    def _begin(self, request: TokenRequest, unit: Unit, counter: StepCounter, *, steered: bool) -> Scores:
        """Read the prompt and the prefix, as far as they are not read yet; return the scores of what follows."""
        *prompt, last = request.ids
        context = self._context_for(len(request.ids) + request.budget)
        counts, numbers = [0.0], np.array([counter.initial])
        for token in request.prefix:
            numbers = counter.advance(numbers, np.array([token]))
            counts.append(float(counter.progress(numbers)[0]))
        states = [(min(count, request.target), request.target, unit) if steered else None for count in counts]
        ahead = list(zip([last, *request.prefix], states, strict=True))
        wanted: list[tuple[object, ...]] = [(token, None) for token in prompt]
        wanted += ahead
        same = next((n for n, (a, b) in enumerate(zip(wanted, self._read, strict=False)) if a != b), None)
        shared = min(len(wanted), len(self._read)) if same is None else same
        # A prompt is read again as a whole: how it is divided into passes changes the last bits of its states.
        shared = min(shared, len(wanted) - 1) if shared >= len(prompt) else 0
        shared = shared if context.keep(shared) else 0
        del self._read[shared:]
        if not shared and prompt:
            if context.vectors:
                context.vectors.set(self._silence)
            context.read(prompt)
            self._read = [(token, None) for token in prompt]
        for token, state in ahead[len(self._read) - len(prompt) :]:
            scores = self._step(token, state)
        return scores

    def _step(self, token: int, state: tuple[float, int, Unit] | None) -> Scores:
        """Read a token under the signal of a state."""
        assert self._context is not None
        if self._context.vectors is not None and self.model.signal is not None:
            self._context.vectors.set(self._silence if state is None else self.model.signal.vectors(*state))
        scores = self._context.step(token)
        self._read.append((token, state))
        return scores

    @cached_property
    def _silence(self) -> Vectors:
        return np.zeros((self.model.model.layers - 1, self.model.model.width), np.float32)

    def _context_for(self, tokens: int) -> Context:
        """Return a context with room for so many tokens: the one at hand, or a larger one."""
        tokens = min(tokens, self.model.room)
        if self._context is None or self._context.room < tokens:
            self._context = None
            self._context = self.model.model.new_context(tokens, steered=self.model.steers)
            self._read = []
        return self._context

    def rules(self, landing: Landing, unit: Unit) -> LandingRules:
        """Return the rules that hold texts to their targets; they are made once."""
        if (landing, unit) not in self._rules:
            self._rules[landing, unit] = LandingRules(landing, unit, self.vocabulary, self.eos)
        return self._rules[landing, unit]

    def _counter(self, unit: Unit) -> StepCounter:
        if unit not in self._counters:
            self._counters[unit] = StepCounter(self.vocabulary, unit)
        return self._counters[unit]
