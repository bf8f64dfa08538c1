"""One definition of length: targets, counting, and progress on ids against counting on text."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impatience.errors import TargetError, TokenizerError
from impatience.lengths import (
    Target,
    Unit,
    aim,
    decode,
    ends_sentence,
    measure,
    name_length,
    parse_length,
    split_sentences,
)
from impatience.vocabulary import Vocabulary
from support.toys import CORPUS, TOKENIZERS, UNK

CPU = torch.device("cpu")


def vocabulary(kind: str) -> Vocabulary:
    tokenizer = TOKENIZERS[kind]()
    return Vocabulary(len(tokenizer) + 5, [], tokenizer)


VOCABULARIES = {kind: vocabulary(kind) for kind in TOKENIZERS}


def final_progress(vocab: Vocabulary, ids: list[int], unit: Unit) -> int:
    tensor = torch.tensor([ids])
    return int(vocab.progress(tensor, torch.ones_like(tensor, dtype=torch.bool), unit)[0, -1])


def test_measure_counts_as_the_design_defines() -> None:
    text = "  Two words,\n then four more…  "
    assert measure(text, Unit.WORDS) == 5
    assert measure(text, Unit.CHARACTERS) == len(text.strip())
    assert measure("", Unit.WORDS) == measure("  ", Unit.CHARACTERS) == measure(" ", Unit.SENTENCES) == 0
    assert measure("Dr. Smith paid 3.50 for it. Was it worth it? Yes!", Unit.SENTENCES) == 3
    assert split_sentences("今天下雪。渡船没有开。") == ["今天下雪。", "渡船没有开。"]


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("It ended.", True),
        ("I met Dr.", False),
        ("He said “Go.”", True),
        ("And then", False),
        ("", False),
    ],
)
def test_a_sentence_ends_where_another_may_begin(text: str, ended: bool) -> None:
    assert ends_sentence(text) is ended


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("unit", [Unit.WORDS, Unit.CHARACTERS])
@pytest.mark.parametrize("lead", ["", " ", "\n\n"])
def test_progress_equals_the_count_at_every_step_of_real_text(kind: str, unit: Unit, lead: str) -> None:
    vocab = VOCABULARIES[kind]
    for text in CORPUS:
        ids = vocab.tokenizer.encode(lead + text, add_special_tokens=False)
        if UNK in ids:
            continue
        tensor = torch.tensor([ids])
        progress = vocab.progress(tensor, torch.ones_like(tensor, dtype=torch.bool), unit)[0].tolist()
        for step in range(len(ids)):
            so_far = decode(vocab.tokenizer, ids[: step + 1])
            if "\ufffd" not in so_far:
                assert progress[step] == measure(so_far, unit), (text, so_far)
        assert progress == sorted(progress)
        assert progress[-1] == vocab.count(ids, unit)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_progress_equals_the_count_on_any_mixture_of_whole_tokens(kind: str, data: st.DataObject) -> None:
    vocab = VOCABULARIES[kind]
    whole = [i for i, piece in enumerate(vocab.pieces) if piece and "\ufffd" not in piece.decode("utf-8", "replace")]
    opens = vocab.tables(CPU).opens
    first = data.draw(st.sampled_from([i for i in whole if opens[i]]))
    ids = [first, *data.draw(st.lists(st.sampled_from(whole), max_size=25))]
    for unit in (Unit.WORDS, Unit.CHARACTERS):
        assert final_progress(vocab, ids, unit) == vocab.count(ids, unit)


def test_an_emoji_split_over_tokens_is_one_character() -> None:
    for kind in ("byte_level", "sentencepiece"):
        vocab = VOCABULARIES[kind]
        ids = vocab.tokenizer.encode("🦜🪿", add_special_tokens=False)
        assert len(ids) > 4
        assert final_progress(vocab, ids, Unit.CHARACTERS) == 2
        assert final_progress(vocab, ids, Unit.WORDS) == 1


@pytest.mark.parametrize("unit", list(Unit))
def test_a_beginning_is_the_longest_that_is_not_over(unit: Unit) -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    ids, vocabulary = tokenizer("The ferry left. It rained.").input_ids, Vocabulary(len(tokenizer), [], tokenizer)
    for most in range(vocabulary.count(ids, unit) + 2):
        begun = vocabulary.beginning(ids, most, unit)
        assert list(begun) == ids[: len(begun)]
        assert vocabulary.count(begun, unit) <= most
        assert len(begun) == len(ids) or vocabulary.count(ids[: len(begun) + 1], unit) > most


def test_only_written_ids_count_and_special_tokens_never_do() -> None:
    vocab = VOCABULARIES["byte_level"]
    words = vocab.tokenizer.encode("The ferry leaves", add_special_tokens=False)
    prompt = vocab.tokenizer.encode("Summarise: ", add_special_tokens=False)
    ids = torch.tensor([[*prompt, *words, 1, 0, 0]])
    written = torch.arange(ids.shape[1])[None] >= len(prompt)
    for unit, expected in ((Unit.TOKENS, len(words)), (Unit.WORDS, 3), (Unit.CHARACTERS, 16)):
        progress = vocab.progress(ids, written, unit)[0]
        assert progress[len(prompt) - 1] == 0
        assert progress[-1] == expected
    assert vocab.count([2, *words, 1], Unit.TOKENS) == len(words)


def test_sentence_progress_counts_sentence_ends() -> None:
    vocab = VOCABULARIES["byte_level"]
    ids = vocab.tokenizer.encode("It rained. Was it cold? No.", add_special_tokens=False)
    assert final_progress(vocab, ids, Unit.SENTENCES) == 3


@given(st.integers(1, 60), st.integers(0, 2**31))
def test_ratio_is_monotone_in_the_unit_interval_and_ends_at_one(target: int, seed: int) -> None:
    vocab = VOCABULARIES["sentencepiece"]
    ids = torch.randint(4, len(vocab.tokenizer), (1, 80), generator=torch.Generator().manual_seed(seed))
    for unit in (Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS):
        progress = vocab.progress(ids, torch.ones_like(ids, dtype=torch.bool), unit)[0]
        ratio = (progress / target).clamp(max=1)
        assert (ratio >= 0).all()
        assert (ratio.diff() >= 0).all()
        assert ((ratio == 1) == (progress >= target)).all()


@given(st.integers(0, 2**31))
def test_batch_order_and_padding_do_not_matter(seed: int) -> None:
    vocab = VOCABULARIES["wordpiece"]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, len(vocab.tokenizer), (3, 12), generator=generator)
    written = torch.ones_like(ids, dtype=torch.bool)
    order = torch.randperm(3, generator=generator)
    pads = torch.zeros(3, 4, dtype=torch.long)
    for unit in Unit:
        progress = vocab.progress(ids, written, unit)
        assert torch.equal(vocab.progress(ids[order], written, unit), progress[order])
        padded = vocab.progress(torch.cat([pads, ids, pads], 1), torch.ones(3, 20, dtype=torch.bool), unit)
        assert torch.equal(padded[:, 4:16], progress)


@pytest.mark.parametrize("bad", [0, -3, 2.5, math.nan, True, "ten", [5, 0], torch.tensor([3.5, 2.0])])
def test_targets_that_are_no_whole_number_are_refused(bad: object) -> None:
    with pytest.raises(TargetError, match="whole number of at least 1"):
        Target.parse(2, words=bad)


def test_targets_are_one_number_or_one_a_row_of_one_unit() -> None:
    assert Target.parse(2, words=7) == Target(Unit.WORDS, (7, 7))
    assert Target.parse(2, torch.tensor([3, 4])) == Target(Unit.TOKENS, (3, 4))
    assert Target.parse(2) is None
    with pytest.raises(TargetError, match="3 numbers for 2 rows"):
        Target.parse(2, words=[1, 2, 3])
    with pytest.raises(TargetError, match="target_tokens and target_words"):
        Target.parse(2, tokens=4, words=4)


def test_all_units_but_tokens_need_the_tokenizer() -> None:
    vocab = Vocabulary(50, [0, 1])
    assert vocab.count([0, 7, 8, 1], Unit.TOKENS) == 2
    with pytest.raises(TokenizerError, match="tokenizer=tokenizer"):
        vocab.count([7], Unit.WORDS)


def test_lengths_and_ranges_are_read_as_people_write_them() -> None:
    read = {"40": 40, " 120-160 ": (120, 160), "120 – 160": (120, 160), "forty": "forty", "1-2-3": "1-2-3", "-4": "-4"}
    assert {text: parse_length(text) for text in read} == read
    assert [parse_length(value) for value in ([120, 160], [1, 2, 3], 40, None)] == [(120, 160), [1, 2, 3], 40, None]


def test_a_range_is_aimed_at_its_middle_or_at_a_limit_that_is_never_passed() -> None:
    assert aim(40, "natural") == (40, None)
    assert aim((120, 161), "natural") == (140, (120, 161))
    assert aim((120, 161), "at_most") == (161, (120, 161))
    assert aim(("a", 2), "natural") == (("a", 2), None), "a request refuses it"


def test_a_length_is_named_with_its_unit() -> None:
    assert [name_length(40, Unit.WORDS), name_length(1, Unit.SENTENCES)] == ["40 words", "1 sentence"]
