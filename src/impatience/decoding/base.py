"""Base of the generators of all backends: encodes requests, counts lengths, builds results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from impatience.control.length_report import LengthReport
from impatience.data import TEMPLATES, Encoder, Request
from impatience.decoding.packing import PackedBatch, TextSize
from impatience.decoding.ranking import unsupported_words
from impatience.decoding.results import Result
from impatience.errors import OptionError
from impatience.judging import judge_landing
from impatience.lengths import Landing, Target, Unit, decode, measure, name_length
from impatience.steps.budget import step_budget
from impatience.user_text import encode_text
from impatience.vocabulary import Vocabulary

LIMIT = 1024  # the most tokens of a text whose target limits nothing


class ModelFacts(Protocol):
    """The facts of an open model that prompts and requests depend on."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens."""

    @property
    def steers(self) -> bool:
        """True if it is told its target by a signal."""

    @property
    def encoder_decoder(self) -> bool:
        """True if it has an encoder."""

    @property
    def room(self) -> int | None:
        """The most tokens that its decoder reads and writes in a row; None if there is no limit."""

    @property
    def source_room(self) -> int | None:
        """The most tokens of a source that it reads; None if there is no limit."""


class TokenListener(Protocol):
    """Receives tokens as they are written, and may stop texts."""

    def put(self, position: int, token: int) -> None:
        """Receive the next token of the text at a position."""

    def cancelled(self, position: int) -> bool:
        """Check whether the text at a position is not wanted any more; it then ends at its next step."""


@dataclass(frozen=True)
class TokenRequest:
    """A request in tokens."""

    ids: Sequence[int]  # prompt without padding
    target: int  # length of the text, in the unit of the settings
    budget: int  # the most tokens of the text, prefix and EOS included
    prefix: tuple[int, ...] = ()  # ids of the text that are written already
    draw: int = 0  # number of the draw that the rest comes from; 0 takes the likeliest tokens

    def decoder_ids(self, start: int | None) -> tuple[int, ...]:
        """Return all ids that the decoder reads before it writes; the last one is read by the first step.

        ``start`` is the start token of an encoder-decoder; None for a decoder-only model, which reads the prompt.
        """
        return (*(self.ids if start is None else (start,)), *self.prefix)


@dataclass(frozen=True)
class TokenResult:
    """A text as it was written."""

    ids: tuple[int, ...]  # ids that the model wrote, with the EOS that ends the text unless the budget did
    kept: int  # number of ids that the landing keeps, EOS not counted
    report: LengthReport  # how the text ended
    eos_curve: tuple[float, ...]  # the model's own EOS probability at each step
    log_probabilities: tuple[float, ...]  # the model's own log-probability of each id; 0 for those of a prefix


