"""Decoys: their targets, the positions that count in the loss, and that a model learns from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from impatience import LengthControlled
from impatience.data import Encoder, Example
from impatience.errors import OptionError
from impatience.lengths import Unit, measure
from impatience.sources import toy
from impatience.training.decoys import MAX_LATE_TOKENS, Decoys
from impatience.training.recipe import TrainPart, load_recipe
from impatience.training.run import train
from impatience.training.trainer import token_loss
from impatience.vocabulary import Vocabulary
from support.recipes import TOY
from support.toys import CORPUS, byte_level_tokenizer

EOS, START = 1, 2
PLAIN = Vocabulary(100, [EOS, START])


def decoys(
    share: float = 0.9, cuts: float = 0.5, reach: float = 4.0, late: float = 0.0, seed: int = 0, **changes: Any
) -> Decoys:
    units: Any = tuple(map(str, changes.pop("units", [Unit.TOKENS])))
    part = TrainPart(decoys=share, decoys_cuts=cuts, decoys_late=late, decoys_reach=reach, units=units, seed=seed)
    return Decoys(part, **{"vocabulary": PLAIN, "eos": [EOS], "encoder_decoder": False, **changes})


def row(name: str, prompt: list[int], text: list[int]) -> dict[str, Any]:
    ids = [*text, EOS]
    return {"id": name, "input_ids": prompt + ids, "labels": [-100] * len(prompt) + ids, "target_tokens": len(text)}


def test_decoy_is_cut_left_open_or_ended_late() -> None:
    long = row("a", [7, 8], [10, 11, 12, 13])
    cut = decoys().cut(long, [0, 0, 1, 2, 3, 4, 4], 2)
    assert cut["input_ids"] == [7, 8, 10, 11, EOS]
    assert cut["labels"] == [-100, -100, 10, 11, EOS]
    assert cut["loss_labels"] == [-100, -100, -100, -100, EOS]
    assert (cut["target"], cut["open"]) == (2, False)
    short = row("b", [9], [20, 21])
    longer = decoys().leave_open(short, 4)
    assert (longer["input_ids"], longer["labels"]) == (short["input_ids"], short["labels"])
    assert (longer["loss_labels"], longer["target"], longer["open"]) == ([-100, -100, -100, EOS], 4, True)
    unchanged = decoys().cut(short, [0, 1, 2, 2], 2)
    assert (unchanged["loss_labels"], unchanged["open"]) == (short["labels"], False)
    late = decoys().end_late(long, [0, 0, 1, 2, 3, 4, 4], 4, 2)
    assert late["input_ids"] == [7, 8, 10, 11, 12, EOS]
    assert late["loss_labels"] == [-100, -100, -100, 11, 12, EOS]
    assert (late["target"], late["open"]) == (1, False)


def test_cut_keeps_the_source_and_special_tokens_of_an_encoder_decoder() -> None:
    text = {"id": "a", "input_ids": [7, 8, EOS], "labels": [START, 10, 11, 12, EOS], "target_tokens": 3}
    made = decoys(encoder_decoder=True).cut(text, [0, 1, 2, 3, 3], 1)
    assert made["input_ids"] == [7, 8, EOS]
    assert made["labels"] == [START, 10, EOS]
    assert made["loss_labels"] == [-100, -100, EOS]


def test_choice_depends_only_on_rows_and_seed() -> None:
    many = [row(str(n), [5], list(range(10, 30))) for n in range(400)]
    chosen = [[made["target"] for made in decoys(0.3, seed=seed)(many)] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert sum(target != 20 for target in chosen[0]) / 400 == pytest.approx(0.3, abs=0.06)


def test_cuts_and_reach_bound_the_targets() -> None:
    many = [row(str(n), [5], list(range(10, 30))) for n in range(400)]
    targets = {cuts: [made["target"] for made in decoys(0.9, cuts, 10.0)(many)] for cuts in (0.0, 0.25, 1.0)}
    assert 21 in targets[0.0]
    assert min(targets[0.0]) == 20
    assert 150 < max(targets[0.0]) <= 200
    assert {made["target"] for made in decoys(0.9, 0.0, 1.0)(many)} == {20, 21}
    assert min(targets[1.0]) == 1
    assert max(targets[1.0]) == 20
    assert sum(target < 20 for target in targets[0.25]) / 400 == pytest.approx(0.9 * 0.25, abs=0.06)


@pytest.mark.parametrize("unit", [Unit.WORDS, Unit.CHARACTERS, Unit.SENTENCES])
def test_other_units_are_counted_on_the_text_and_cut_between_words(unit: Unit) -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(len(tokenizer), (), tokenizer)
    encoder = Encoder(tokenizer, True, "summarize", 64)
    texts = [" ".join(CORPUS[n : n + 1 + n % 3]) for n in range(20)]
    rows = [encoder(Example(str(n), "a source", text)) for n, text in enumerate(texts)]
    eos = [tokenizer.eos_token_id]
    made = decoys(0.0, units=[unit], vocabulary=vocabulary, eos=eos, encoder_decoder=True)(rows)
    if unit is not Unit.SENTENCES:  # the splitter knows more of sentences than a table of tokens
        assert [decoy["target"] for decoy in made] == [unit.tokens * measure(text, unit) for text in texts]
    made = decoys(0.9, units=[unit], vocabulary=vocabulary, eos=eos, encoder_decoder=True)(rows)
    cut = [decoy for decoy, before in zip(made, rows, strict=True) if len(decoy["labels"]) < len(before["labels"])]
    assert cut
    for decoy in cut:
        target = round(decoy["target"] / unit.tokens)
        assert vocabulary.count(decoy["labels"][:-1], unit) == target or unit is Unit.SENTENCES
        if unit is Unit.WORDS:
            rest = rows[int(decoy["id"])]["labels"][len(decoy["labels"]) - 1]
            assert vocabulary.count([*decoy["labels"][:-1], rest], unit) == target + 1


@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS])
def test_late_text_finishes_a_sentence_shortly_after_its_target(unit: Unit) -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(len(tokenizer), (), tokenizer)
    encoder = Encoder(tokenizer, False, "summarize", 64)
    rows = [encoder(Example(str(n), "a source", " ".join(CORPUS[n : n + 1 + n % 3]))) for n in range(20)]
    settings: Any = {"units": [unit], "vocabulary": vocabulary, "eos": [tokenizer.eos_token_id]}
    made = [
        row
        for row in decoys(0.99, 0.0, late=1.0, **settings)(rows)
        if -100 in row["loss_labels"][len(row["labels"]) // 2 :]
    ]
    assert len(made) > 10
    for decoy in made:
        text = [label for label in decoy["labels"] if label != -100]
        assert tokenizer.decode(text[:-1])[-1] in ".?!”…"
        assert 0 < unit.tokens * vocabulary.count(text[:-1], unit) - decoy["target"] <= MAX_LATE_TOKENS + 1
        assert decoy["loss_labels"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("encoder_decoder", [True, False])
def test_progress_is_the_decoders_own_count(unit: Unit, encoder_decoder: bool) -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(len(tokenizer), (), tokenizer)
    encoder = Encoder(tokenizer, encoder_decoder, "summarize", 64)
    rows = [encoder(Example(str(n), "a source", " ".join(CORPUS[n : n + 1 + n % 3]))) for n in range(20)]
    settings: Any = {"vocabulary": vocabulary, "eos": [tokenizer.eos_token_id], "encoder_decoder": encoder_decoder}
    for made in decoys(0.5, units=[unit], **settings)(rows):
        labels = torch.tensor([made["labels"]])
        ids, written = labels.clamp(min=0), labels != -100
        if encoder_decoder:
            ids, written = (torch.nn.functional.pad(tensor, (1, -1)) for tensor in (ids, written))
        counted = unit.tokens * vocabulary.progress(ids, written, unit)
        reported = [min(count, made["target"]) for count in made["progress"]]
        assert reported == pytest.approx(counted[0].tolist())


def test_loss_of_an_open_row_falls_with_the_probability_of_eos() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[3, EOS, -100], [-100, 4, EOS]])
    chances = logits.softmax(-1)
    loss, count = token_loss(logits, labels, [EOS], 2.0, open_rows=torch.tensor([True, False]))
    expected = -math.log(chances[0, 0, 3]) - 2 * math.log(1 - chances[0, 1, EOS])
    expected += -math.log(chances[1, 1, 4]) - 2 * math.log(chances[1, 2, EOS])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert count == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"train.decoys": "-0.1"},
        {"train.decoys": "1"},
        {"train.decoys_cuts": "1.5"},
        {"train.decoys_cuts": "0.5", "train.decoys_late": "0.6"},
        {"train.decoys_reach": "0.5"},
        {"train.units": "[]"},
    ],
)
def test_impossible_share_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        load_recipe(TOY, bad)


@pytest.mark.slow
@pytest.mark.parametrize("base", toy.NAMES)
def test_model_learns_from_decoys_in_two_units(base: str, tmp_path: Path) -> None:
    changes = {"model.base": base, "train.decoys": "0.3", "train.save_steps": "250", "train.eval_steps": "250"}
    changes |= {"model.method": "glide", "model.options": "{countdown: 8}", "train.units": "[tokens, words]"}
    model = LengthControlled.from_pretrained(train(load_recipe(TOY, changes), tmp_path) / "model")
    encoder = Encoder(model.tokenizer, model.family.encoder_decoder, "summarize", 16)
    ids = torch.tensor([encoder.prompt(Example("a", "amber birch cedar delta", ""))] * 8)
    for unit in ("tokens", "words"):
        targets: Any = {f"target_{unit}": [5, 8, 11, 14, 17, 20, 24, 29]}
        _, reports = model.generate(ids, **targets, return_report=True)
        assert sum(abs(report.length - report.target) for report in reports) <= 8
