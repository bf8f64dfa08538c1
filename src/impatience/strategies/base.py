"""What a strategy is: a way to get texts of the lengths asked for out of a model, with or without its signal.

A strategy is a frozen dataclass whose fields are its options. It writes with a *pen*, which holds the model and knows
how sources are put to it. What a strategy returns depends on its requests and seeds alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from impatience.data import Encoder, pad_prompts
from impatience.errors import OptionError
from impatience.families import unwrap
from impatience.generation import Call, Landed, eos_ids
from impatience.landing import Landing
from impatience.lengths import Target, decode
from impatience.model import LengthControlled
from impatience.protocols import Request
from impatience.registry import Registry


@dataclass(frozen=True)
class Draft:
    """A written text.

    Attributes:
        ids: What was written, EOS and padding left out.
        text: The same, as a reader gets it.
        length: In the unit asked for.
        ended: Whether it was ended rather than cut by the budget of steps.
        landed: See ``LengthReport``; a strategy that cuts or chooses says "forced" where that put it on target.
        eos_probability: What the model itself gave EOS where the text stops; None if that is not known.
        tokens_spent: Tokens that were generated to get it.
    """

    ids: tuple[int, ...]
    text: str
    length: int
    ended: bool
    landed: Landed
    eos_probability: float | None
    tokens_spent: int


class Pen:
    """A model to write with.

    Args:
        model: What writes.
        encoder: How sources are put to it.
    """

    def __init__(self, model: LengthControlled, encoder: Encoder) -> None:
        model.eval()
        self.model, self.encoder, self.tokenizer = model, encoder, model.tokenizer
        self.vocabulary, self.encoder_decoder = model.vocabulary, model.family.encoder_decoder

    def steered(self, requests: Sequence[Request], landing: str = "natural", **options: Any) -> list[Draft]:
        """Write with the signal.

        Args:
            requests: What to write; all in one unit.
            landing: Who decides where the texts end.
            **options: What else ``generate`` takes.
        """
        inputs, target = self.inputs(requests), _target(requests)
        named: Any = {f"target_{target.unit}": list(target.values)}
        with torch.inference_mode():
            output, reports = self.model.generate(**inputs, **named, landing=landing, return_report=True, **options)
        return self._drafts(output, reports, 1 if self.encoder_decoder else inputs["input_ids"].shape[1])

    def unsteered(
        self,
        requests: Sequence[Request],
        landing: str = "natural",
        inputs: dict[str, Tensor] | None = None,
        **options: Any,
    ) -> list[Draft]:
        """Write without the signal: the base model alone, its ending settled by the landing.

        Args:
            requests: What to write; all in one unit.
            landing: Who decides where the texts end; "natural" leaves it to the model.
            inputs: What the model reads instead of the sources, e.g. a prompt that names the length.
            **options: What else ``generate`` takes, e.g. ``num_return_sequences``: then there are so many drafts for
                each request, one after the other.
        """
        inputs = inputs or self.inputs(requests)
        ids = inputs["input_ids"]
        base = self.model.base_model
        inner = unwrap(base)
        first = 1 if self.encoder_decoder else ids.shape[1]
        room = self.model.family.room(inner)
        start = torch.full((len(requests),), first, device=ids.device)
        call = Call(
            _target(requests),
            Landing.parse(landing),
            start,
            first,
            None if room is None else room - first,
            self.vocabulary,
        )
        with torch.inference_mode():
            prepared = call.prepare(inner.generation_config, {**inputs, **options}, report=True)
            output, reports = call.finish(base.generate(prepared.pop("input_ids"), **prepared))
        return self._drafts(output, reports, first)

    def inputs(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return what the model reads, padded on the left for decoder-only models, else on the right."""
        return self.pad([self.encoder.reads(request.example) for request in requests])

    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Make a batch of rows of ids."""
        batch = pad_prompts(rows, int(self.model.generation_config.pad_token_id or 0), left=not self.encoder_decoder)
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def _drafts(self, output: Tensor, reports: Sequence[Any], first: int) -> list[Draft]:
        eos = eos_ids(unwrap(self.model.base_model).generation_config)
        drafts = []
        for row, report in zip(output[:, first:].tolist(), reports, strict=True):
            stop = next((column for column, i in enumerate(row) if i in eos), None)
            ids = tuple(row[:stop])
            drafts.append(
                Draft(
                    ids,
                    decode(self.tokenizer, list(ids)),
                    report.length,
                    stop is not None,
                    report.landed,
                    report.eos_probability if stop is not None else None,
                    len(ids) + (stop is not None),
                )
            )
        return drafts


def _target(requests: Sequence[Request]) -> Target:
    units = {request.unit for request in requests}
    if len(units) != 1:
        raise OptionError(f"A batch is written in one unit; got {', '.join(sorted(units)) or 'no request'}.")
    return Target(units.pop(), tuple(request.target for request in requests))


@dataclass(frozen=True)
class Strategy(ABC):
    """One strategy; a subclass's fields are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write a text for each request; all of them are in one unit."""


STRATEGIES: Registry[type[Strategy]] = Registry("impatience.strategies", "STRATEGY", "strategy")
