"""``impatience teach``: filters, asks, rows, texts of one's own, and human rows."""

from __future__ import annotations

import inspect
import json
import random
import re
from pathlib import Path

import pytest

from impatience.data import Example
from impatience.errors import DataError, OptionError, RunError
from impatience.training.teaching import TeachOptions, filters, human
from impatience.training.teaching.asks import SHARE, Ask, Document, make_asks, prompts, rows_of
from impatience.training.teaching.filters import copied, fault, is_document, is_general_turn, novelty
from impatience.training.teaching.rows import HELD_OUT, Rows
from impatience.training.teaching.texts import LEAST_WORDS, MOST_WORDS, divide, read_texts
from support.teaching import SOURCE, Scripted, data_file, read, text_of, write_rows

# Filters


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("", "The Hulda has a crack in a shaft, so she stays in Bergen on Tuesday."),
        ("cut", None),
        ("empty", "Ferry."),
        ("boilerplate", "Sure! The ferry stays in the harbour on Tuesday."),
        ("boilerplate", "Summary: the ferry stays in the yard."),
        ("boilerplate", "The text above says that the ferry stays in the yard."),
        ("markup", "The ferry **Hulda** stays in the yard."),
        ("markup", "- The ferry stays.\n- A boat sails."),
        ("markup", "The ferry stays until [date] in the yard."),
        ("loops", "The ferry will not sail on Tuesday. " * 4),
        ("repeats itself", "The ferry will not sail on Monday morning. The ferry will not sail on any day this week."),
        ("breaks off", "The ferry Hulda will not sail because one of"),
        ("foreign", "The ferry stays in Oslo on Tuesday."),
        ("foreign", "The ferry has 3 shafts."),
        ("longer than its text", SOURCE.replace("Hulda", "Hulda will")),
        ("novel", "Passengers complained bitterly about terrible compensation from greedy companies."),
        ("copied", " ".join(SOURCE.split()[:40]) + " day."),
    ],
    ids=str,
)  # fmt: skip
def test_each_fault_is_found(wrong: str, answer: str | None) -> None:
    assert fault(Ask("Summarize the text above.", 20, SOURCE), answer) == wrong


def test_titles_need_no_full_stop_but_are_short_and_turns_have_no_text_to_keep_to() -> None:
    title = Ask("Write a title for the text above.", 5, SOURCE, title=True)
    assert fault(title, "Ferry Hulda will not sail") == ""
    assert fault(title, " ".join(SOURCE.split()[:24])) == "no title"
    assert fault(Ask("Write a poem.", 20), "In Oslo 3 passengers sang loudly.") == ""
    assert fault(Ask("Say it.", 20, SOURCE), "Surely the yard has a day for the crack.") == ""  # not "sure"


def test_shares_are_of_word_sequences_and_of_content_words() -> None:
    assert copied("the yard in Bergen needs a day to weld it and no more than that at all", SOURCE) == pytest.approx(
        0.2
    )
    assert copied("the yard in Bergen needs a day", SOURCE) == 0  # too short to tell
    assert novelty("The ferries are sailing on Tuesdays.", SOURCE) == 0  # inflected; one new word is free
    assert novelty("Strange whales visited London.", SOURCE) == pytest.approx(3 / 4)


def test_turns_about_programs_or_lengths_and_documents_with_holes_are_left_out() -> None:
    assert is_general_turn("Write a letter to the mayor")
    for turn in ("Write a Python program that sorts", "Write a poem in 20 words", "Explain why"):
        assert not is_general_turn(turn)
    assert is_document(text_of(0, 9))
    for text in (text_of(0, 8), f"{text_of(0, 9)} Yours, [Name]", f"# {text_of(0, 9)} ## end", "So it was. " * 30):
        assert not is_document(text)


# Asks


def test_lengths_are_spread_and_fit_the_text() -> None:
    document = Document(text_of(0, 20))
    asks = make_asks([document], ["Write a poem", "Why is it cold?"], 200, random.Random(0))
    over, turns = [ask for ask in asks if ask.text], [ask for ask in asks if not ask.text]
    assert len(over) == 200
    assert len(turns) == 2 * 100
    assert {ask.instruction for ask in turns} == {"Write a poem.", "Why is it cold?"}
    assert max(ask.words for ask in over) <= SHARE * 140
    assert min(ask.words for ask in over if ask.title) >= 5
    assert max(ask.words for ask in over if ask.title) <= 28
    assert len({ask.words for ask in turns}) > 50
    assert min(ask.words for ask in turns) < 30 < 200 < max(ask.words for ask in turns)
    assert {ask.title for ask in over} == {True, False}