class Generator(ABC):
    """Writes requests with one model.

    Args:
        model: The model.
        encoder: Turns sources into prompts.
        **settings: Options of every call, e.g. ``no_loops=6``.
    """

    backend: str  # name of its backend
    eos: list[int]  # ids that end a text
    writes_together = True  # whether the texts of a batch are written at the same time, not one after the other
    language_tokens = 0  # tokens that it must begin with, which are no part of a text

    def __init__(self, model: ModelFacts, encoder: Encoder, **settings: Any) -> None:
        self.facts, self.encoder, self.settings = model, encoder, settings
        self.tokenizer, self.vocabulary = encoder.tokenizer, model.vocabulary
        self.encoder_decoder = model.encoder_decoder

    @abstractmethod
    def generate_with_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        rows: int = 1,
        listener: TokenListener | None = None,
        **options: Any,
    ) -> list[Result]:
        """Write requests, steered by the signal if the model has one; prefixes are continued.

        Args:
            requests: Requests of one unit and one landing.
            sources: Prompts of the requests, if they are encoded already.
            rows: Number of texts that may be written at the same time.
            listener: Receives each token as it is written, where tokens are written in order.
            **options: Other options of the backend.
        """

    @abstractmethod
    def pack(self, sizes: Sequence[TextSize], tokens: int, options: Mapping[str, Any]) -> list[PackedBatch]:
        """Return the batches in which texts of these sizes are written, with at most so many tokens in memory."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """The most tokens in memory, unless the caller says otherwise."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a checksum of the model, its tokenizer and settings."""

    @abstractmethod
    def generate_without_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> list[Result]:
        """Write requests with the base model alone; prefixes and draws are ignored.

        Args:
            requests: Requests of one unit and one landing.
            sources: Prompts instead of the requests' own, e.g. some that name the length.
            limit: The most tokens to write with the natural landing; fewer where the model has less room.
            **options: Other options of the backend.
        """

    @abstractmethod
    def pad(self, rows: list[list[int]]) -> Any:
        """Make a batch of prompts that the model can read."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the type of the weights, and the method with its options, as plain values."""

    @property
    def steers(self) -> bool:
        """True if the model is told its target by a signal."""
        return self.facts.steers

    def is_title(self, request: Request) -> bool:
        """Check whether a request asks for a title."""
        return not request.instruction and self.encoder.for_task(request.task).template is TEMPLATES["title"]

    def encode_sources(self, requests: Sequence[Request], *, steered: bool = False) -> list[list[int]]:
        """Return the prompts of requests, with lengths if the model was taught to read them and is steered."""
        rows: dict[int, list[int]] = {}
        for task in dict.fromkeys(request.task for request in requests):
            encoder = self.encoder.for_task(task)
            chosen = {row: request for row, request in enumerate(requests) if request.task == task}
            examples = [request.as_example() for request in chosen.values()]
            if steered and encoder.names_length:
                found = encoder.prompts_with_lengths(examples, [_length_named(request) for request in chosen.values()])
            else:
                found = encoder.prompts(examples)
            rows.update(zip(chosen, found, strict=True))
        return [rows[row] for row in range(len(requests))]

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids that the model would write a text with, without special tokens."""
        return tuple(encode_text(self.tokenizer, text, add_special_tokens=False, target=True))

    def count(self, text: str, unit: Unit) -> int:
        """Count a text; tokens are those that the model would write it with."""
        return self.vocabulary.count(self.encode(text), unit) if unit is Unit.TOKENS else measure(text, unit)

    def convert(self, request: Request, unit: Unit) -> int:
        """Estimate a request's target in another unit: the length of a piece of the source of that length."""
        if unit == request.unit:
            return request.target
        counts = self.count(request.text, unit), max(1, self.count(request.text, request.unit))
        return max(1, round(request.target * counts[0] / counts[1]))

    def _target(self, requests: Sequence[Request]) -> tuple[Target, Landing]:
        """Return the targets and the landing of a batch."""
        for name in ("unit", "landing"):
            values = {str(getattr(request, name)) for request in requests}
            if len(values) != 1:
                raise OptionError(f"A batch is written in one {name}; got {', '.join(sorted(values)) or 'no request'}.")
        unit = requests[0].unit
        if unit is not Unit.TOKENS:
            self.vocabulary.require_tokenizer(unit)
        return Target(unit, tuple(request.target for request in requests)), requests[0].landing

    def _budget(self, request: Request, room: int | None, options: Mapping[str, Any]) -> int:
        """Return the most tokens that a request would be given alone, beside its prefix.

        A call of ``generate`` gives all rows as many as the longest needs. A text that misses its target is cut at its
        own budget, so it does not depend on the rest of its batch.
        """
        if "max_new_tokens" in options:
            most = int(options["max_new_tokens"])
            most = most if room is None else min(most, room - len(request.prefix))
            return max(1, most if request.limit is None else min(most, request.limit - len(request.prefix)))
        target = Target(request.unit, (request.target,))
        extra = self.language_tokens
        most = step_budget(target, request.landing, room, extra, vocabulary=self.vocabulary)
        return max(1, min(most, request.limit or most) - len(request.prefix))

    def _result(self, request: Request, written: TokenResult) -> Result:
        """Build the result of a text that the loop wrote."""
        ids = written.ids[: written.kept]
        ended = written.kept < len(written.ids)  # by EOS, or because the landing removed the end
        curve = () if request.prefix else written.eos_curve[: len(ids) + ended]
        report = written.report if ended else replace(written.report, eos_probability=None)
        logs = written.log_probabilities[: len(ids)]
        return self._build(request, report, ids, ended, len(written.ids) - len(request.prefix), curve, logs)

    def _build(
        self,
        request: Request,
        report: LengthReport,
        ids: tuple[int, ...],
        ended: bool,
        tokens_spent: int,
        eos_curve: Sequence[float],
        log_probabilities: Sequence[float],
    ) -> Result:
        """Build a result; the report describes its text, but does not know whether that is a title."""
        finished = report.finished or (report.own_end and self.is_title(request))
        text = decode(self.tokenizer, ids)
        return Result(
            self.vocabulary.count(ids, report.unit),
            report.target,
            report.unit,
            judge_landing(report.landed != "missed", report.own_end and finished, report.looping),
            report.eos_probability,
            finished,
            report.looping,
            report.own_end,
            text=text,
            ids=ids,
            id=request.id,
            ended=ended,
            tokens_spent=tokens_spent,
            backend=self.backend,
            unsupported=unsupported_words(request, text),
            eos_curve=tuple(round(probability, 6) for probability in eos_curve),
            log_probabilities=tuple(round(one, 4) for one in log_probabilities),
        )


def _length_named(request: Request) -> str:
    """Return the target as a prompt names it; no model counts tokens, so they are not named."""
    return "" if request.unit is Unit.TOKENS else name_length(request.target, request.unit)
