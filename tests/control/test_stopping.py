"""Landings hold on every kind of tokenizer, whatever the model wants to write: its weights are random."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer, LogitsProcessor, LogitsProcessorList

from impatience import attach
from impatience.lengths import Unit, decode, ends_sentence, measure
from support.scripted import TEXT, Script, model, scripted
from support.toys import EOS, TOKENIZERS, tiny_model

BATCH, BATCHES = 50, 10  # 500 random cases


class Whims(LogitsProcessor):
    """Scores drawn at random for each step, so that a text wanders over the whole vocabulary."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.randn(scores.shape, generator=self.random) * 3


def write(kind: str, unit: Unit, landing: str, targets: list[int], seed: int, **kwargs: Any) -> list[tuple[str, Any]]:
    controlled = model(kind)
    ids = torch.randint(4, len(controlled.tokenizer), (len(targets), 5), generator=torch.Generator().manual_seed(seed))
    whims = LogitsProcessorList([Whims(seed)])
    output, reports = controlled.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), landing=landing, return_report=True,
        logits_processor=whims, **{f"target_{unit}": targets}, **kwargs,
    )  # fmt: skip
    texts = []
    for row, report in zip(output[:, 5:].tolist(), reports, strict=True):
        written = row[: row.index(EOS)] if EOS in row else row
        text = decode(controlled.tokenizer, written)
        length = sum(i > 3 for i in written) if unit is Unit.TOKENS else measure(text, unit)
        assert report.length == length
        texts.append((text, report))
    return texts


def cases(unit: Unit, largest: int) -> list[tuple[int, list[int]]]:
    random = torch.Generator().manual_seed(len(unit) + largest)
    return [(seed, torch.randint(1, largest, (BATCH,), generator=random).tolist()) for seed in range(BATCHES)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(("unit", "largest"), [(Unit.TOKENS, 60), (Unit.WORDS, 30)])
def test_exact_hits_every_one_of_500_targets(kind: str, unit: Unit, largest: int) -> None:
    for seed, targets in cases(unit, largest):
        for (text, report), target in zip(write(kind, unit, "exact", targets, seed), targets, strict=True):
            assert report.length == target, text
            assert report.landed in ("natural", "forced")


def test_words_that_are_spelled_letter_by_letter_land_too() -> None:
    tokenizer = ByT5Tokenizer()
    controlled = attach(tiny_model("t5", vocab_size=len(tokenizer)), "none", tokenizer=tokenizer)
    targets, source = [1, 2, 5, 13, 30], torch.full((5, 4), 70)
    options: Any = {"attention_mask": torch.ones_like(source), "target_words": targets, "return_report": True}
    for seed in range(5):
        whims = LogitsProcessorList([Whims(seed)])
        _, reports = controlled.generate(source, landing="exact", logits_processor=whims, **options)
        assert [report.length for report in reports] == targets
    text = "Characteristically incomprehensible gobbledygook."  # three words in more than 44 tokens
    options |= {"target_words": 3, "logits_processor": LogitsProcessorList([Script(tokenizer(text).input_ids[:-1], 1)])}
    _, reports = controlled.generate(source, **options)
    assert [report.landed for report in reports] == ["natural"] * 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_exact_characters_never_exceed_and_nearly_always_hit(kind: str) -> None:
    hits = 0
    for seed, targets in cases(Unit.CHARACTERS, 120):
        for (text, report), target in zip(write(kind, Unit.CHARACTERS, "exact", targets, seed), targets, strict=True):
            assert report.length <= target
            assert "\ufffd" not in text
            hits += report.length == target
    assert hits >= 0.95 * BATCH * BATCHES


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    ("unit", "largest"), [(Unit.TOKENS, 60), (Unit.WORDS, 30), (Unit.CHARACTERS, 120), (Unit.SENTENCES, 4)]
)
def test_at_most_never_exceeds(kind: str, unit: Unit, largest: int) -> None:
    for seed, targets in cases(unit, largest)[:5]:
        for (text, report), target in zip(write(kind, unit, "at_most", targets, seed), targets, strict=True):
            assert report.length <= target, text


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_exact_sentences_end_as_sentences(kind: str) -> None:
    hits = 0
    for seed, targets in cases(Unit.SENTENCES, 4)[:2]:
        for text, report in write(kind, Unit.SENTENCES, "exact", targets, seed):
            if report.landed != "missed":
                hits += 1
                assert report.length == report.target
                assert ends_sentence(text), text
    assert hits >= 30


@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS])
def test_beams_and_sampling_land_exactly_too(unit: Unit) -> None:
    targets = [3, 17]
    for options in ({"num_beams": 4, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2}):
        controlled = model("sentencepiece", "bart")
        ids = torch.randint(4, 200, (2, 5))
        _, reports = controlled.generate(
            input_ids=ids, landing="exact", return_report=True, **{f"target_{unit}": targets}, **options
        )
        assert [report.length for report in reports] == [3, 3, 17, 17]


@pytest.mark.parametrize(("second", "ending"), [(".", "."), ("?", "?"), (None, "")])
def test_exact_closes_the_last_sentence_unless_the_model_would_rather_not(second: str | None, ending: str) -> None:
    """The model would go on; what it would end with is its second choice, a full stop or EOS."""
    liked = EOS if second is None else model("byte_level").tokenizer.encode(second, add_special_tokens=False)[0]
    text, report = scripted("The ferry leaves at seven and nobody knows", liked=liked, target_words=4, landing="exact")
    assert text == f"The ferry leaves at{ending}"
    assert (report.length, report.landed) == (4, "forced")
    assert report.eos_probability < 0.01


def test_exact_begins_no_sentence_in_its_last_two_words() -> None:
    text, report = scripted("The ferry leaves. Then we walk home", target_words=5, landing="exact")
    assert (text.count("."), report.length) == (0, 5)


def test_the_last_word_may_finish() -> None:
    text, _ = scripted("Extraordinary circumstances", target_words=1, landing="exact")
    assert text == "Extraordinary"


def test_no_text_ends_inside_a_character() -> None:
    text, report = scripted("ok 👩‍🚀👨‍👩‍👧", target_characters=7, landing="exact")
    assert report.length == 7
    assert text.startswith("ok 👩‍🚀")


def test_sentences_are_as_the_splitter_counts_them() -> None:
    text, report = scripted(TEXT, target_sentences=1, landing="exact")
    assert (text, report.length) == ("The ferry leaves at seven.", 1)
    text, report = scripted(TEXT, target_sentences=2)
    assert (text, report.landed) == (TEXT, "natural")


@pytest.mark.parametrize("unit", [Unit.WORDS, Unit.CHARACTERS])
def test_no_text_gets_a_control_character(unit: Unit) -> None:
    for seed, targets in cases(unit, 40)[:4]:
        for text, _ in write("byte_level", unit, "exact", targets, seed):
            assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("target", [{"target_characters": 5}, {"target_words": 1}], ids=["characters", "words"])
def test_a_control_character_of_two_bytes_is_not_written(kind: str, target: dict[str, int]) -> None:
    text, report = scripted("ab\x81\x85\x99c", kind, landing="exact", **target)
    assert text.startswith("ab")
    assert report.length == next(iter(target.values()))
    assert not re.search(r"[\x7f-\x9f]", text)
