"""Whether the last sentence is over, or only looks so: a full stop is written easily, anywhere.

A plain language model reads a text up to its last word and says how likely a sentence ends there:

    closing = sum of what it gives the tokens that begin with . ! ? or the like        closed = closing ≥ bound

and a text that does not end as a sentence at all is not closed. The bound of 3 % lies where people end nearly all of
their sentences above it, and cuts inside a sentence are nearly all below it; docs/study/log.md has the figures. The
model that judges must not be the one that wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from impatience.errors import OptionError
from impatience.lengths import CLOSERS, STOPS, ends_sentence
from impatience.metrics.base import Aggregate, Column, Metric, Prediction
from impatience.registry import option
from impatience.sources import check_place, resolve


@dataclass(frozen=True)
class Closing(Metric):
    """How likely a language model finds it that a sentence ends where the text does."""

    summary: ClassVar[str] = "whether the last sentence is over where it stops, by a language model"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("closing", "how likely a sentence ends there", "higher"),
        Column("closed", "1 if that is likely enough and the text ends as a sentence", "higher", percent=True),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("closed", "texts whose last sentence is over", "higher", ("closed",), percent=True),
        Aggregate("closing", "mean likelihood of a sentence's end where texts stop", "higher", ("closing",)),
    )

    model: str = option("smollm2-135m-instruct", "a decoder-only language model: a name or a folder")
    bound: float = option(0.03, "the least likelihood of an end; from 0 to 1")
    context: int = option(160, "tokens of the text that are read, the last ones")
    batch_size: int = option(16, "texts that are read at once")

    def __post_init__(self) -> None:
        """Refuse a bound that is no share, and numbers below 1."""
        if not 0 <= self.bound <= 1:
            raise OptionError(f"closing: bound={self.bound}: give a share from 0 to 1.")
        for name, value in (("context", self.context), ("batch_size", self.batch_size)):
            if value < 1:
                raise OptionError(f"closing: {name}={value}: give a whole number of at least 1.")

    def check(self) -> None:
        """Refuse a model that cannot be there."""
        super().check()
        check_place(self.model)

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Read each text up to its last word; one without words is not closed."""
        bodies = [prediction.text.rstrip(f"{STOPS}{CLOSERS} \n") for prediction in predictions]
        _, tokenizer, _ = self._judge
        ids = {place: tokenizer(body).input_ids[-self.context :] for place, body in enumerate(bodies) if body}
        order = sorted(ids, key=lambda place: len(ids[place]))
        likely = [0.0] * len(bodies)
        for begin in range(0, len(order), self.batch_size):
            part = order[begin : begin + self.batch_size]
            for place, found in zip(part, self._ends([ids[place] for place in part]), strict=True):
                likely[place] = found
        whole = [
            float(value >= self.bound and ends_sentence(one.text))
            for value, one in zip(likely, predictions, strict=True)
        ]
        return {"closing": likely, "closed": whole}

    def facts(self) -> dict[str, Any]:
        """Say which model, and from where on a text is closed."""
        return {"model": self.model, "bound": self.bound, "context": self.context}

    def _ends(self, rows: Sequence[list[int]]) -> list[float]:
        """Return how likely a sentence ends after each row of ids."""
        import torch

        model, _, stops = self._judge
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
        last = torch.tensor([len(row) - 1 for row in rows], device=model.device)
        mask = (torch.arange(width, device=model.device) <= last[:, None]).long()
        with torch.no_grad():
            hidden = model.base_model(ids, attention_mask=mask).last_hidden_state[range(len(rows)), last]
            chances = model.get_output_embeddings()(hidden).softmax(-1)
        found: list[float] = chances[:, stops].sum(-1).tolist()
        return found

    @cached_property
    def _judge(self) -> tuple[Any, Any, list[int]]:
        """The model, its tokenizer, and the tokens that end a sentence; loaded once."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = resolve(self.model, quiet=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        stops = [number for number in range(len(tokenizer)) if tokenizer.decode([number]).startswith(tuple(STOPS))]
        return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, stops


METRIC = Closing
