"""Protocols: which lengths they ask for, worked out by hand."""

from __future__ import annotations

import pytest

from impatience.data import MOST, Example, Request
from impatience.errors import DataError, OptionError
from impatience.lengths import Unit, measure
from impatience.protocols import PROTOCOLS, Protocol, request_for
from impatience.protocols.ladder import Ladder
from impatience.protocols.lifebench import LifeBench
from impatience.protocols.ood import Ood
from impatience.protocols.reference import Reference
from impatience.protocols.sweep import Sweep


def example(name: str, source_words: int = 5, target: str = "A short text.", **meta: object) -> Example:
    return Example(name, " ".join(["word"] * source_words), target, meta)


def ask(protocol: Protocol, *examples: Example, unit: Unit = Unit.WORDS) -> list[Request]:
    return list(protocol.requests(examples, unit, lambda text: measure(text, unit)))


def targets(protocol: Protocol, *examples: Example) -> dict[str, int]:
    return {request.id: request.target for request in ask(protocol, *examples)}


def test_every_protocol_says_what_it_is() -> None:
    for protocol in PROTOCOLS.values():
        assert 10 < len(protocol.summary) < 90


# Reference


def test_the_reference_says_how_long() -> None:
    one, other = example("a", target="It rained all day."), example("b", target="No.")
    assert ask(Reference(), one, other) == [
        Request("a", one.source, 4, Unit.WORDS, references=("It rained all day.",), example="a"),
        Request("b", other.source, 1, Unit.WORDS, references=("No.",), example="b"),
    ]
    assert [request.target for request in ask(Reference(), one, unit=Unit.CHARACTERS)] == [18]
    assert [request.target for request in ask(Reference(), one, unit=Unit.SENTENCES)] == [1]


def test_references_of_one_source_can_be_merged() -> None:
    first = Example("p-0", "An abstract.", "The first of two.")
    second = Example("p-1", "An abstract.", "Another one that is longer.")
    other = Example("q-0", "Another abstract.", "Alone.")
    assert [request.target for request in ask(Reference(), first, second, other)] == [4, 5, 1]
    merged = ask(Reference(merge=True), first, other, second)
    assert merged == [
        request_for(first, 4, Unit.WORDS, ("The first of two.", "Another one that is longer.")),
        request_for(other, 1, Unit.WORDS, ("Alone.",)),
    ]


# Out of distribution


@pytest.mark.parametrize(
    ("name", "words", "target"),
    [
        ("42abc", 1000, 420),  # 42 % of 1,000
        ("4f2abc", 1000, 420),  # the digits need not stand together
        ("f0a7c", 1010, 202),  # 07 is held to 20 %
        ("99aa", 1000, 950),  # 99 is held to 95 %
        ("99aa", 1100, 972),  # the source is cut to 1,024
        ("60aa", 9999, 614),
        ("50aa", 300, 200),  # 150 is held to 200
        ("33aa", 1001, 330),  # 330.33 is rounded down
        ("21aa", 100, 200),  # even where the source has less
        ("abc7", 1000, 500),  # one digit: 50 %
        ("abcd", 1000, 500),  # none: 50 %
    ],
)
def test_the_authors_rule(name: str, words: int, target: int) -> None:
    (request,) = ask(Ood(rule="authors"), example(name, words))
    assert (request.target, request.references, request.group) == (target, (), "")


PUBLISHED = [{"first": 755, "second": 208, "third": 686}, {"first": 584, "second": 841, "third": 466}]


def test_seeded_targets_are_published() -> None:
    """From SHA-256 of "0:first" and so on, worked out with sha256sum and bc."""
    examples = [example(name, 5000) for name in ("first", "second", "third")]
    assert targets(Ood(), *examples) == PUBLISHED[0]
    assert targets(Ood(seed=1), *examples) == PUBLISHED[1]
    assert targets(Ood(), *reversed(examples)) == PUBLISHED[0]


def test_seeded_targets_fill_the_band_below_the_source() -> None:
    many = targets(Ood(low=3, high=6), *(example(f"n{n}", 50) for n in range(200)))
    assert set(many.values()) == {3, 4, 5, 6}
    assert max(list(many.values()).count(value) for value in (3, 4, 5, 6)) < 80
    near = targets(Ood(low=3, high=6), *(example(f"n{n}", 5) for n in range(50)))
    assert set(near.values()) == {3, 4}  # below the 5 words there are
    assert targets(Ood(low=3, high=6), example("a", 3), example("b", 4)) == {"b": 3}
    assert all(request.references == () for request in ask(Ood(low=3, high=6), example("b", 9)))


# Sweep


def test_a_sweep_asks_for_every_length() -> None:
    one = example("a", target="What there is.")
    assert ask(Sweep(lengths=(10, 3)), one) == [
        request_for(one, 10, Unit.WORDS, ("What there is.",), "10", "a@10"),
        request_for(one, 3, Unit.WORDS, ("What there is.",), "3", "a@3"),
    ]


