"""The writer: one text, and many."""

from __future__ import annotations

from typing import Any

import pytest

from impatience import Request, Unit, Writer, load
from impatience.errors import OptionError, SourceError, TargetError
from impatience.lengths import Landing
from support.results import judged
from support.toys import CORPUS
from support.writers import LONG, NOTE, TAUGHT, TRAINED, new_writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return new_writer(max_position_embeddings=1024)


def test_write_needs_exactly_one_length(writer: Writer) -> None:
    with pytest.raises(TargetError, match="Got no length"):
        writer.write(NOTE)
    with pytest.raises(TargetError, match="Got tokens and words"):
        writer.write(NOTE, words=3, tokens=3)
    with pytest.raises(SourceError, match="empty"):
        writer.write(" \n", words=3)
    with pytest.raises(TargetError, match="5,000 words are more than this model can write"):
        writer.write(NOTE, words=5000)


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_many_results_are_in_order_and_the_same_as_alone(kind: str) -> None:
    writer = new_writer(kind)
    requests = [
        Request(f"{n}", " ".join(CORPUS[n : n + 1 + n % 3]), 2 + 5 * (n % 4), unit, landing)
        for n, (unit, landing) in enumerate(
            [(u, m) for u in (Unit.WORDS, Unit.CHARACTERS, Unit.TOKENS) for m in Landing]
        )
    ]
    together, alone = writer.write_many(requests), [writer.write_many([request])[0] for request in requests]
    assert [result.id for result in together] == [request.id for request in requests]
    assert together == alone
    for request, result in zip(requests, together, strict=True):
        if request.landing is Landing.EXACT:
            assert result.length == request.target
        if request.landing is Landing.AT_MOST:
            assert result.length <= request.target


def test_a_text_that_runs_out_of_steps_does_not_depend_on_its_batch(writer: Writer) -> None:
    requests = [
        Request(f"{n}", CORPUS[n], target, Unit.WORDS, Landing.EXACT) for n, target in enumerate((30, 35, 40, 45))
    ]
    together = writer.write_many(requests)
    assert together == [writer.write_many([request])[0] for request in requests]
    assert any(result.tokens > 4 * result.target for result in together), "one was in a hurry"


@pytest.mark.slow
def test_batches_of_a_plan_can_be_written_one_by_one() -> None:
    writer = new_writer(prompt=TRAINED)
    requests = [Request(f"{n}", CORPUS[n], 3 + n, Unit.TOKENS, Landing.EXACT) for n in range(8)]
    requests.insert(2, Request("long", " ".join(CORPUS), 9, Unit.TOKENS, Landing.EXACT))
    plan = writer.plan(requests, 200)
    assert plan[-1] == [2]
    assert sorted(position for positions in plan for position in positions) == list(range(9))
    assert max(map(len, plan)) > 1
    written = [set(results) for results in writer.write_batches(requests, budget=200)]
    assert all(any(set(positions) <= together for together in written) for positions in plan)
    longer = writer.plan(requests, 200, times=3)
    assert len(longer) < len(plan)
    assert sorted(position for positions in longer for position in positions) == list(range(9))
    elsewhere = {
        position: result
        for positions in plan
        for position, result in zip(
            positions, writer.write_many([requests[position] for position in positions], budget=200), strict=True
        )
    }
    assert [elsewhere[position] for position in range(9)] == writer.write_many(requests, budget=200)


def test_loading_a_toy_model_prints_nothing(capfd: Any) -> None:
    writer = load("toy-bart")
    assert writer.write("amber birch", words=4, landing="exact").length == 4
    assert capfd.readouterr() == ("", "")


def test_loading_shows_no_progress_bar_and_keeps_the_setting(tmp_path: Any, capfd: Any) -> None:
    from transformers.utils import logging as bars

    new_writer().model.save_pretrained(tmp_path)
    bars.enable_progress_bar()
    try:
        load(tmp_path)
        assert bars.is_progress_bar_enabled()
    finally:
        bars.disable_progress_bar()
    assert capfd.readouterr() == ("", "")


def test_an_ending_that_is_mended_for_the_reader_is_judged_again() -> None:
    writer = new_writer()
    open_end = judged("Ferries sail under the 🇫", 5, 5, title=True)
    assert (open_end.finished, open_end.landed) == (True, "natural")
    writer.generator.generate_with_signal = lambda *_, **__: [open_end]  # type: ignore[method-assign]
    result = writer.write(NOTE, words=5, tries=1)
    assert (result.text[-2:], result.finished, result.landed) == (" …", False, "forced")


@pytest.mark.parametrize(
    ("landing", "written", "landed"),
    [("natural", 8, "natural"), ("natural", 13, "missed"), ("at_most", 12, "natural"), ("at_most", 7, "missed")],
)
def test_any_length_of_a_range_is_on_target(landing: str, written: int, landed: str) -> None:
    writer = new_writer()
    asked: list[Request] = []

    def generate(requests: Any, **_: Any) -> Any:
        asked.extend(requests)
        return [judged("It rained.", written, requests[0].target)]

    writer.generator.generate_with_signal = generate  # type: ignore[method-assign]
    result = writer.write(NOTE, words=(8, 12), landing=landing, tries=1)
    assert (asked[0].target, asked[0].within) == (12 if landing == "at_most" else 10, (8, 12))
    assert (result.length, result.landed, result.within) == (written, landed, (8, 12))
    assert result.to_dict()["within"] == (8, 12)
    assert "within" not in writer.write(NOTE, words=10, tries=1).to_dict()


def test_a_text_can_be_asked_for_without_a_source(writer: Writer) -> None:
    result = writer.write(ask="Thank them for it.", words=4, landing="exact", tries=1)
    assert result.length == 4
    assert result == writer.write_many([Request("", "", 4, landing="exact", instruction="Thank them for it.")])[0]
    with pytest.raises(SourceError, match="or say in an instruction what to write"):
        writer.write(words=4)
    with pytest.raises(OptionError, match="the task 'title': give one"):
        writer.write(NOTE, words=4, ask="Thank them.", task="title")
    with pytest.raises(TargetError, match="not one exact length"):
        writer.write(NOTE, words=(3, 4), landing="exact")
    with pytest.raises(TargetError, match="A length of"):
        writer.write(NOTE, words=(3, 4, 5))  # type: ignore[arg-type]


def test_an_instruction_that_is_longer_than_the_model_reads_is_refused() -> None:
    writer = new_writer(prompt=TAUGHT)
    with pytest.raises(SourceError, match="An instruction cannot be read in parts: shorten it"):
        writer.write(ask=" ".join(CORPUS), words=5)


def test_a_long_source_of_an_instruction_is_read_in_parts() -> None:
    writer = new_writer(prompt=TAUGHT)
    result = writer.write(LONG, ask="Thank them.", words=5, landing="exact", tries=1)
    assert (result.length, result.parts > 2) == (5, True)
