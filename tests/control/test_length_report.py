"""Reports say how a text ended, and a text that a limit cut goes back to a good end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from impatience import attach
from impatience.control.length_report import LengthReporter
from impatience.lengths import Landing, Unit
from impatience.vocabulary import Vocabulary
from support.scripted import TEXT, model, scripted
from support.toys import EOS, byte_level_tokenizer, tiny_model


def test_a_text_that_ends_by_itself_landed_naturally() -> None:
    for landing in ("natural", "exact", "at_most"):
        text, report = scripted(TEXT, target_words=8, landing=landing)
        assert text == TEXT
        assert (report.length, report.landed) == (8, "natural")
        assert report.eos_probability > 0.99


def test_natural_texts_off_target_are_missed() -> None:
    text, report = scripted(TEXT, target_words=6)
    assert (text, report.length, report.target, report.landed) == (TEXT, 8, 6, "missed")
    assert report.unit == "words"
    text, report = scripted(TEXT, target_words=8, max_new_tokens=6)
    assert report.landed == "missed"
    assert report.eos_probability == 0


def test_exact_shortens_and_lengthens_and_reports_forced() -> None:
    text, report = scripted(TEXT, target_words=5, landing="exact")
    assert (text, report.landed) == ("The ferry leaves at seven.", "forced")
    text, report = scripted(TEXT, target_words=10, landing="exact")
    assert text.startswith(TEXT[:-1])
    assert (report.length, report.landed) == (10, "forced")


def test_at_most_goes_back_to_a_sentence_end_or_a_whole_word() -> None:
    text, report = scripted(TEXT, target_characters=42, landing="at_most")
    assert text == "The ferry leaves at seven."
    assert (report.length, report.landed) == (26, "forced")
    text, report = scripted("Nobody in the village could remember", target_characters=31, landing="at_most")
    assert text == "Nobody in the village could"
    assert report.landed == "forced"


@pytest.mark.parametrize(
    ("text", "end", "target"),
    [
        ("The man said “no.” Nobody could remember", "”", 36),
        ("他说了。他不知道为什么要来这里", "。", 5),
        ("He left.Thereuponnobodyelsecouldremember", ".", 36),
    ],
)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_at_most_takes_back_no_sentence_end(text: str, end: str, target: int, kind: str) -> None:
    written, report = scripted(text, kind, target_characters=target, landing="at_most")
    assert written.endswith(text[: text.index(end) + 1])  # SentencePiece's first space has no room
    assert report.landed == "forced"


def test_at_most_leaves_out_a_character_it_would_cut() -> None:
    for target in range(1, 8):
        text, report = scripted("我们在港口等渡船", target_characters=target, landing="at_most")
        assert "我们在港口等渡船".startswith(text)
        assert len(text) == report.length <= target


@pytest.mark.parametrize("unit", ["words", "sentences"])
def test_an_empty_text_is_never_on_target(unit: str) -> None:
    text, report = scripted("\n", **{f"target_{unit}": 5}, landing="at_most")
    assert (text, report.length, report.landed) == ("", 0, "missed")


LOOP = "It rained all day. " * 8


@pytest.mark.parametrize(
    ("text", "asked", "finished", "looping", "landed"),
    [
        (TEXT, {"target_words": 8}, True, False, "natural"),
        ("The ferry leaves at seven and", {"target_words": 6}, False, False, "forced"),
        (LOOP, {"target_words": 32}, True, True, "forced"),
        (LOOP, {"target_words": 32, "landing": "at_most"}, True, True, "forced"),
        (TEXT, {"target_words": 6}, True, False, "missed"),
        (TEXT, {"target_words": 5, "landing": "exact"}, True, False, "forced"),
        (TEXT, {"target_characters": 42, "landing": "at_most"}, True, False, "forced"),
        ("Nobody in the village could", {"target_characters": 24, "landing": "at_most"}, False, False, "forced"),
        ("Ferries:\n- at seven\n- at nine", {"target_words": 7}, True, False, "natural"),
        ("Ferries:\n- at seven\n- at nine", {"target_words": 4, "landing": "exact"}, False, False, "forced"),
    ],
)
def test_a_text_is_natural_only_if_it_is_finished_and_does_not_loop(
    text: str, asked: dict[str, Any], finished: bool, looping: bool, landed: str
) -> None:
    _, report = scripted(text, **asked)
    assert (report.finished, report.looping, report.landed) == (finished, looping, landed)


def test_a_text_that_a_limit_cuts_at_a_full_stop_is_not_finished() -> None:
    whole = "The ferry leaves at seven."
    limit = len(model("byte_level").tokenizer.encode(whole, add_special_tokens=False))
    text, report = scripted(TEXT, target_words=5, max_new_tokens=limit)
    assert (text, report.length, report.finished, report.landed) == (whole, 5, False, "missed")


def test_a_full_stop_that_the_landing_adds_finishes_no_sentence() -> None:
    stop = model("byte_level").tokenizer.encode(".", add_special_tokens=False)[0]
    text, report = scripted("The ferry leaves at seven and", liked=stop, target_words=4, landing="exact")
    assert (text, report.own_end, report.finished) == ("The ferry leaves at.", False, False)


def test_without_a_tokenizer_a_text_is_finished_if_the_model_ended_it() -> None:
    for landing, finished in ((Landing.NATURAL, True), (Landing.EXACT, False)):
        reporter = LengthReporter(Unit.TOKENS, landing, (EOS,), Vocabulary(20, (EOS,)))
        choice = EOS if finished else 9
        _, report = reporter.report([7, 8, EOS], 2, [0.1, 0.1, 0.6], [7, 8, choice])
        assert (report.finished, report.looping) == (finished, False)
        assert report.landed == ("natural" if finished else "forced")


def test_a_full_stop_in_place_of_a_word_that_does_not_fit_finishes_no_sentence() -> None:
    stop = model("byte_level").tokenizer.encode(".", add_special_tokens=False)[0]
    text, report = scripted("The ferry leaves at seven in May.", liked=stop, target_characters=20, landing="exact")
    assert (len(text), text[-1]) == (20, ".")
    assert (report.landed, report.finished) == ("forced", False)


@pytest.mark.parametrize(("stop", "ending"), [(None, "!."), (".", "..")])
def test_a_text_with_a_token_that_the_landing_replaced_is_forced(stop: str | None, ending: str) -> None:
    """The model wanted to finish its word, and then to end with a full stop; only the full stop fits."""
    text, liked = "Nobody in the village could remember.", None
    if stop is not None:
        liked = model("byte_level").tokenizer.encode(stop, add_special_tokens=False)[0]
    written, report = scripted(text, liked=liked, target_characters=34, landing="exact")
    assert written == f"Nobody in the village could reme{ending}"
    assert (report.length, report.own_end, report.landed) == (34, False, "forced")
    for options in ({"do_sample": True}, {"num_beams": 3}):
        written, report = scripted(text, liked=liked, target_characters=37, landing="exact", **options)
        assert (written, report.landed) == (text, "natural")


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("landing", list(Landing))
@pytest.mark.parametrize("way", ["prompt_lookup", "assistant"])
def test_guessing_ahead_changes_no_report(way: str, landing: Landing, kind: str) -> None:
    words = byte_level_tokenizer()
    controlled = attach(tiny_model(kind, vocab_size=len(words)), "pre", tokenizer=words)
    assistant = tiny_model(kind, vocab_size=len(words))
    with torch.no_grad():
        assistant.get_output_embeddings().weight.add_(0.05 * torch.randn(len(words), 32))
    guesses: dict[str, Any] = {"prompt_lookup_num_tokens": 3} if way == "prompt_lookup" else {}
    guesses |= {"assistant_model": assistant} if way == "assistant" else {}
    ids = torch.tensor([[10, 20, 30, 20, 30, 12]])
    for target in (4, 9, 17):
        plain, again = (
            controlled.generate(ids, target_tokens=target, landing=landing, return_report=True, **more)
            for more in ({}, guesses)
        )
        assert torch.equal(again[0], plain[0])
        assert again[1][0].eos_probability == pytest.approx(plain[1][0].eos_probability, abs=1e-4)
        assert replace(again[1][0], eos_probability=0) == replace(plain[1][0], eos_probability=0)
