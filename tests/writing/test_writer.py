"""The writer: one text, many, a stream, and sources longer than the model reads."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from impatience import Piece, Request, Result, Unit, Writer, attach, load
from impatience.decoding.packing import BUDGET, PackedBatch, TextSize, batches, memory_budget, streams
from impatience.errors import OptionError, SourceError, TargetError
from impatience.lengths import Landing
from impatience.writing.long_texts import split
from impatience.writing.writing_systems import ratio_target
from support.toys import CORPUS, byte_level_tokenizer, sentencepiece_tokenizer, tiny_model, wordpiece_tokenizer

NOTE = CORPUS[0]
TRAINED = {"template": "summarize", "prefix": "", "max_source_tokens": 96}


def make(kind: str = "llama", prompt: dict[str, Any] | None = None, **sizes: Any) -> Writer:
    tokenizer = byte_level_tokenizer() if kind == "llama" else wordpiece_tokenizer()
    if "max_position_embeddings" in sizes:
        tokenizer.model_max_length = sizes["max_position_embeddings"]
    return Writer(attach(tiny_model(kind, vocab_size=len(tokenizer), **sizes), "none", tokenizer=tokenizer), prompt)


@pytest.fixture(scope="module")
def writer() -> Writer:
    return make(max_position_embeddings=1024)


# One text, and many


def test_one_length_must_be_asked_for(writer: Writer) -> None:
    with pytest.raises(TargetError, match="Got no length"):
        writer.write(NOTE)
    with pytest.raises(TargetError, match="Got tokens and words"):
        writer.write(NOTE, words=3, tokens=3)
    with pytest.raises(SourceError, match="empty"):
        writer.write(" \n", words=3)
    with pytest.raises(TargetError, match="5,000 words are more than this model can write"):
        writer.write(NOTE, words=5000)


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_many_are_what_each_is_alone_and_in_order(kind: str) -> None:
    writer = make(kind)
    asks = [
        Request(f"{n}", " ".join(CORPUS[n : n + 1 + n % 3]), 2 + 5 * (n % 4), unit, landing)
        for n, (unit, landing) in enumerate(
            [(u, m) for u in (Unit.WORDS, Unit.CHARACTERS, Unit.TOKENS) for m in Landing]
        )
    ]
    together, alone = writer.write_many(asks), [writer.write_many([ask])[0] for ask in asks]
    assert [result.id for result in together] == [ask.id for ask in asks]
    assert together == alone
    for ask, result in zip(asks, together, strict=True):
        if ask.landing is Landing.EXACT:
            assert result.length == ask.target
        if ask.landing is Landing.AT_MOST:
            assert result.length <= ask.target


def test_a_text_that_runs_out_of_steps_says_the_same_in_any_company(writer: Writer) -> None:
    asks = [Request(f"{n}", CORPUS[n], target, Unit.WORDS, Landing.EXACT) for n, target in enumerate((30, 35, 40, 45))]
    together = writer.write_many(asks)
    assert together == [writer.write_many([ask])[0] for ask in asks]
    assert any(result.tokens > 4 * result.target for result in together), "one was in a hurry"


def test_what_is_planned_together_can_be_written_elsewhere() -> None:
    writer = make(prompt=TRAINED)
    asks = [Request(f"{n}", CORPUS[n], 3 + n, Unit.TOKENS, Landing.EXACT) for n in range(8)]
    asks.insert(2, Request("long", " ".join(CORPUS), 9, Unit.TOKENS, Landing.EXACT))
    plan = writer.plan(asks, 200)
    assert plan[-1] == [2]
    assert sorted(place for places in plan for place in places) == list(range(9))
    assert max(map(len, plan)) > 1
    written = [set(results) for results in writer.as_written(asks, budget=200)]
    assert all(any(set(places) <= together for together in written) for places in plan)
    longer = writer.plan(asks, 200, times=3)
    assert len(longer) < len(plan)
    assert sorted(place for places in longer for place in places) == list(range(9))
    elsewhere = {
        place: one
        for places in plan
        for place, one in zip(places, writer.write_many([asks[place] for place in places], budget=200), strict=True)
    }
    assert [elsewhere[place] for place in range(9)] == writer.write_many(asks, budget=200)


def test_batches_hold_alike_loads_within_the_budget() -> None:
    loads = [
        TextSize(unit, landing, 10 + 7 * n % 50, 5 + 13 * n % 90)
        for n in range(60)
        for unit, landing in ((Unit.WORDS, Landing.EXACT), (Unit.TOKENS, Landing.NATURAL))
    ]
    found = batches(loads, 400)
    assert sorted(place for batch in found for place in batch) == list(range(120))
    assert found == batches(loads, 400)
    assert len(found) < 60
    for batch in found:
        members = [loads[place] for place in batch]
        assert len({(one.unit, one.landing) for one in members}) == 1
        widest, longest = max(one.source for one in members), max(one.output for one in members)
        assert len(batch) == 1 or len(batch) * (widest + longest) <= 400
        assert longest <= 1.5 * min(one.output for one in members)
        alone = sorted(batch)
        assert [[alone[place] for place in again] for again in batches([loads[n] for n in alone], 400)] == [batch]
    assert batches([TextSize(Unit.WORDS, Landing.EXACT, 900, 10)] * 2, 400) == [[0], [1]]
    long_source, long_output = TextSize(Unit.WORDS, Landing.EXACT, 80, 20), TextSize(Unit.WORDS, Landing.EXACT, 70, 30)
    assert batches([long_source, long_output]) == [[0, 1]]
    assert batches([long_source, long_output], room=100) == [[0], [1]], "30 do not fit behind 80"
    assert batches([]) == []


def test_streams_hold_alike_loads_longest_first_in_rows_that_fit() -> None:
    loads = [
        TextSize(unit, Landing.EXACT, 10 + 7 * n % 50, 5 + 13 * n % 90)
        for n in range(60)
        for unit in (Unit.WORDS, Unit.TOKENS)
    ]
    found = streams(loads, 800)
    assert sorted(place for stream in found for place in stream.places) == list(range(120))
    for stream in found:
        outputs = [loads[place].output for place in stream.places]
        assert outputs == sorted(outputs, reverse=True)
        assert outputs[0] <= 4 * outputs[-1]
        assert len({loads[place].unit for place in stream.places}) == 1
        width = max(loads[place].source for place in stream.places) + outputs[0]
        assert stream.rows in (800 // width, len(outputs))
        pieces = list(stream.pieces(2))
        assert sum((piece.places for piece in pieces), ()) == stream.places
        assert all(len(piece.places) <= 2 * stream.rows for piece in pieces)
    assert streams([loads[0]], 1) == [PackedBatch((0,), 1)]
    assert streams([]) == []
    assert memory_budget(torch.device("cpu"), 1000) == BUDGET


def test_asks_are_checked_where_they_are_made() -> None:
    for wrong, error, message in (
        ({"text": ""}, SourceError, "empty"),
        ({"target": 2.0}, TargetError, "whole number"),
        ({"target": True}, TargetError, "whole number"),
        ({"unit": "pages"}, OptionError, "'sentences'"),
        ({"landing": "hard"}, OptionError, "'at_most'"),
        ({"task": "sing"}, OptionError, "There are: summarize"),
    ):
        with pytest.raises(error, match=message):
            replace(Request("a", NOTE, 3), **wrong)


def test_a_ratio_is_of_words_or_of_characters_where_there_are_no_spaces() -> None:
    assert ratio_target("one two three four five six", 0.5) == (3, Unit.WORDS)
    assert ratio_target("今天早上港口下了大雪渡船没有开我们在港口等渡船等了一个早上", 0.2) == (6, Unit.CHARACTERS)
    assert ratio_target("word", 0.01) == (1, Unit.WORDS)


# Tasks


def read(writer: Writer, task: str | None, text: str = NOTE) -> str:
    return str(writer.tokenizer.decode(writer.prompts.reads(Request("a", text, 9, task=task))))


def test_a_chat_model_is_told_the_task_and_the_length(writer: Writer) -> None:
    assert read(writer, None).startswith("user: Summarize the following text in 9 words.")
    assert "Rewrite the following text in 9 words." in read(writer, "rewrite")
    assert "a title for the following text in 9 words." in read(writer, "title")
    assert "a question in 9 words that the following text answers." in read(writer, "question")
    assert read(writer, "chat") == f"user: {NOTE}\nassistant: "


def test_a_trained_model_reads_as_in_training_and_another_task_is_announced_once(caplog: Any) -> None:
    writer = make(prompt=TRAINED | {"template": "title"})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in read(writer, None)
        assert "Write a title for the text below." in read(writer, "title")
        assert caplog.messages == []
        for _ in range(2):
            assert "Rewrite the text below." in read(writer, "rewrite")
    assert caplog.messages == ["This model was trained with the template 'title', not 'rewrite': expect less of it."]
    with pytest.raises(SourceError, match="must have the form"):
        writer.write(NOTE, words=3, task="question")


def test_a_model_that_was_trained_for_several_tasks_does_them_in_silence(caplog: Any) -> None:
    writer = make(prompt=TRAINED | {"tasks": ["summarize", "title"]})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in read(writer, "title")
        assert caplog.messages == []
        read(writer, "rewrite")
    assert "the template 'summarize' and 'title', not 'rewrite'" in caplog.text


def test_what_was_said_before_is_read_first_if_the_model_takes_chats(writer: Writer) -> None:
    ask = Request(
        "a", NOTE, 9, task="chat", before=(("system", "Be brief."), ("user", "Hello."), ("assistant", "Yes?"))
    )
    told = str(writer.tokenizer.decode(writer.prompts.reads(ask)))
    assert told == f"system: Be brief.\nuser: Hello.\nassistant: Yes?\nuser: {NOTE}\nassistant: "
    with pytest.raises(SourceError, match="no earlier turns"):
        make("bart").check(ask)
    strict = make()
    strict.tokenizer.chat_template = "{{ raise_exception('no system message, please') }}"
    with pytest.raises(SourceError, match="does not take these messages: no system message, please"):
        strict.check(ask)


def test_an_encoder_reads_no_instruction(caplog: Any) -> None:
    writer = make("bart")
    with caplog.at_level(logging.WARNING):
        assert read(writer, "title") == read(writer, None)
    assert "takes no instruction" in caplog.text


# Streams


@pytest.mark.parametrize("tokenizer", [byte_level_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer])
@pytest.mark.parametrize("landing", list(Landing))
@pytest.mark.parametrize("unit", [Unit.WORDS, Unit.CHARACTERS, Unit.TOKENS])
def test_a_stream_ends_with_what_write_gives(tokenizer: Any, landing: Landing, unit: Unit) -> None:
    made = tokenizer()
    writer = Writer(attach(tiny_model("llama", vocab_size=len(made)), "none", tokenizer=made))
    ask = Request("a", NOTE, 14, unit, landing)
    *pieces, result = writer.stream(ask)
    (plain,) = writer.write_many([ask])
    assert isinstance(result, Result)
    assert replace(result, taken_back=0) == plain
    shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
    kept = shown[: len(shown) - result.taken_back]
    assert result.text.startswith(kept)
    if not result.taken_back:
        assert shown == result.text
    progress = [piece.progress for piece in pieces if isinstance(piece, Piece)]
    assert progress == sorted(progress)
    assert 0 < pieces[0].ratio <= pieces[-1].ratio <= 1  # type: ignore[union-attr]
    assert len(progress) > 3 or landing is Landing.AT_MOST


def test_a_stream_says_what_it_takes_back(writer: Writer) -> None:
    taken = 0
    for target in range(4, 30):
        *pieces, result = writer.stream(Request("a", CORPUS[3], target, Unit.TOKENS, Landing.AT_MOST))
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
        assert isinstance(result, Result)
        assert result.text == shown[: len(shown) - result.taken_back].rstrip()
        taken += result.taken_back > 0
    assert taken


def test_a_stream_that_nobody_reads_stops(writer: Writer) -> None:
    before = threading.active_count()
    source = dict.fromkeys(("input_ids", "labels"), torch.tensor([[5, 6, 7]], device=writer.model.device))
    unsteered = writer.model.base_model(**source).logits
    pieces = writer.stream(Request("a", NOTE, 600, Unit.TOKENS, Landing.EXACT))
    assert isinstance(next(pieces), Piece)
    pieces.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert torch.equal(writer.model.base_model(**source).logits, unsteered)
    assert writer.write(NOTE, words=3, landing="exact").length == 3


def test_what_fails_in_a_stream_reaches_its_reader(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError):
        writer.stream(Request("a", NOTE, 5000))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(writer.generator, "steered", fail)
    with pytest.raises(MemoryError, match="no room"):
        list(writer.stream(Request("a", NOTE, 5)))


def test_beams_show_their_text_in_one_piece(writer: Writer) -> None:
    ask = Request("a", NOTE, 6, landing=Landing.EXACT)
    piece, result = writer.stream(ask, num_beams=2)
    assert isinstance(piece, Piece)
    assert piece.text == result.text == writer.write_many([ask], num_beams=2)[0].text


# Long sources

LONG = "\n\n".join(" ".join(CORPUS[n : n + 4]) for n in range(0, 24, 4))


def test_a_text_is_split_at_its_own_seams() -> None:
    def count(text: str) -> int:
        return len(text.split())

    parts = list(split(LONG, count, 130))
    assert " ".join(parts).split() == LONG.split()
    assert all(count(part) <= 130 for part in parts)
    assert all(part.endswith((".", "!", "?", "”")) for part in parts)
    assert max(map(count, parts)) < 2 * min(map(count, parts))
    assert "\n\n" in parts[0]
    endless = "word " * 90
    assert " ".join(split(endless, count, 25)).split() == endless.split()
    assert "".join(split("港" * 90, len, 25)) == "港" * 90
    assert list(split("", count, 5)) == []


def test_the_splitter_of_sentences_is_never_given_too_much(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes time that grows with the square of a text full of quotes that stay open, and holds up all threads."""
    seen: list[int] = []

    def noted(text: str) -> list[str]:
        seen.append(len(text))
        return [text]

    monkeypatch.setattr("impatience.writing.long_texts.split_sentences", noted)
    monkeypatch.setattr("impatience.lengths.split_sentences", noted)
    text = "“a " * 40_000
    assert "".join(split(text, len, 900)).replace(" ", "") == text.replace(" ", "")
    writer.check(Request("a", text, 2, Unit.SENTENCES))
    assert seen
    assert max(seen) <= 20_000


