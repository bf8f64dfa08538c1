"""What rows are asked for in training, what of a decoy counts, and that a model learns from it."""

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
from impatience.training.decoys import LATE, Decoys
from impatience.training.recipe import load_recipe
from impatience.training.run import train
from impatience.training.trainer import token_loss
from impatience.vocabulary import Vocabulary
from support.toys import CORPUS, byte_level_tokenizer

TOY = Path(__file__).parents[2] / "recipes" / "small" / "toy.yaml"
EOS, START = 1, 2
PLAIN = Vocabulary(100, [EOS, START])


def decoys(
    share: float = 0.9, cuts: float = 0.5, reach: float = 4.0, late: float = 0.0, seed: int = 0, **changes: Any
) -> Decoys:
    settings: Any = {"units": [Unit.TOKENS], "vocabulary": PLAIN, "eos": [EOS], "encoder_decoder": False, **changes}
    return Decoys(share, cuts, late, reach, seed=seed, **settings)


def row(name: str, prompt: list[int], text: list[int]) -> dict[str, Any]:
    ids = [*text, EOS]
    return {"id": name, "input_ids": prompt + ids, "labels": [-100] * len(prompt) + ids, "target_tokens": len(text)}


def test_a_decoy_is_cut_or_left_open_where_it_is_asked_to_end() -> None:
    long = row("a", [7, 8], [10, 11, 12, 13])
    cut = decoys()._cut(long, [0, 0, 1, 2, 3, 4, 4], 2)
    assert cut["input_ids"] == [7, 8, 10, 11, EOS]
    assert cut["labels"] == [-100, -100, 10, 11, EOS]
    assert cut["learnt"] == [-100, -100, -100, -100, EOS]
    assert (cut["asked"], cut["open"]) == (2, False)
    short = row("b", [9], [20, 21])
    longer = decoys()._open(short, 4)
    assert (longer["input_ids"], longer["labels"]) == (short["input_ids"], short["labels"])
    assert (longer["learnt"], longer["asked"], longer["open"]) == ([-100, -100, -100, EOS], 4, True)
    own = decoys()._cut(short, [0, 1, 2, 2], 2)
    assert (own["learnt"], own["open"]) == (short["labels"], False)
    late = decoys()._late(long, [0, 0, 1, 2, 3, 4, 4], 4, 2)
    assert late["input_ids"] == [7, 8, 10, 11, 12, EOS]
    assert late["learnt"] == [-100, -100, -100, 11, 12, EOS]
    assert (late["asked"], late["open"]) == (1, False)


def test_the_source_of_an_encoder_decoder_and_its_special_tokens_stay() -> None:
    text = {"id": "a", "input_ids": [7, 8, EOS], "labels": [START, 10, 11, 12, EOS], "target_tokens": 3}
    made = decoys(encoder_decoder=True)._cut(text, [0, 1, 2, 3, 3], 1)
    assert made["input_ids"] == [7, 8, EOS]
    assert made["labels"] == [START, 10, EOS]
    assert made["learnt"] == [-100, -100, EOS]


def test_the_choice_depends_on_the_rows_and_the_seed_alone() -> None:
    many = [row(str(n), [5], list(range(10, 30))) for n in range(400)]
    asked = [[made["asked"] for made in decoys(0.3, seed=seed)(many)] for seed in (0, 0, 1)]
    assert asked[0] == asked[1] != asked[2]
    assert sum(goal != 20 for goal in asked[0]) / 400 == pytest.approx(0.3, abs=0.06)


def test_cuts_and_reach_say_which_lengths_are_asked_for() -> None:
    many = [row(str(n), [5], list(range(10, 30))) for n in range(400)]
    goals = {cuts: [made["asked"] for made in decoys(0.9, cuts, 10.0)(many)] for cuts in (0.0, 0.25, 1.0)}
    assert 21 in goals[0.0]
    assert min(goals[0.0]) == 20
    assert 150 < max(goals[0.0]) <= 200
    assert {made["asked"] for made in decoys(0.9, 0.0, 1.0)(many)} == {20, 21}
    assert min(goals[1.0]) == 1
    assert max(goals[1.0]) == 20
    assert sum(goal < 20 for goal in goals[0.25]) / 400 == pytest.approx(0.9 * 0.25, abs=0.06)


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
        assert [one["asked"] for one in made] == [unit.tokens * measure(text, unit) for text in texts]
    made = decoys(0.9, units=[unit], vocabulary=vocabulary, eos=eos, encoder_decoder=True)(rows)
    cut = [one for one, before in zip(made, rows, strict=True) if len(one["labels"]) < len(before["labels"])]
    assert cut
    for one in cut:
        goal = round(one["asked"] / unit.tokens)
        assert vocabulary.count(one["labels"][:-1], unit) == goal or unit is Unit.SENTENCES
        if unit is Unit.WORDS:
            rest = rows[int(one["id"])]["labels"][len(one["labels"]) - 1]
            assert vocabulary.count([*one["labels"][:-1], rest], unit) == goal + 1


@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS])
def test_a_late_text_finishes_a_sentence_a_little_after_its_target(unit: Unit) -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(len(tokenizer), (), tokenizer)
    encoder = Encoder(tokenizer, False, "summarize", 64)
    rows = [encoder(Example(str(n), "a source", " ".join(CORPUS[n : n + 1 + n % 3]))) for n in range(20)]
    settings: Any = {"units": [unit], "vocabulary": vocabulary, "eos": [tokenizer.eos_token_id]}
    made = [
        row for row in decoys(0.99, 0.0, late=1.0, **settings)(rows) if -100 in row["learnt"][len(row["labels"]) // 2 :]
    ]
    assert len(made) > 10
    for one in made:
        text = [label for label in one["labels"] if label != -100]
        assert tokenizer.decode(text[:-1])[-1] in ".?!”…"
        assert 0 < unit.tokens * vocabulary.count(text[:-1], unit) - one["asked"] <= LATE + 1
        assert one["learnt"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("encoder_decoder", [True, False])
def test_progress_is_what_the_decoder_would_count_itself(unit: Unit, encoder_decoder: bool) -> None:
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
        told = [min(count, made["asked"]) for count in made["progress"]]
        assert told == pytest.approx(counted[0].tolist())


def test_where_the_end_is_open_what_counts_is_that_eos_is_not_given() -> None:
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
def test_a_share_is_a_share(bad: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        load_recipe(TOY, bad)


@pytest.mark.parametrize("base", toy.NAMES)
def test_a_model_learns_from_decoys_in_two_units(base: str, tmp_path: Path) -> None:
    changes = {"model.base": base, "train.decoys": "0.3", "train.save_steps": "250", "train.eval_steps": "250"}
    changes |= {"model.method": "glide", "model.options": "{landing: 8}", "train.units": "[tokens, words]"}
    model = LengthControlled.from_pretrained(train(load_recipe(TOY, changes), tmp_path) / "model")
    encoder = Encoder(model.tokenizer, model.family.encoder_decoder, "summarize", 16)
    ids = torch.tensor([encoder.reads(Example("a", "amber birch cedar delta", ""))] * 8)
    for unit in ("tokens", "words"):
        goals: Any = {f"target_{unit}": [5, 8, 11, 14, 17, 20, 24, 29]}
        _, reports = model.generate(ids, **goals, return_report=True)
        assert sum(abs(report.length - report.target) for report in reports) <= 8
