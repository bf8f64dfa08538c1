"""Short runs of the toy recipe, and tiny stand-ins for the models and data that recipes name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from impatience.training.recipe import Recipe, load_recipe
from support.toys import CORPUS, byte_level_tokenizer, tiny_model, wordpiece_tokenizer

ROOT = Path(__file__).parents[2]
TOY = ROOT / "recipes" / "small" / "toy.yaml"
SHORT = {
    "train.steps": "24",
    "train.batch_size": "8",
    "train.save_steps": "8",
    "train.eval_steps": "12",
    "train.log_steps": "4",
    "train.sample": "4",
    "data.limit": "120",
    "data.validation_limit": "8",
}

# The type of each base model, and its number of positions (None: any number).
KINDS: dict[str, tuple[str, int | None]] = {
    "facebook/bart-large": ("bart", 1024),
    "google-t5/t5-large": ("t5", None),
    "flan-t5-small-titles": ("t5", None),
    "opus-mt-fr-en": ("marian", 512),
    "smollm2-135m-instruct": ("llama", 8192),
}
LONG = " ".join(CORPUS[:24] * 12)
RUNGS = {
    "title": CORPUS[0],
    "impact": CORPUS[1],
    "assessment": " ".join(CORPUS[:3]),
    "abstract": " ".join(CORPUS[:6]),
    "digest": " ".join(CORPUS[:12]),
}


def toy(**changes: Any) -> Recipe:
    return load_recipe(TOY, {**SHORT, **{name.replace("__", "."): str(value) for name, value in changes.items()}})


def stand_in(name: str, **options: Any) -> tuple[Any, Any]:
    kind, positions = KINDS[name]
    tokenizer = byte_level_tokenizer() if kind == "llama" else wordpiece_tokenizer()
    sizes = {"max_position_embeddings": positions} if positions else {}
    sizes |= {"num_hidden_layers": 30} if kind == "llama" else {}  # recipes name layers
    return tiny_model(kind, vocab_size=len(tokenizer), **sizes), tokenizer


def fake_hub_set(repo: str, config: str | None, *, split: str, revision: str | None) -> list[dict[str, Any]]:
    answers = {"text": ["It"]}
    rows = {
        "abisee/cnn_dailymail": {"id": "a", "article": LONG, "highlights": f"{CORPUS[0]}\n{CORPUS[1]}"},
        "EdinburghNLP/xsum": {"id": "a", "document": LONG, "summary": CORPUS[2]},
        "rajpurkar/squad": {"id": "a", "title": "T", "context": LONG, "question": "What?", "answers": answers},
    }
    return [rows[repo]] * (7 if split == "train" else 3)


def as_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
