"""Reports say how a text ended, and a text that a limit cut goes back to a good end."""

from __future__ import annotations

from support.scripted import TEXT, scripted


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


def test_at_most_leaves_out_a_character_it_would_cut() -> None:
    for target in range(1, 8):
        text, report = scripted("我们在港口等渡船", target_characters=target, landing="at_most")
        assert "我们在港口等渡船".startswith(text)
        assert len(text) == report.length <= target
