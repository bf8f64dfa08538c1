"""The text generator: writes requests with one model, by our own loop or by ``generate`` of transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from impatience.control.generation import EosTrace, GenerateCall, eos_ids, step_budget
from impatience.control.length_report import LengthReport
from impatience.control.model import LengthControlled
from impatience.data import TEMPLATES, Encoder, Request, pad_prompts
from impatience.decoding.loop import DecodingLoop, TokenListener, TokenResult, unsupported
from impatience.decoding.packing import ROWS
from impatience.decoding.ranking import unsupported_words
from impatience.decoding.results import Result
from impatience.decoding.step import DecodingSettings, TokenRequest
from impatience.errors import OptionError, SourceError
from impatience.families import unwrap
from impatience.judging import judge, judge_landing
from impatience.lengths import Landing, Target, Unit, decode, measure, name_length
from impatience.user_text import encode_text

log = logging.getLogger(__name__)

LIMIT = 1024  # the most tokens of a text whose target limits nothing
_GREEDY = {"do_sample": False, "num_beams": 1, "early_stopping": False, "length_penalty": 1.0}
"""Settings of ``generate`` for draws: their noise is the only randomness."""


class TextGenerator:
    """Writes requests with one model.

    Args:
        model: The model.
        encoder: Turns sources into prompts.
        **settings: Options of ``generate`` for every call, e.g. ``no_loops=6``.
    """

    def __init__(self, model: LengthControlled, encoder: Encoder, **settings: Any) -> None:
        model.eval()
        self.settings = settings
        self.model, self.encoder, self.tokenizer = model, encoder, encoder.tokenizer
        self.vocabulary, self.encoder_decoder = model.vocabulary, model.family.encoder_decoder
        self._inner = unwrap(model.base)
        self.eos = eos_ids(self._inner.generation_config)
        pad = self._inner.generation_config.pad_token_id
        self._pad = self.eos[0] if pad is None else int(pad)
        # A language token that the model is forced to begin with is written, but is no part of the text.
        self.language_tokens = int(self._inner.generation_config.forced_bos_token_id is not None)
        self._loop: DecodingLoop | None = None
        self._logged_reasons: set[str] = set()

    def generate_with_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        rows: int = ROWS,
        listener: TokenListener | None = None,
        **options: Any,
    ) -> list[Result]:
        """Write requests, steered by the signal; prefixes are continued.

        Args:
            requests: Requests of one unit and one landing; the loop begins the first ones first.
            sources: Prompts of the requests, if they are encoded already.
            rows: Number of texts that the loop writes at the same time; a row that ends is filled with the next text.
            listener: Receives each token as it is written, only from the loop.
            **options: Other options of ``generate``.
        """
        options = self.settings | options
        sources = sources or self.encode_sources(requests, steered=True)
        if self.can_use_loop(len(requests), options):
            return self._run_loop(requests, sources, options, rows, listener)
        results: dict[int, Result] = {}
        for group in self.groups_for_generate(requests):
            batch = [requests[row] for row in group], [sources[row] for row in group]
            results.update(zip(group, self._call_generate_with_signal(*batch, options), strict=True))
        return [results[row] for row in range(len(requests))]

    def generate_without_signal(
        self,
        requests: Sequence[Request],
        *,
        inputs: dict[str, Tensor] | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> list[Result]:
        """Write requests with the base model alone; prefixes and draws are ignored.

        The base model's generation settings hold (beams, n-gram bans, …), except those about length: they would be a
        length control too. Positions stay doubled where the conventions are the authors', as in training.

        Args:
            requests: Requests of one unit and one landing.
            inputs: Inputs of the model instead of the sources, e.g. a prompt that names the length.
            limit: The most tokens to write with the natural landing; fewer where the model has less room.
            **options: Other options of ``generate``. With ``num_return_sequences`` each request has so many results,
                one after the other.
        """
        requests = [replace(request, prefix=(), draw=0) for request in requests]
        target, landing = self._target(requests)
        inputs, options = inputs or self.inputs(requests), self.settings | options
        first, room = self.first_column(inputs), self.room(inputs)
        if landing is Landing.NATURAL:
            options.setdefault("max_new_tokens", limit if room is None else min(limit, room))
        if self.can_use_loop(len(requests), options):
            padded = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True)
            return self._run_loop(requests, [list(compress(*row)) for row in padded], options, ROWS, signal=False)
        budgets = [self._budget(request, room, options) for request in requests]
        start = torch.full((len(requests),), first, device=inputs["input_ids"].device)
        call = GenerateCall(target, landing, start, first, room, self.vocabulary)

        def generate(**kwargs: Any) -> Any:
            prepared = call.prepare(self._inner.generation_config, kwargs, report=True)
            return call.finish(self.model.base.generate(**inputs, **prepared))

        return self._call_generate(generate, requests, first, options, budgets)

    def can_use_loop(self, texts: int, options: Mapping[str, Any]) -> bool:
        """Check whether our own loop can write so many texts with these options, and is faster than ``generate``."""
        if texts == 1 and self._inner.device.type == "cpu":
            return False
        reason = unsupported(self.model, {"do_sample": False, **self.settings, **options, "no_loops": None})
        if reason is not None and reason not in self._logged_reasons:
            by_model = unsupported(self.model, {"do_sample": False}) is not None
            log.log(logging.INFO if by_model else logging.DEBUG, "Texts are written with generate, because %s.", reason)
            self._logged_reasons.add(reason)
        return reason is None

    def groups_for_generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the positions of requests that one call of ``generate`` can write.

        An encoder-decoder has no padding before what it writes, beams are not searched where endings are drawn, and no
        text is written beyond its own limit.
        """
        groups: dict[tuple[int, bool, int | None], list[int]] = {}
        for row, request in enumerate(requests):
            prefix = len(request.prefix) if self.encoder_decoder else 0
            groups.setdefault((prefix, request.draw > 0, request.limit), []).append(row)
        return list(groups.values())

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

    def inputs(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the prompts of requests as a padded batch."""
        return self.pad(self.encode_sources(requests))

    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Make a batch of rows of ids that the model can read, padded on the left for decoder-only models."""
        room, spare = self.model.family.source_room(self._inner), 0 if self.encoder_decoder else 2
        longest = max(map(len, rows))
        if room is not None and longest + spare > room:
            raise SourceError(f"A source has {longest} tokens, but this model has {room} positions. Shorten it.")
        batch = pad_prompts(rows, self._pad, left=not self.encoder_decoder)
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def first_column(self, inputs: dict[str, Tensor]) -> int:
        """Return the column of the first id that ``generate`` adds."""
        decoder_ids = inputs.get("decoder_input_ids") if self.encoder_decoder else inputs["input_ids"]
        return 1 if decoder_ids is None else decoder_ids.shape[1]

    def room(self, inputs: dict[str, Tensor]) -> int | None:
        """Return the number of tokens that the model can write, or None if there is no limit."""
        room = self.model.family.room(self._inner)
        return None if room is None else room - self.first_column(inputs)

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
            return int(options["max_new_tokens"])
        target = Target(request.unit, (request.target,))
        most = step_budget(target, request.landing, room, self.language_tokens)
        return max(1, min(most, request.limit or most) - len(request.prefix))

    def _run_loop(
        self,
        requests: Sequence[Request],
        sources: list[list[int]],
        options: dict[str, Any],
        rows: int,
        listener: TokenListener | None = None,
        *,
        signal: bool = True,
    ) -> list[Result]:
        """Write requests with our own loop."""
        target, landing = self._target(requests)
        room = self.model.family.room(self._inner)
        token_requests = []
        for request, ids in zip(requests, sources, strict=True):
            left = None if room is None else room - (1 if self.encoder_decoder else len(ids))
            budget = len(request.prefix) + self._budget(request, left, options)
            token_requests.append(TokenRequest(ids, request.target, budget, request.prefix, request.draw))
        draws = any(request.draw for request in requests)
        settings = DecodingSettings(target.unit, landing, tuple(self.eos), options.get("no_loops"), signal, draws)
        self._loop = self._loop or DecodingLoop(self.model)
        written = self._loop.write(token_requests, settings, rows, listener)
        return [self._result(*pair) for pair in zip(requests, written, strict=True)]

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
            unsupported=unsupported_words(request, text),
            eos_curve=tuple(round(probability, 6) for probability in eos_curve),
            log_probabilities=tuple(round(one, 4) for one in log_probabilities),
        )

    def _call_generate_with_signal(
        self, requests: Sequence[Request], sources: list[list[int]], options: dict[str, Any]
    ) -> list[Result]:
        """Write a group of requests with the ``generate`` of the model with length control."""
        target, landing = self._target(requests)
        inputs: dict[str, Any] = self.pad(sources)
        budgets = [self._budget(request, self.room(inputs), options) for request in requests]
        if any(request.prefix for request in requests):
            inputs = self._inputs_with_prefixes(requests, sources)
        if any(request.prefix or request.limit for request in requests):
            room = self.room(inputs)
            options = {"max_new_tokens": max(budgets) if room is None else min(max(budgets), room), **options}
        if any(request.draw for request in requests):
            options = options | _GREEDY | {"draws": [request.draw for request in requests]}
        given = {**inputs, f"target_{target.unit}": list(target.values), "landing": landing}

        def generate(**kwargs: Any) -> Any:
            return self.model.generate(**given, return_report=True, **kwargs)

        return self._call_generate(generate, requests, self.first_column(inputs), options, budgets)

    def _inputs_with_prefixes(self, requests: Sequence[Request], sources: list[list[int]]) -> dict[str, Any]:
        """Return the inputs of ``generate`` where texts have prefixes."""
        if self.encoder_decoder:
            start = self._inner.generation_config.decoder_start_token_id
            written = torch.tensor([[start, *request.prefix] for request in requests], device=self.model.device)
            return {**self.pad(sources), "decoder_input_ids": written}
        joined = self.pad([[*ids, *request.prefix] for ids, request in zip(sources, requests, strict=True)])
        return {**joined, "prompt_lengths": [len(ids) for ids in sources]}

    def _call_generate(
        self,
        generate: Callable[..., Any],
        requests: Sequence[Request],
        first: int,
        options: dict[str, Any],
        budgets: list[int],
    ) -> list[Result]:
        """Call ``generate``, and build the results from what it returns."""
        processors = options.pop("logits_processor", [])
        trace = EosTrace(self.eos, likelihood=True)
        settings = {"do_sample": False, "pad_token_id": self._pad, **options}
        with torch.inference_mode():
            output, reports = generate(logits_processor=[trace, *processors], return_dict_in_generate=True, **settings)
        rows = output.sequences[:, first:].tolist()
        curves, choices = trace.along(len(rows), len(rows[0]), output.get("beam_indices"))
        beams, copies = len(trace.ids) // len(rows), len(rows) // len(budgets)
        given = trace.ids[:, first:].tolist()  # without the choice of the last step
        logs = trace.log_probabilities(output.sequences) if beams == 1 else []
        results = []
        for row, (written, report) in enumerate(zip(rows, reports, strict=True)):
            request, budget = requests[row // copies], budgets[row // copies]
            missed = report.landed == "missed" or (request.limit is not None and self._stop(written[:budget]) is None)
            if missed:
                written = written[:budget]
            stop = self._stop(written)
            ids, ended = tuple(written[:stop]), stop is not None
            own_end = report.own_end and ended and not (processors and self._stop(choices[row].tolist()) != stop)
            curve = curves[row, : len(ids) + ended].tolist()
            probability = (round(curve[-1], 6) if processors else report.eos_probability) if ended else None
            tokens_spent = beams * (len(ids) + ended)
            if beams == 1 and ended:  # the landing may have removed the end of what was written
                last = self._stop(given[row])
                tokens_spent = 1 + (len(given[row]) if last is None else last)
            ids = (*request.prefix, *ids)
            if not ended or own_end != report.own_end:  # its budget cut it, or a processor ended it
                finished, looping, landed = judge(
                    decode(self.tokenizer, ids), own_end=own_end, ended=ended, on_target=not missed
                )
                report = replace(report, finished=finished, looping=looping, landed=landed, own_end=own_end)
            report = replace(report, eos_probability=probability)
            if request.prefix:
                curve = []
            of_ids = [0.0] * len(request.prefix) + logs[row][: len(ids) - len(request.prefix)] if logs else []
            results.append(self._build(request, report, ids, ended, tokens_spent, curve, of_ids))
        return results

    def _stop(self, ids: list[int]) -> int | None:
        return next((column for column, i in enumerate(ids) if i in self.eos), None)


def _length_named(request: Request) -> str:
    """Return the target as a prompt names it; no model counts tokens, so they are not named."""
    return "" if request.unit is Unit.TOKENS else name_length(request.target, request.unit)
