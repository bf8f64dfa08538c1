"""A model to write with, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from impatience.control.generation import EosTrace, GenerateCall, eos_ids, step_budget, without_forced_eos
from impatience.control.model import LengthControlled
from impatience.data import FRESH, Begun, Encoder, EvalRequest, pad_prompts
from impatience.decoding.loop import DecodingLoop, TokenListener, TokenRequest, TokenResult, unsupported
from impatience.decoding.packing import ROWS
from impatience.decoding.results import Draft
from impatience.decoding.step import DecodingSettings
from impatience.errors import OptionError, SourceError
from impatience.families import unwrap
from impatience.lengths import Landing, Target, Unit, decode, measure

log = logging.getLogger(__name__)

LIMIT = 1024
"""The most tokens of a text that nothing holds to its target."""


_GREEDY = {"do_sample": False, "num_beams": 1, "early_stopping": False, "length_penalty": 1.0}
"""What ``generate`` is given where the noise of a draw is all the chance there is."""


class TextGenerator:
    """A model to write with.

    Args:
        model: What writes.
        encoder: How sources are put to it.
        **settings: What ``generate`` is given besides, whatever the strategy, e.g. ``no_loops=6``.
    """

    def __init__(self, model: LengthControlled, encoder: Encoder, **settings: Any) -> None:
        model.eval()
        self.settings = settings
        self.model, self.encoder, self.tokenizer = model, encoder, encoder.tokenizer
        self.vocabulary, self.encoder_decoder = model.vocabulary, model.family.encoder_decoder
        self._inner = unwrap(model.base_model)
        self.eos = eos_ids(self._inner.generation_config)
        pad = self._inner.generation_config.pad_token_id
        self._pad = self.eos[0] if pad is None else int(pad)
        # A language token that the model is made to begin with is written, but is no part of the text.
        self.extra = int(self._inner.generation_config.forced_bos_token_id is not None)
        self._decoder: DecodingLoop | None = None
        self._told: set[str] = set()

    def steered(
        self,
        requests: Sequence[EvalRequest],
        landing: str = "natural",
        *,
        sources: list[list[int]] | None = None,
        begun: Sequence[Begun] | None = None,
        **options: Any,
    ) -> list[Draft]:
        """Write with the signal.

        Args:
            requests: What to write; all in one unit.
            landing: Who decides where the texts end.
            sources: What the model reads; by default the requests' own sources.
            begun: What is there of each text; what is new is spent.
            **options: What else ``generate`` takes.
        """
        begun, options = begun or [FRESH] * len(requests), self.settings | options
        sources = sources or self.encoder.read([request.example for request in requests])
        if self.flows(len(requests), options):
            return self.flow(requests, sources, landing, ROWS, begun=begun, **options)
        found: dict[int, Draft] = {}
        for rows in self.alike(begun):
            asked = [(requests[row], sources[row], begun[row]) for row in rows]
            found.update(zip(rows, self._generated(asked, landing, options), strict=True))
        return [found[row] for row in range(len(requests))]

    def alike(self, begun: Sequence[Begun]) -> list[list[int]]:
        """Return which texts ``generate`` can write together.

        An encoder-decoder has no padding before what it writes, and what is drawn is not searched for with beams.
        """
        groups: dict[tuple[int, bool], list[int]] = {}
        for row, (ids, draw) in enumerate(begun):
            groups.setdefault((len(ids) if self.encoder_decoder else 0, draw > 0), []).append(row)
        return list(groups.values())

    def _generated(
        self, asked: list[tuple[EvalRequest, list[int], Begun]], landing: str, options: dict[str, Any]
    ) -> list[Draft]:
        """Write with ``generate`` texts that are alike."""
        requests, sources, begun = map(list, zip(*asked, strict=True))
        target, before, draws = self._target(requests), [there.ids for there in begun], [there.draw for there in begun]
        inputs: dict[str, Any] = self.pad(sources)
        budgets = self._budgets(target, Landing.parse(landing), self.room(inputs), options, before)
        if any(before):
            inputs = self._going_on(sources, before)
            most = [max(budgets), *([] if (room := self.room(inputs)) is None else [room])]
            options = {"max_new_tokens": min(most), **options}
        if any(draws):
            options = options | _GREEDY | {"draws": draws}
        given = {**inputs, f"target_{target.unit}": list(target.values), "landing": landing}

        def generate(**kwargs: Any) -> Any:
            return self.model.generate(**given, return_report=True, **kwargs)

        drafts = self._write(generate, self.first(inputs), options, budgets)
        units = [request.unit for request in requests]
        return [self._joined(*one) if one[0] else one[1] for one in zip(before, drafts, units, strict=True)]

    def _going_on(self, sources: list[list[int]], before: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return what ``generate`` reads where texts are begun."""
        if self.encoder_decoder:
            start = self._inner.generation_config.decoder_start_token_id
            written = torch.tensor([[start, *ids] for ids in before], device=self.model.device)
            return {**self.pad(sources), "decoder_input_ids": written}
        joined = self.pad([[*ids, *there] for ids, there in zip(sources, before, strict=True)])
        return {**joined, "prompt_lengths": [len(ids) for ids in sources]}

    def _joined(self, before: tuple[int, ...], draft: Draft, unit: Unit) -> Draft:
        ids = (*before, *draft.ids)
        text, length = decode(self.tokenizer, ids), self.vocabulary.count(ids, unit)
        return replace(draft, ids=ids, text=text, length=length, eos_curve=())

    def unsteered(
        self,
        requests: Sequence[EvalRequest],
        landing: str = "natural",
        *,
        inputs: dict[str, Tensor] | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> list[Draft]:
        """Write without the signal: the base model alone.

        The base's own generation settings hold (beams, n-gram bans, …), but for those that say how long texts are:
        they would be a length control of their own. Positions stay doubled where the conventions are the authors',
        for the weights were trained so.

        Args:
            requests: What to write; all in one unit.
            landing: Who decides where the texts end; "natural" leaves it to the model.
            inputs: What the model reads instead of the sources, e.g. a prompt that names the length.
            limit: The most tokens to write when the landing is natural; fewer where the model has less room.
            **options: What else ``generate`` takes, e.g. ``num_return_sequences``: then there are so many drafts for
                each request, one after the other.
        """
        target, inputs, options = self._target(requests), inputs or self.inputs(requests), self.settings | options
        first, mode, room = self.first(inputs), Landing.parse(landing), self.room(inputs)
        if mode is Landing.NATURAL:
            options.setdefault("max_new_tokens", limit if room is None else min(limit, room))
        if self.flows(len(requests), options):
            return self._flow(target, mode, self._unpad(inputs), options, ROWS, steered=False)
        budgets = self._budgets(target, mode, room, options)
        start = torch.full((len(requests),), first, device=inputs["input_ids"].device)
        call = GenerateCall(target, mode, start, first, room, self.vocabulary)

        def generate(**kwargs: Any) -> Any:
            prepared = call.prepare(self._inner.generation_config, kwargs, report=True)
            return call.finish(self.model.base_model.generate(**inputs, **prepared))

        return self._write(generate, first, options, budgets)

    def flows(self, texts: int, options: Mapping[str, Any]) -> bool:
        """Tell whether so many texts are written by our own loop, where that is a gain, or by ``generate``.

        Args:
            texts: How many.
            options: What ``generate`` would be given.
        """
        if texts == 1 and self._inner.device.type == "cpu":
            return False
        reason = unsupported(self.model, {"do_sample": False, **self.settings, **options, "no_loops": None})
        if reason is not None and reason not in self._told:
            own = unsupported(self.model, {"do_sample": False}) is not None
            log.log(logging.INFO if own else logging.DEBUG, "Texts are written with generate, because %s.", reason)
            self._told.add(reason)
        return reason is None

    def flow(
        self,
        requests: Sequence[EvalRequest],
        sources: list[list[int]],
        landing: str,
        rows: int,
        watch: TokenListener | None = None,
        begun: Sequence[Begun] | None = None,
        **options: Any,
    ) -> list[Draft]:
        """Write with the signal in so many rows, each filled again as its text ends; see ``flows``.

        Args:
            requests: What to write, in one unit; those that come first are begun first.
            sources: What the model reads for each.
            landing: Who decides where the texts end.
            rows: How many are written at the same time.
            watch: Reads along.
            begun: What is there of each text.
            **options: What else ``generate`` takes.
        """
        target, mode, options = self._target(requests), Landing.parse(landing), self.settings | options
        return self._flow(target, mode, sources, options, rows, watch, steered=True, begun=begun)

    def inputs(self, requests: Sequence[EvalRequest]) -> dict[str, Tensor]:
        """Return what the model reads."""
        return self.pad(self.encoder.read([request.example for request in requests]))

    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Make a batch of rows of ids, padded on the left for decoder-only models, else on the right.

        Raises:
            SourceError: If one is longer than the model can read.
        """
        room, spare = self.model.family.room(self._inner), 0 if self.encoder_decoder else 2
        longest = max(map(len, rows))
        if room is not None and longest + spare > room:
            raise SourceError(f"A source has {longest} tokens, but this model has {room} positions. Shorten it.")
        batch = pad_prompts(rows, self._pad, left=not self.encoder_decoder)
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def first(self, inputs: dict[str, Tensor]) -> int:
        """Return the column of the first id that is written now."""
        written = inputs.get("decoder_input_ids") if self.encoder_decoder else inputs["input_ids"]
        return 1 if written is None else written.shape[1]

    def room(self, inputs: dict[str, Tensor]) -> int | None:
        """Return how many tokens the model can write, or None if there is no limit."""
        room = self.model.family.room(self._inner)
        return None if room is None else room - self.first(inputs)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids that the model would write a text with, without special tokens."""
        how = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return tuple(self.tokenizer(text_target=text, **how)["input_ids"])

    def count(self, text: str, unit: Unit) -> int:
        """Count a text; tokens are those that the model would write it with."""
        return self.vocabulary.count(self.encode(text), unit) if unit is Unit.TOKENS else measure(text, unit)

    def convert(self, request: EvalRequest, unit: Unit) -> int:
        """Estimate a request's target in another unit: as many as in a piece of the source of that length."""
        if unit == request.unit:
            return request.target
        source = request.example.source
        return max(1, round(request.target * self.count(source, unit) / max(1, self.count(source, request.unit))))

    def _target(self, requests: Sequence[EvalRequest]) -> Target:
        units = {request.unit for request in requests}
        if len(units) != 1:
            raise OptionError(f"A batch is written in one unit; got {', '.join(sorted(units)) or 'no request'}.")
        unit = units.pop()
        if unit is not Unit.TOKENS:
            self.vocabulary.require_tokenizer(unit)
        return Target(unit, tuple(request.target for request in requests))

    def _budgets(
        self,
        target: Target,
        landing: Landing,
        room: int | None,
        options: Mapping[str, Any],
        begun: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """Return the most tokens each request would be given alone; a call gives all as many as the longest needs.

        A text that misses its target is cut there, so that it does not depend on what it was written with. What is
        there of a text counts, unless the caller sets the limit.
        """
        if "max_new_tokens" in options:
            return [int(options["max_new_tokens"])] * len(target.values)
        whole = [step_budget(Target(target.unit, (value,)), landing, room, self.extra) for value in target.values]
        return [max(1, budget - len(ids)) for budget, ids in zip(whole, begun or [()] * len(whole), strict=True)]

    def _flow(
        self,
        target: Target,
        landing: Landing,
        sources: list[list[int]],
        options: dict[str, Any],
        rows: int,
        watch: TokenListener | None = None,
        *,
        steered: bool,
        begun: Sequence[Begun] | None = None,
    ) -> list[Draft]:
        """Write with our own loop, so many texts at a time."""
        orders, room = list[TokenRequest](), self.model.family.room(self._inner)
        for ids, value, there in zip(sources, target.values, begun or [FRESH] * len(sources), strict=True):
            left = None if room is None else room - (1 if self.encoder_decoder else len(ids))
            (budget,) = self._budgets(Target(target.unit, (value,)), landing, left, options, [there.ids])
            orders.append(TokenRequest(ids, value, len(there.ids) + budget, there))
        draws = any(order.begun.draw for order in orders)
        settings = DecodingSettings(target.unit, landing, tuple(self.eos), options.get("no_loops"), steered, draws)
        self._decoder = self._decoder or DecodingLoop(self.model)
        texts = self._decoder.write(orders, settings, rows, watch)
        return [self._draft(written, len(order.begun.ids)) for written, order in zip(texts, orders, strict=True)]

    def _unpad(self, inputs: dict[str, Tensor]) -> list[list[int]]:
        masks = inputs["attention_mask"].bool().tolist()
        return [list(compress(ids, mask)) for ids, mask in zip(inputs["input_ids"].tolist(), masks, strict=True)]

    def _draft(self, written: TokenResult, before: int) -> Draft:
        ids, report = written.ids[: written.kept], written.report
        ended = written.kept < len(written.ids)  # by EOS, or where a landing took the end back
        return Draft(
            ids=ids,
            text=decode(self.tokenizer, ids),
            length=self.vocabulary.count(ids, report.unit),
            ended=ended,
            landed=report.landed,
            eos_probability=report.eos_probability if ended else None,
            tokens_spent=len(written.ids) - before,
            eos_curve=() if before else tuple(round(chance, 6) for chance in written.eos_curve[: len(ids) + ended]),
        )

    def _write(
        self, generate: Callable[..., Any], first: int, options: dict[str, Any], budgets: list[int]
    ) -> list[Draft]:
        """Generate, and tell what came of it."""
        changes = options.pop("logits_processor", [])
        watch = _Watch(self.eos)
        settings = {"do_sample": False, "pad_token_id": self._pad, **options}
        with torch.inference_mode(), without_forced_eos(self._inner):
            output, reports = generate(logits_processor=[watch, *changes], return_dict_in_generate=True, **settings)
        rows = output.sequences[:, first:].tolist()
        curves, choices = watch.along(len(rows), len(rows[0]), output.get("beam_indices"))
        spent, beams, copies = watch.spent(first), len(watch.ids) // len(rows), len(rows) // len(budgets)
        drafts = []
        for row, (written, report) in enumerate(zip(rows, reports, strict=True)):
            budget, landed = budgets[row // copies], report.landed
            if landed == "missed":
                written = written[:budget]
            stop = self._stop(written)
            ids, ended = tuple(written[:stop]), stop is not None
            if landed == "natural" and changes and self._stop(choices[row].tolist()) != stop:
                landed = "forced"
            curve = tuple(round(chance, 6) for chance in curves[row, : len(ids) + ended].tolist())
            drafts.append(
                Draft(
                    ids=ids,
                    text=decode(self.tokenizer, ids),
                    length=self.vocabulary.count(ids, report.unit),
                    ended=ended,
                    landed=landed,
                    eos_probability=(curve[-1] if changes else report.eos_probability) if ended else None,
                    tokens_spent=spent[row] if beams == 1 and ended else beams * (len(ids) + ended),
                    eos_curve=curve,
                )
            )
        return drafts

    def _stop(self, ids: list[int]) -> int | None:
        return next((column for column, i in enumerate(ids) if i in self.eos), None)


class _Watch(EosTrace):
    """A trace of the model before anything changes its scores, which also remembers what the last step was given."""

    ids: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.ids = input_ids
        return super().__call__(input_ids, scores)

    def spent(self, first: int) -> list[int]:
        """Return how many tokens each row was given, its EOS included."""
        rows = self.ids[:, first:].tolist()  # all but what the last step chose
        return [next((step + 1 for step, i in enumerate(row) if i in self.eos), len(row) + 1) for row in rows]