def test_a_sweep_has_no_reference_where_there_is_none() -> None:
    assert [request.references for request in ask(Sweep(lengths=(3,)), Example("a", "Write.", ""))] == [()]


# LIFEBench

TASK = (
    "[Instruction] Answer this: \n Why is it cold? \n\n"
    "[Requirement] Your answer must be {word_count_type} {word_count} words long."
)


def task(text: str = TASK) -> Example:
    return Example("t", "Answer this.", "", {"prompt": text})


def test_lifebench_asks_in_the_words_of_its_tasks() -> None:
    requests = ask(LifeBench(lengths=(40, 16)), task())
    assert [(r.id, r.group, r.target, r.within) for r in requests] == [
        ("t@equal-to-40", "equal to 40", 40, None),
        ("t@equal-to-16", "equal to 16", 16, None),
        ("t@at-most-40", "at most 40", 38, (1, 40)),
        ("t@at-most-16", "at most 16", 15, (1, 16)),
        ("t@at-least-40", "at least 40", 42, (40, MOST)),
        ("t@at-least-16", "at least 16", 17, (16, MOST)),
    ]
    assert requests[2].text.endswith("Why is it cold? \n\n[Requirement] Your answer must be at most 40 words long.")
    assert {(r.example, r.references, r.task, str(r.landing)) for r in requests} == {("t", (), "chat", "natural")}
    assert [r.target for r in ask(LifeBench(lengths=(1,), margin=0.5), task())] == [1, 1, 2]


def test_lifebench_cuts_a_long_text_and_keeps_the_length() -> None:
    (request,) = ask(LifeBench(lengths=(9,), kinds=("equal to",), source_words=4), task())
    assert (
        request.text
        == "[Instruction] Answer this: \n Why …\n\n[Requirement] Your answer must be equal to 9 words long."
    )
    (request,) = ask(LifeBench(lengths=(9,), kinds=("equal to",), source_words=7), task())
    assert "Why is it cold? \n\n" in request.text


def test_lifebench_needs_its_tasks_and_words() -> None:
    with pytest.raises(DataError, match=r"a: lifebench needs tasks that state their length"):
        ask(LifeBench(), example("a"))
    with pytest.raises(OptionError, match="use words"):
        ask(LifeBench(), task(), unit=Unit.TOKENS)


# Ladder


def rung(article: str, name: str, target: str) -> Example:
    return example(f"{article}-{name}", target=target, rung=name)


def test_a_ladder_asks_for_articles_that_have_every_rung() -> None:
    whole = [rung("a", "digest", "Many words stand here."), rung("a", "title", "Few words")]
    part = [rung("b", "title", "No more")]
    other = [rung("c-d", "title", "One"), rung("c-d", "abstract", "Not asked for."), rung("c-d", "digest", "Two words")]
    requests = ask(Ladder(rungs=("title", "digest")), *whole, *part, *other)
    assert [(r.id, r.group, r.target, r.references) for r in requests] == [
        ("a-title", "title", 2, ("Few words",)),
        ("a-digest", "digest", 4, ("Many words stand here.",)),
        ("c-d-title", "title", 1, ("One",)),
        ("c-d-digest", "digest", 2, ("Two words",)),
    ]


def test_a_ladder_without_rungs_says_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"None of 2 examples .* title, digest; rungs in the data: title\."):
        ask(Ladder(rungs=("title", "digest")), rung("a", "title", "One"), example("x"))
    with pytest.raises(ValueError, match="rungs in the data: none"):
        ask(Ladder(), example("x"))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Ood, {"low": 0}, "low=0"),
        (Ood, {"low": 9, "high": 8}, "give 1 ≤ low ≤ high"),
        (Ood, {"rule": "author"}, "give one of seeded, authors"),
        (Sweep, {"lengths": ()}, "lengths"),
        (Sweep, {"lengths": (0, 5)}, "at least 1"),
        (Sweep, {"lengths": (5, 5)}, "different"),
        (LifeBench, {"lengths": (5, 5)}, "different"),
        (LifeBench, {"kinds": ("about",)}, "give some of equal to, at most, at least"),
        (LifeBench, {"margin": 1.0}, "margin=1.0"),
        (LifeBench, {"source_words": 0}, "source_words=0"),
        (Ladder, {"rungs": ()}, "at least one"),
        (Ladder, {"rungs": ("title", "title")}, "each once"),
    ],
)
def test_options_that_cannot_be_are_refused(kind: type[Protocol], options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**options)


def test_a_target_of_0_is_refused() -> None:
    with pytest.raises(DataError, match="a: the tokenizer finds no token in the reference"):
        request_for(example("a"), 0, Unit.TOKENS)