def test_documents_in_other_languages_are_asked_about_in_them() -> None:
    asks = make_asks([Document(SOURCE, "de")], [], 20, random.Random(0))
    assert {ask.instruction for ask in asks} <= set(prompts()["languages"]["de"]["tasks"])
    assert not any(ask.title for ask in asks)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (9, "A text.\n\nSummarize it in one short sentence."),
        (70, "A text.\n\nSummarize it in two or three sentences."),
        (71, "A text.\n\nSummarize it in about 71 words."),
    ],
)
def test_the_author_is_asked_in_words_that_it_obeys(words: int, message: str) -> None:
    assert Ask("Summarize it.", words, "A text.").message() == message


def test_a_question_and_a_turn_are_asked_with_a_sentence_of_its_own() -> None:
    assert Ask("What is it?", 20, "A text.").message() == "A text.\n\nWhat is it? Answer in one sentence."
    assert Ask("Tell me.", 90).message().startswith("Tell me. Answer in about 90 words")


@pytest.mark.parametrize(("sentences", "beginnings"), [(1, 0), (2, 1), (8, 1), (9, 2), (30, 7)])
def test_short_answers_give_at_most_one_beginning_and_long_ones_more(sentences: int, beginnings: int) -> None:
    answer = text_of(0, sentences)
    made = list(rows_of(Ask("Say it.", 9, SOURCE), answer, random.Random(0)))
    assert made[0][1] == answer
    assert len(made) == 1 + beginnings
    assert len({target for _, target in made}) == len(made)
    for source, target in made:
        assert answer.startswith(target)
        assert target.endswith(".")
        assert source.startswith(f"{SOURCE}\n\nSay it.")


def test_prompts_name_the_real_length_or_none() -> None:
    answer, chance = "The ferry stays. A boat sails.", random.Random(0)
    named = [next(iter(rows_of(Ask("Say it.", 99), answer, chance)))[0] for _ in range(200)]
    assert set(named) == {
        "Say it.", "Say it. Answer in 6 words.", "Say it. Answer in 30 characters.", "Say it. Answer in 2 sentences.",
    }  # fmt: skip
    assert 20 < named.count("Say it.") < 60
    assert "Say it. Answer in 1 sentence." in {
        source for _ in range(60) for source, _ in rows_of(Ask("Say it.", 9), "It stays.", chance)
    }


# Rows


def test_held_out_rows_have_documents_and_turns_of_their_own(tmp_path: Path, scripted: type[Scripted]) -> None:
    made = write_rows(tmp_path, scripted, texts=[text_of("mine", 8), text_of(1, 8)])  # the second is a document, too
    of = {split: read(getattr(made, split)) for split in ("train", "validation")}
    answers = read(tmp_path / "answers.jsonl")
    for about in (
        lambda row: row["ask"]["text"],
        lambda row: "" if row["ask"]["text"] else row["ask"]["instruction"],
    ):
        train, held = ({about(row) for row in answers if row["split"] == split} - {""} for split in of)
        assert train
        assert held
        assert not train & held
    assert len({row["ask"]["text"] for row in answers if row["split"] == "validation"} - {""}) == 41 // HELD_OUT
    for split, lines in of.items():
        assert [row["id"] for row in lines] == [f"{split}-{number}" for number in range(len(lines))]
    over = {split: {row["source"].rpartition("\n\n")[0] for row in lines} - {""} for split, lines in of.items()}
    assert all(over.values())
    assert not over["train"] & over["validation"]


def test_the_answers_that_the_author_doubts_most_are_left_out_questions_by_themselves(tmp_path: Path) -> None:
    made = Rows(tmp_path, TeachOptions(doubted=0.5), lambda _: True, print)
    answered = [{"support": value, "answer": "So."} for value in (0.9, 0.2, 0.4, 0.8)]
    answered += [{"support": value, "answer": "Why?"} for value in (0.03, 0.1)] + [{"answer": "A turn."}]
    assert made._doubted(answered) == {1, 2, 4}


