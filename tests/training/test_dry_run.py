"""Dry runs: a plan shows what a run will do, and raises the errors that the run would raise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from impatience.errors import DataError, ImpatienceError, OptionError, UnsupportedModelError
from impatience.training import shipped_recipes
from impatience.training.dry_run import Plan, plan
from impatience.training.recipe import load_recipe
from support.recipes import as_lines
from support.toys import CORPUS


def dry(recipe: str, **changes: Any) -> Plan:
    changed = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return plan(load_recipe(shipped_recipes.find(recipe), changed))


def test_plan_shows_prompt_text_and_steps(prepared: Path) -> None:
    planned = dry("small/toy", data__limit=100, train__batch_size=8, train__accumulation=3)
    assert planned.examples == {"train": 100, "validation": 64}
    assert (planned.steps_per_epoch, planned.steps, planned.rows) == (5, 250, 100)
    assert planned.source.endswith("</s>")
    assert planned.target.split()[0] == planned.source.split()[0]
    assert planned.target_tokens == len(planned.target.split())
    longer = dry("small/toy", train__steps="null", train__epochs=1.5)
    assert (longer.steps_per_epoch, longer.steps) == (125, 188)
    assert longer.encoded == 200


def test_plan_of_a_chat_model_separates_prompt_and_answer(prepared: Path) -> None:
    planned = dry("small/own")
    assert planned.source == f"user: Summarize the text below.\n\n{CORPUS[0]}\nassistant: "
    assert planned.target == f"{CORPUS[4]}<|end|>"


def test_plan_counts_adapters_and_sentence_copies(prepared: Path) -> None:
    planned = dry("small/toy", model__lora__rank=2, data__limit=10)
    assert 0 < planned.trained < planned.weights / 4
    (prepared / "train.jsonl").write_text(as_lines([{"source": CORPUS[0], "target": " ".join(CORPUS[1:3])}] * 3))
    copied = dry("small/own", data__sentence_copies=2)
    assert (copied.examples["train"], copied.rows, copied.encoded) == (3, 6, 6)


def test_plan_raises_the_errors_of_the_run(prepared: Path) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"data__max_target_tokens": 3}, DataError, "max_target_tokens is 3"),
        ({"data__template": "question"}, DataError, "answer: … context: …"),
        ({"data__template": "sumarize"}, OptionError, "Did you mean 'summarize'"),
        ({"data__prefix": "summarize"}, OptionError, "the template instructs a chat model"),
        ({"data__validation": "null"}, OptionError, "data.validation is missing"),
        ({"data__train": "nowhere.jsonl"}, DataError, "nowhere.jsonl"),
        ({"data__train": "elfie:impact"}, ImpatienceError, "Did you mean 'elife'"),
        ({"model__options": "{pulsation: 1000}"}, OptionError, "Nyquist"),
        ({"model__options": "{strenth: 1}"}, OptionError, "Did you mean 'strength'"),
        ({"model__options": "{layers: [70]}"}, OptionError, "layers has 70"),
        ({"model__method": "prr"}, ImpatienceError, "Did you mean 'pre'"),
        ({"model__method": "laam"}, UnsupportedModelError, "laam"),
    ]
    for changes, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            dry("small/own", **changes)
