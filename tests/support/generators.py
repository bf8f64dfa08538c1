"""Text generators with tiny random models, and requests for them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import torch

from impatience import attach
from impatience.data import Encoder, Request
from impatience.decoding.generator import TextGenerator
from impatience.lengths import Unit
from impatience.strategies import STRATEGIES
from support.toys import CORPUS, EOS, TOKENIZERS, tiny_model

KINDS = {"bart": "sentencepiece", "llama": "byte_level"}
"""One model type of each kind, and its tokenizer."""
ROOM = 400
SAMPLED = ("best_of_n", "metropolis")
SMALL = {"limit": 16, "n": 3, "steps": 2, "tries": 3}
"""Options that keep a strategy quick."""
TARGETS = {Unit.TOKENS: (3, 9, 14), Unit.WORDS: (2, 5, 9), Unit.CHARACTERS: (8, 21, 40), Unit.SENTENCES: (1, 2)}


def new_generator(
    kind: str,
    method: str = "pre",
    tokenizer: str = "",
    ending: float = 3,
    sizes: dict[str, Any] | None = None,
    **options: Any,
) -> TextGenerator:
    words = TOKENIZERS[tokenizer or KINDS[kind]]()
    base = tiny_model(kind, vocab_size=len(words), seed=3, **{"max_position_embeddings": ROOM, **(sizes or {})})
    with torch.no_grad():
        base.get_output_embeddings().weight[EOS] *= ending  # random weights hardly ever end by themselves
    model = attach(base, method, tokenizer=words, **options)
    model.taught = True
    return TextGenerator(model, Encoder(words, model.family.encoder_decoder, "summarize", 80))


generator = cache(new_generator)
"""A generator that tests share."""


def requests(unit: Unit, targets: tuple[int, ...] | None = None) -> list[Request]:
    return [
        Request(f"key-{row}", CORPUS[row], target, unit, example=f"id-{row}")
        for row, target in enumerate(targets or TARGETS[unit])
    ]


def base_alone(own: TextGenerator, asked: list[Request], **options: Any) -> list[tuple[int, ...]]:
    """Return what the base model writes by itself, the signal taken off."""
    inputs = own.inputs(asked)
    base = own.model.detach()
    output = base.generate(**inputs, **options)[:, own.first_column(inputs) :].tolist()
    return [tuple(row[: row.index(EOS)] if EOS in row else row) for row in output]


def strategy(name: str, **options: Any) -> Any:
    known = {field.name for field in fields(STRATEGIES[name])}
    return STRATEGIES[name](**{option: value for option, value in SMALL.items() if option in known}, **options)