@pytest.mark.parametrize("stage", ["documents", "answers"])
def test_a_killed_run_goes_on_to_the_same_rows(stage: str, tmp_path: Path, scripted: type[Scripted]) -> None:
    rest = write_rows(tmp_path / "whole", scripted)
    parts = scripted.asked.count("answers")
    assert parts > 3

    class Killed(Scripted):
        killed_after = 2

        def documents(self, count: int) -> list[Document]:
            if stage == "documents":
                raise KeyboardInterrupt
            return super().documents(count)

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "killed", Killed)
    with (tmp_path / "killed" / "answers.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"half')
    scripted.asked = ()
    again = write_rows(tmp_path / "killed", scripted)
    assert "turns" not in scripted.asked
    assert ("documents" in scripted.asked) == (stage == "documents")
    assert scripted.asked.count("answers") == (parts if stage == "documents" else parts - 2)
    for name in ("train", "validation"):
        assert getattr(again, name).read_bytes() == getattr(rest, name).read_bytes()
    made = scripted.made
    write_rows(tmp_path / "killed", scripted)
    assert scripted.made == made  # nothing is left to write, so no model is loaded


def test_answers_of_other_options_and_too_few_rows_are_refused(tmp_path: Path, scripted: type[Scripted]) -> None:
    few = TeachOptions(turns=20, documents=0, answers=10, steps=1)
    with pytest.raises(DataError, match=r"Only \d rows for validation are left of 10 answers. Ask for more turns"):
        write_rows(tmp_path, scripted, few)
    with pytest.raises(RunError, match=r"answers\.jsonl does not fit these options"):
        write_rows(tmp_path, scripted, TeachOptions(turns=20, documents=0, asks=9, steps=1))


@pytest.mark.parametrize("name", ["answers", "turns", "documents"])
def test_a_changed_byte_in_what_was_written_is_noticed(name: str, tmp_path: Path, scripted: type[Scripted]) -> None:
    rows = write_rows(tmp_path, scripted)
    rows.train.unlink()  # as if killed before the last step
    file = tmp_path / f"{name}.jsonl"
    first, second, *others = file.read_bytes().splitlines(keepends=True)
    place = second.rindex(b'"answer": "') + 11 if name == "answers" else 0
    damaged = second[:place] + bytes([second[place] ^ 1]) + second[place + 1 :]
    file.write_bytes(b"".join((first, damaged, *others)))
    with pytest.raises(RunError, match="line 2 is damaged"):
        write_rows(tmp_path, scripted)


def test_texts_that_the_model_would_not_read_whole_are_left_out(tmp_path: Path, scripted: type[Scripted]) -> None:
    long = text_of("long", 30)
    write_rows(tmp_path, scripted, texts=[long], reads=lambda text: len(text.split()) < 100)
    asked = {row["ask"]["text"] for row in read(tmp_path / "answers.jsonl")}
    assert len(asked - {""}) == 40
    assert long not in asked


# Texts of one's own


def test_long_texts_are_divided_between_paragraphs(tmp_path: Path) -> None:
    paragraphs = [text_of(number, 50) for number in range(4)]  # 350 words each
    assert list(divide("\n\n".join(paragraphs))) == ["\n\n".join(paragraphs[:2]), "\n\n".join(paragraphs[2:])]
    (cut,) = divide(text_of(0, 200))
    assert len(cut.split()) == MOST_WORDS
    assert not list(divide("short " * (LEAST_WORDS - 1)))
    rows_file, plain = tmp_path / "rows.jsonl", tmp_path / "plain.txt"
    rows_file.write_text("".join(json.dumps({"source": text}) + "\n" for text in paragraphs[:2]), encoding="utf-8")
    plain.write_text(paragraphs[1], encoding="utf-8")
    assert read_texts([str(rows_file), str(plain)]) == paragraphs[:2]
    rows_file.write_text('{"body": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="there is no text in the column 'text' or 'source'"):
        read_texts([str(rows_file)])


# Human rows


def test_human_targets_are_kept_where_they_are_grounded(tmp_path: Path) -> None:
    summary = "The Hulda stays in the yard on Tuesday, for a shaft has a crack."
    spec = data_file(
        tmp_path,
        {"source": SOURCE, "target": summary},
        {"source": SOURCE, "target": "The ferry Ragnhild stays on Tuesday."},
        {"source": SOURCE, "target": "Ferry Hulda in the yard"},
        {"source": text_of(0, 90), "target": f"{text_of(0, 90).split('.')[3].strip().capitalize()}."},
    )
    said: list[str] = []
    found = human.read_human([spec, spec], lambda text: len(text.split()) < 500, 0, said.append)
    assert [target for _, target in found] == [summary]  # once, though two sets have it
    assert found[0][0].instruction in prompts()["summaries"]
    left_out = "{'foreign': 1, 'breaks off': 1, 'text too long': 1}"
    assert said[0] == f"{spec}: 1 of 4 human targets kept; left out: {left_out}"
    titles = human.read_human([f"{spec}?template=title"], lambda _: True, 0, said.append)
    assert "Ferry Hulda in the yard" in [target for _, target in titles]
    assert all(ask.instruction in human.TITLES for ask, _ in titles)
    assert {*human.TITLES, *human.QUESTIONS} <= set(prompts()["short_tasks"])


def test_titles_among_other_rungs_are_asked_for_as_titles() -> None:
    chance = random.Random(0)
    example = Example("a", SOURCE, "Ferry Hulda in the yard", {"rung": "title"})
    assert human._ask(example, "summarize", "govnews", chance).title
    assert not human._ask(Example("a", SOURCE, "It stays.", {"rung": "deck"}), "summarize", "govnews", chance).title


def test_questions_are_asked_without_their_answer(tmp_path: Path) -> None:
    spec = data_file(tmp_path, {"source": f"answer: Bergen context: {SOURCE}", "target": "Where is the yard?"})
    ((ask, target),) = human.read_human([f"{spec}?template=question"], lambda _: True, 0, print)
    assert ask == Ask("Write a question that the text above answers.", 4, SOURCE, title=True)
    assert target == "Where is the yard?"
    with pytest.raises(DataError, match=r"has the form 'answer: … context: …'.*squad_qg\?template=question"):
        human.read_human([spec], lambda _: True, 0, print)
    plain = data_file(tmp_path, {"source": SOURCE, "target": "Where is the yard?"})
    with pytest.raises(DataError, match="does not have the form"):
        human.read_human([f"{plain}?template=question"], lambda _: True, 0, print)


def test_sets_for_measuring_only_and_other_templates_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPATIENCE_DATA", str(tmp_path))
    (tmp_path / "xsum.jsonl.xz").touch()  # else it is the hub's
    for name in ("xsum", "compression"):
        with pytest.raises(OptionError, match="for measuring only"):
            human.read_human([name], lambda _: True, 0, print)
    with pytest.raises(OptionError, match="template='chat'; give summarize, title or question"):
        human.read_human(["own.jsonl?template=chat"], lambda _: True, 0, print)


def test_human_rows_join_the_training_rows_but_none_over_a_held_out_text(
    tmp_path: Path, scripted: type[Scripted]
) -> None:
    plain = write_rows(tmp_path / "plain", scripted)
    held = next(row for row in read(tmp_path / "plain" / "answers.jsonl") if row["ask"]["text"])["ask"]["text"]
    wrapped = held.replace(". ", ".\n", 1)
    pairs = [(Ask("Summarize it.", 4, SOURCE), "The ferry stays."), (Ask("Summarize it.", 4, wrapped), "It stays.")]
    mixed = write_rows(tmp_path / "mixed", scripted, human=pairs)
    extra = read(mixed.train)[len(read(plain.train)) :]
    assert [row["target"] for row in extra] == ["The ferry stays."]
    assert extra[0]["source"].startswith(f"{SOURCE}\n\nSummarize it.")
    assert mixed.validation.read_bytes() == plain.validation.read_bytes()


def test_the_guide_names_every_fault() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "teaching.md").read_text(encoding="utf-8")
    table = guide.partition("## The filters")[2].partition("## ")[0]
    faults = set(re.findall(r'return "([a-z ]+)"', inspect.getsource(filters.fault))) | {"doubted"}
    assert len(faults) == 13
    assert {fault for fault in faults if f"`{fault}`" not in table} == set()
