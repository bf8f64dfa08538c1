"""Whether the last sentence is over, or only looks so: a full stop is written easily, anywhere.

A plain language model reads a text up to its last word and says how likely a sentence ends there:

    closing = sum of what it gives the tokens that end a sentence: . !” ). and the like        closed = closing ≥ bound

and a text that does not end as a sentence at all is not closed. At the bound of 3 % nearly all sentences of people are
closed, and hardly any cut inside one (study/closing_bound.py). It is blind where a stop can mean something else, as
after a number, and where a vocabulary spells stops in bytes, as SmolLM2's does in scripts other than Latin. And it is
one model's view: whoever trains a model to please it should let another judge as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from impatience.config import option
from impatience.errors import ImpatienceError, ModelFilesError, OptionError
from impatience.lengths import CLOSERS, STOPS, ends_sentence
from impatience.metrics.base import Aggregate, Column, Metric, Prediction
from impatience.sources import resolve

_MARKS = re.escape(CLOSERS)
_TAIL = re.compile(rf"[{STOPS}{_MARKS}\s]+$")
_END = re.compile(rf"[{_MARKS}]*[{STOPS}][{STOPS}{_MARKS}\s]*")


@dataclass(frozen=True)
class Closing(Metric):
    """How likely a language model finds it that a sentence ends where the text does."""

    summary: ClassVar[str] = "whether the last sentence is over where it stops, by a language model"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("closing", "how likely a sentence ends there; 0 without a word", "higher"),
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
        """Refuse a model that is not there or reads no text by itself; its weights are not loaded yet.

        Raises:
            ModelFilesError: If there is no such model.
            OptionError: If it is an encoder-decoder.
        """
        super().check()
        with self._loading():
            self._config()

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Read each text up to its last word."""
        texts = [prediction.text for prediction in predictions]
        likely = self.likely(texts)
        whole = [value >= self.bound and ends_sentence(text) for value, text in zip(likely, texts, strict=True)]
        return {"closing": likely, "closed": [float(one) for one in whole]}

    def likely(self, texts: Sequence[str]) -> list[float]:
        """Return how likely a sentence ends where each text does, whether or not there is a stop."""
        found = [0.0] * len(texts)
        ids = {place: self._read(body) for place, text in enumerate(texts) if (body := _TAIL.sub("", text))}
        order = sorted((place for place, row in ids.items() if row), key=lambda place: len(ids[place]))
        for begin in range(0, len(order), self.batch_size):
            part = order[begin : begin + self.batch_size]
            for place, value in zip(part, self._ends([ids[place] for place in part]), strict=True):
                found[place] = value
        return found

    def facts(self) -> dict[str, Any]:
        """Say which model, and from where on a text is closed."""
        return {"model": self.model, "bound": self.bound, "context": self.context}

    def _read(self, body: str) -> list[int]:
        """Return the last ids of a text, behind what the tokenizer begins every text with."""
        model, tokenizer, _ = self._judge
        first = [number for number in tokenizer("").input_ids if number == tokenizer.bos_token_id]
        room = (getattr(model.config, "max_position_embeddings", None) or self.context) - len(first)
        ids = tokenizer(body, add_special_tokens=False).input_ids[-min(self.context, room) :]
        return first + ids if ids else []

    def _ends(self, rows: Sequence[list[int]]) -> list[float]:
        """Return how likely a sentence ends after each row of ids."""
        import torch

        model, _, ends = self._judge
        last = torch.tensor([len(row) - 1 for row in rows], device=model.device)
        width = int(last.max()) + 1
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
        mask = (torch.arange(width, device=model.device) <= last[:, None]).long()
        places, which = last.unique(return_inverse=True)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, logits_to_keep=places).logits[range(len(rows)), which]
        found: list[float] = logits.softmax(-1)[:, ends].sum(-1).tolist()
        return found

    @cached_property
    def _judge(self) -> tuple[Any, Any, list[int]]:
        """The model, its tokenizer, and the tokens that end a sentence; loaded once."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with self._loading():
            self._config()
            folder = resolve(self.model, quiet=True)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ends = [number for number in range(len(tokenizer)) if _END.fullmatch(tokenizer.decode([number]))]
        return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, ends

    def _config(self) -> None:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(resolve(self.model, quiet=True))
        if config.is_encoder_decoder:
            raise OptionError(
                f"closing: model={self.model!r} is an encoder-decoder ({config.model_type}), which does not go on with "
                f"what it reads. Give a decoder-only language model."
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Say what to do where there is no language model."""
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, ImpatienceError):
                raise
            reason = str(error).partition("\n")[0]
            raise ModelFilesError(
                f"closing: {self.model!r} could not be loaded as a language model ({reason}). Give the name of one, or "
                f"a folder that holds one with its tokenizer."
            ) from error


METRIC = Closing
