"""The text generator: writes requests with one model, by our own loop or by ``generate`` of transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from impatience.control.fingerprint import fingerprint
from impatience.control.generation import EosTrace, GenerateCall, eos_ids
from impatience.control.model import LengthControlled
from impatience.data import Encoder, Request, pad_prompts
from impatience.decoding.base import LIMIT, Generator, TokenListener, TokenRequest
from impatience.decoding.kv_cache import token_bytes
from impatience.decoding.loop import DecodingLoop, unsupported
from impatience.decoding.packing import (
    ROWS,
    PackedBatch,
    TextSize,
    memory_budget,
    pack_batches,
    pack_streams,
    split_by_room,
)
from impatience.decoding.results import Result
from impatience.decoding.step import DecodingSettings
from impatience.decoding.token_streams import listening_options
from impatience.errors import SourceError
from impatience.families import text_config, unwrap
from impatience.judging import judge
from impatience.lengths import Landing, decode
from impatience.methods import METHODS
from impatience.registry import name_of

log = logging.getLogger(__name__)

_GREEDY = {"do_sample": False, "num_beams": 1, "early_stopping": False, "length_penalty": 1.0}
"""Settings of ``generate`` for draws: their noise is the only randomness."""

RowProcessors = Callable[[Sequence[int], int], list[Any]]


class TextGenerator(Generator):
    """Writes requests with a model of transformers; the settings are options of ``generate``."""

    backend = "transformers"

    def __init__(self, model: LengthControlled, encoder: Encoder, **settings: Any) -> None:
        model.eval()
        super().__init__(model, encoder, **settings)
        self.model = model
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
        """Write requests; the loop begins the first ones first, and fills a row that ends with the next text."""
        options = self.settings | options
        sources = sources or self.encode_sources(requests, steered=True)
        if self.can_use_loop(len(requests), options):
            return self._run_loop(requests, sources, options, rows, listener)
        results: dict[int, Result] = {}
        for group in self._groups_for_generate(requests, sources, options):
            batch = [requests[row] for row in group], [sources[row] for row in group]
            listening = listening_options(listener, group, in_order=self._writes_in_order(options)) if listener else {}
            results.update(zip(group, self._call_generate_with_signal(*batch, {**options, **listening}), strict=True))
        return [results[row] for row in range(len(requests))]

    def generate_without_signal(
        self,
        requests: Sequence[Request],
        *,
        sources: list[list[int]] | None = None,
        limit: int = LIMIT,
        processors: RowProcessors | None = None,
        **options: Any,
    ) -> list[Result]:
        """Write requests with the base model alone; prefixes and draws are ignored.

        The base model's generation settings hold (beams, n-gram bans, …), except those about length: they would be a
        length control too. Positions stay doubled where the conventions are the authors', as in training.

        Args:
            requests: Requests of one unit and one landing.
            sources: Prompts instead of the requests' own, e.g. some that name the length.
            limit: The most tokens to write with the natural landing; fewer where the model has less room.
            processors: Returns the logits processors of a call of ``generate``: for the rows that it writes, and the
                column of the first id that it adds.
            **options: Other options of ``generate``. With ``num_return_sequences`` each request has so many results,
                one after the other.
        """
        requests = [replace(request, prefix=(), draw=0) for request in requests]
        landing = self._target(requests)[1]
        sources, options = sources or self.encode_sources(requests), self.settings | options
        self._check_sources(sources)
        if landing is Landing.NATURAL:
            options.setdefault("max_new_tokens", limit)
        if processors is None and self.can_use_loop(len(requests), options):
            return self._run_loop(requests, sources, options, ROWS, signal=False)
        results: dict[int, list[Result]] = {}
        for group in self._groups_for_generate(requests, sources, options):
            batch = [requests[row] for row in group], [sources[row] for row in group]
            written = self._call_generate_without_signal(
                *batch, options, partial(processors, group) if processors else None
            )
            copies = len(written) // len(group)
            results.update({row: written[n * copies : (n + 1) * copies] for n, row in enumerate(group)})
        return [result for row in range(len(requests)) for result in results[row]]

    def pack(self, sizes: Sequence[TextSize], tokens: int, options: Mapping[str, Any]) -> list[PackedBatch]:
        """Return streams for the loop, and else batches for ``generate``."""
        if self.can_use_loop(len(sizes), options):
            return pack_streams(sizes, tokens)
        room = None if self.encoder_decoder else self.facts.room
        return [PackedBatch(tuple(batch), len(batch)) for batch in pack_batches(sizes, tokens, room)]

    @property
    def memory(self) -> int:
        """The most tokens in memory, unless the caller says otherwise."""
        layers = len(self.model.family.layers_of(self._inner))
        return memory_budget(self._inner.device, token_bytes(text_config(self._inner), layers, self._inner.dtype))

    def fingerprint(self) -> str:
        """Return a checksum of the model."""
        return fingerprint(self.model)

    def describe(self) -> dict[str, Any]:
        """Return the type of the weights, and the method with its options."""
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "method": name_of(METHODS, self.model.method),
            "options": self.model.method.options(),
            "conventions": self.model.conventions,
        }

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

    def _groups_for_generate(
        self, requests: Sequence[Request], sources: list[list[int]], options: Mapping[str, Any]
    ) -> list[list[int]]:
        """Return the positions of requests that one call of ``generate`` can write.

        An encoder-decoder has no padding before what it writes, and else the padding leaves each text the room that it
        has alone; beams are not searched where endings are drawn, and no text is written beyond its own limit.
        """
        self._check_sources(sources)
        groups: dict[tuple[int, bool, int | None], list[int]] = {}
        for row, request in enumerate(requests):
            prefix = len(request.prefix) if self.encoder_decoder else 0
            groups.setdefault((prefix, request.draw > 0, request.limit), []).append(row)
        budgets = self._budgets(requests, sources, options)
        if self.encoder_decoder or self.facts.room is None:
            return list(groups.values())
        lengths = [len(ids) + len(request.prefix) for request, ids in zip(requests, sources, strict=True)]
        return [part for group in groups.values() for part in split_by_room(group, lengths, budgets, self.facts.room)]

    def _writes_in_order(self, options: Mapping[str, Any]) -> bool:
        """Check whether tokens are written in the order in which they are read: not with beams."""
        beams = self._inner.generation_config.num_beams
        return int(options.get("num_beams") or beams or 1) == 1

    def inputs(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the prompts of requests as a padded batch."""
        return self.pad(self.encode_sources(requests))

    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Make a batch of rows of ids that the model can read, padded on the left for decoder-only models."""
        self._check_sources(rows)
        batch = pad_prompts(rows, self._pad, left=not self.encoder_decoder)
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def _check_sources(self, rows: list[list[int]]) -> None:
        room, spare = self.facts.source_room, 0 if self.encoder_decoder else 2
        longest = max(map(len, rows))
        if room is not None and longest + spare > room:
            raise SourceError(f"A source has {longest} tokens, but this model has {room} positions. Shorten it.")

    def first_column(self, inputs: dict[str, Tensor]) -> int:
        """Return the column of the first id that ``generate`` adds."""
        decoder_ids = inputs.get("decoder_input_ids") if self.encoder_decoder else inputs["input_ids"]
        return 1 if decoder_ids is None else decoder_ids.shape[1]

    def room_after(self, prompt: Sequence[int]) -> int | None:
        """Return the number of tokens that the model can write after a prompt, or None if there is no limit."""
        room = self.facts.room
        return None if room is None else room - (1 if self.encoder_decoder else len(prompt))

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
        token_requests = []
        for request, ids, budget in zip(requests, sources, self._budgets(requests, sources, options), strict=True):
            most = len(request.prefix) + budget
            token_requests.append(TokenRequest(ids, request.target, most, request.prefix, request.draw))
        draws = any(request.draw for request in requests)
        settings = DecodingSettings(target.unit, landing, tuple(self.eos), options.get("no_loops"), signal, draws)
        self._loop = self._loop or DecodingLoop(self.model)
        written = self._loop.write(token_requests, settings, rows, listener)
        return [self._result(*pair) for pair in zip(requests, written, strict=True)]

    def _call_generate_with_signal(
        self, requests: Sequence[Request], sources: list[list[int]], options: dict[str, Any]
    ) -> list[Result]:
        """Write a group of requests with the ``generate`` of the model with length control."""
        target, landing = self._target(requests)
        inputs: dict[str, Any] = self.pad(sources)
        budgets = self._budgets(requests, sources, options)
        if any(request.prefix for request in requests):
            inputs = self._inputs_with_prefixes(requests, sources)
        if "max_new_tokens" in options or any(request.prefix or request.limit for request in requests):
            options = {**options, "max_new_tokens": max(budgets)}
        if any(request.draw for request in requests):
            options = options | _GREEDY | {"draws": [request.draw for request in requests]}
        given = {**inputs, f"target_{target.unit}": list(target.values), "landing": landing}

        def generate(**kwargs: Any) -> Any:
            return self.model.generate(**given, return_report=True, **kwargs)

        return self._call_generate(generate, requests, self.first_column(inputs), options, budgets)

    def _call_generate_without_signal(
        self,
        requests: Sequence[Request],
        sources: list[list[int]],
        options: dict[str, Any],
        processors: Callable[[int], list[Any]] | None,
    ) -> list[Result]:
        """Write a group of requests with the ``generate`` of the base model."""
        target, landing = self._target(requests)
        inputs, budgets = self.pad(sources), self._budgets(requests, sources, options)
        first, room = self.first_column(inputs), self.room_after(max(sources, key=len))
        start = torch.full((len(requests),), first, device=self.model.device)
        call = GenerateCall(target, landing, start, first, room, self.vocabulary)
        if "max_new_tokens" in options:
            options = {**options, "max_new_tokens": max(budgets)}
        if processors is not None:
            options = {**options, "logits_processor": processors(first)}

        def generate(**kwargs: Any) -> Any:
            prepared = call.prepare(self._inner.generation_config, kwargs, report=True)
            return call.finish(self.model.base.generate(**inputs, **prepared))

        return self._call_generate(generate, requests, first, dict(options), budgets)

    def _budgets(self, requests: Sequence[Request], sources: list[list[int]], options: Mapping[str, Any]) -> list[int]:
        pairs = zip(requests, sources, strict=True)
        return [self._budget(request, self.room_after(ids), options) for request, ids in pairs]

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
            missed = report.landed == "missed" or self._stop(written[:budget]) is None
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
