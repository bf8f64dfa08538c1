"""Sources that are longer than the model reads at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from impatience import Request, Result, Unit, Writer
from impatience.errors import SourceError
from impatience.lengths import Landing
from impatience.writing.long_texts import shorten_source, split
from support.results import judged
from support.writers import LONG, NOTE, TRAINED, new_writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return new_writer(max_position_embeddings=1024)


def test_a_text_is_split_between_paragraphs_sentences_or_words() -> None:
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


def test_the_sentence_splitter_never_gets_a_long_text(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("prompt", [None, TRAINED], ids=["untrained", "trained"])
def test_a_long_source_is_read_in_parts_and_the_result_says_so(kind: str, prompt: Any) -> None:
    writer = new_writer(kind, prompt)
    size = len(writer.prompts.encode(Request("a", LONG, 12)))
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


def test_the_model_reads_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, read = new_writer(prompt=TRAINED), []
    generate = writer.generator.generate_with_signal

    def note(requests: Any, *, sources: Any, **options: Any) -> Any:
        read.extend(request.text for request in requests)
        assert max(map(len, sources)) <= 96
        return generate(requests, sources=sources, **options)

    monkeypatch.setattr(writer.generator, "generate_with_signal", note)
    result = writer.write(LONG, words=5)
    assert Counter(" ".join(read).split()) >= Counter(LONG.split())
    assert result.parts > 2


def test_a_passage_with_an_answer_is_not_split() -> None:
    writer = new_writer(prompt=TRAINED | {"template": "question"})
    with pytest.raises(SourceError, match="cannot be read in parts"):
        writer.write(f"answer: a lake context: {LONG}", words=8)


def test_a_model_without_room_for_any_text_is_an_error() -> None:
    writer = new_writer(prompt=TRAINED | {"max_source_tokens": 10})
    with pytest.raises(SourceError, match="no text fits"):
        writer.write(LONG, words=5)


def test_parts_that_come_out_empty_or_no_shorter_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_writer(prompt=TRAINED)

    def written(text: str) -> Any:
        return lambda requests, **_: [Result(1, 1, Unit.TOKENS, "natural", 1.0, text=text) for _ in requests]

    for text, message in (("", "wrote nothing about any part"), (LONG, "which reads 96 at once, cannot make it")):
        monkeypatch.setattr(writer, "write_many", written(text))
        (found,) = writer.write_batches([Request("l", LONG, 5)])
        with pytest.raises(SourceError, match=message):
            raise found[0]  # type: ignore[misc]


def test_words_are_compared_with_the_whole_source_not_with_what_was_written_of_its_parts() -> None:
    writer = new_writer(prompt=TRAINED)
    request = Request("l", LONG, 5)
    source = shorten_source(request, writer.prompts, lambda parts: [judged("It rained.", 2, 2) for _ in parts])
    assert (source.request.text.split()[:2], source.request.source) == (["It", "rained."], LONG)
    assert source.parts > 1