def test_how_long_a_text_will_be_is_told_by_how_dense_its_source_is(writer: Writer) -> None:
    ask = Request("a", "xy the ", 100)
    dense = writer.prompts.count(ask.text) / 2
    assert 1.4 < dense < 4, "tokens a word"
    for words in (2, 20_000):
        source = replace(ask, text="xy the " * (words // 2))
        assert writer.prompts.output(source, round(words * dense)) == pytest.approx(100 * dense, abs=2)


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("prompt", [None, TRAINED], ids=["untrained", "trained"])
def test_a_long_source_is_read_in_parts_and_the_result_says_so(kind: str, prompt: Any) -> None:
    writer = make(kind, prompt)
    size = len(writer.prompts.reads(Request("a", LONG, 12)))
    assert size > 256
    short, long = writer.write_many(
        [Request("s", NOTE, 12, landing=Landing.EXACT), Request("l", LONG, 12, landing=Landing.EXACT)]
    )
    assert (short.parts, short.note) == (1, "")
    assert long.parts > 1
    assert f"The text has {size:,} tokens and the model reads" in long.note
    assert f"read in {long.parts} parts" in long.note
    assert (long.length, long.id) == (12, "l")
    first, *_, last = writer.stream(Request("l", LONG, 12, landing=Landing.EXACT))
    assert f"writing {long.parts} parts of it first" in first.stage  # type: ignore[union-attr]
    assert last == long


def test_every_part_is_put_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, read = make(prompt=TRAINED), []
    write = writer._write

    def note(asks: Any, sources: Any, *args: Any) -> Any:
        read.extend(ask.text for ask in asks)
        assert max(map(len, sources)) <= 96
        return write(asks, sources, *args)

    monkeypatch.setattr(writer, "_write", note)
    result = writer.write(LONG, words=5)
    assert Counter(" ".join(read).split()) >= Counter(LONG.split())
    assert result.parts > 2


def test_a_passage_with_an_answer_is_not_split() -> None:
    writer = make(prompt=TRAINED | {"template": "question"})
    with pytest.raises(SourceError, match="cannot be read in parts"):
        writer.write(f"answer: a lake context: {LONG}", words=8)


def test_a_model_that_reads_next_to_nothing_says_so() -> None:
    writer = make(prompt=TRAINED | {"max_source_tokens": 10})
    with pytest.raises(SourceError, match="no text fits"):
        writer.write(LONG, words=5)


def test_a_model_that_makes_nothing_of_a_long_source_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make(prompt=TRAINED)

    def written(text: str) -> Any:
        return lambda asks, **_: [Result(text, 1, 1, Unit.TOKENS, "natural", 1.0) for _ in asks]

    for text, message in (("", "wrote nothing about any part"), (LONG, "which reads 96 at once, cannot make it")):
        monkeypatch.setattr(writer, "write_many", written(text))
        (found,) = writer.as_written([Request("l", LONG, 5)])
        with pytest.raises(SourceError, match=message):
            raise found[0]  # type: ignore[misc]


# Loading


def test_toys_are_built_and_nothing_is_printed(capfd: Any) -> None:
    writer = load("toy-bart")
    assert writer.write("amber birch", words=4, landing="exact").length == 4
    assert capfd.readouterr() == ("", "")


def test_loading_shows_no_bar_and_leaves_bars_as_they_were(tmp_path: Any, capfd: Any) -> None:
    from transformers.utils import logging as bars

    make().model.save_pretrained(tmp_path)
    bars.enable_progress_bar()
    try:
        load(tmp_path)
        assert bars.is_progress_bar_enabled()
    finally:
        bars.disable_progress_bar()
    assert capfd.readouterr() == ("", "")
