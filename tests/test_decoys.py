"""Decoys: what they are asked for, what of them counts, and that a model learns from them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from impatience import LengthControlled
from impatience.decoys import Decoys
from impatience.errors import OptionError
from impatience.recipes import load_recipe
from impatience.trainer import token_loss
from impatience.training import train

TOY = Path(__file__).parents[1] / "recipes" / "small" / "toy.yaml"
EOS, START = 1, 2


def row(name: str, prompt: list[int], text: list[int]) -> dict[str, object]:
    ids = [*text, EOS]
    count = sum(i not in (EOS, START) for i in text)
    return {"id": name, "input_ids": prompt + ids, "labels": [-100] * len(prompt) + ids, "target_tokens": count}


ROWS = [row("a", [7, 8], [10, 11, 12, 13]), row("b", [9], [20, 21])]


def test_a_decoy_is_cut_or_left_open_where_it_is_asked_to_end() -> None:
    decoys = Decoys(0.9, 1, 0, EOS, [EOS, START], encoder_decoder=False)
    assert decoys._ask(ROWS[0], 2) == {
        "id": "a",
        "input_ids": [7, 8, 10, 11, EOS],
        "labels": [-100, -100, 10, 11, EOS],
        "learnt": [-100, -100, -100, -100, EOS],
        "target_tokens": 4,
        "asked": 2,
        "open": False,
    }
    longer = decoys._ask(ROWS[1], 4)
    assert (longer["input_ids"], longer["labels"]) == (ROWS[1]["input_ids"], ROWS[1]["labels"])
    assert (longer["learnt"], longer["asked"], longer["open"]) == ([-100, -100, -100, EOS], 4, True)
    own = decoys._ask(ROWS[1], 2)
    assert (own["learnt"], own["open"]) == (ROWS[1]["labels"], False)


def test_the_source_of_an_encoder_decoder_and_its_special_tokens_stay() -> None:
    text = {"id": "a", "input_ids": [7, 8, EOS], "labels": [START, 10, 11, 12, EOS], "target_tokens": 3}
    made = Decoys(0.9, 1, 0, EOS, [EOS, START], encoder_decoder=True)._ask(text, 1)
    assert made["input_ids"] == [7, 8, EOS]
    assert made["labels"] == [START, 10, EOS]
    assert made["learnt"] == [-100, -100, EOS]


def test_the_choice_depends_on_the_rows_and_the_seed_alone() -> None:
    many = [row(str(n), [5], list(range(10, 11 + n % 7))) for n in range(400)]
    asked = [[made["asked"] for made in Decoys(0.3, 1, seed, EOS, [EOS], False)(many)] for seed in (0, 0, 1)]
    assert asked[0] == asked[1] != asked[2]
    changed = sum(goal != one["target_tokens"] for goal, one in zip(asked[0], many, strict=True))
    assert changed / 400 == pytest.approx(0.3 * 6 / 7, abs=0.06)


def test_where_the_end_is_open_what_counts_is_that_eos_is_not_given() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[3, EOS, -100], [-100, 4, EOS]])
    chances = logits.softmax(-1)
    loss, count = token_loss(logits, labels, [EOS], 2.0, torch.tensor([True, False]))
    expected = -math.log(chances[0, 0, 3]) - 2 * math.log(1 - chances[0, 1, EOS])
    expected += -math.log(chances[1, 1, 4]) - 2 * math.log(chances[1, 2, EOS])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert count == 4


@pytest.mark.parametrize("bad", ["-0.1", "1"])
def test_a_share_is_a_share(bad: str) -> None:
    with pytest.raises(OptionError, match=r"train.decoys"):
        load_recipe(TOY, {"train.decoys": bad})


@pytest.mark.parametrize("base", ["toy-bart", "toy-llama"])
def test_a_model_learns_from_decoys(base: str, tmp_path: Path) -> None:
    changes = {"model.base": base, "train.decoys": "0.3", "train.save_steps": "250", "train.eval_steps": "250"}
    folder = train(load_recipe(TOY, {**changes, "model.method": "glide", "model.options": "{landing: 8}"}), tmp_path)
    model = LengthControlled.from_pretrained(folder / "model")
    ids = model.tokenizer("amber birch cedar delta", return_tensors="pt", add_special_tokens=False).input_ids
    _, reports = model.generate(ids.repeat(8, 1), target_tokens=[5, 8, 11, 14, 17, 20, 24, 29], return_report=True)
    assert sum(abs(report.length - report.target) for report in reports) <= 8
