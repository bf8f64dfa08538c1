"""What holds for every strategy on every kind of model, and what each one promises."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from impatience.data import Request
from impatience.decoding.generator import TextGenerator
from impatience.decoding.ranking import rank
from impatience.decoding.results import Result
from impatience.errors import OptionError, TargetError, UnsupportedModelError
from impatience.judging import is_whole
from impatience.lengths import Unit, decode, ends_sentence, measure
from impatience.looping import is_looping
from impatience.strategies import STRATEGIES
from impatience.strategies.metropolis import Chain
from impatience.strategies.prompted_countdown import remove_markers
from support.generators import KINDS, SAMPLED, TARGETS, base_alone, generator, new_generator, requests, strategy
from support.toys import CORPUS, EOS


def works(name: str, kind: str) -> bool:
    return not (name.startswith("prompted") and kind == "bart")


EVERY = [(name, kind, unit) for name in STRATEGIES for kind in KINDS for unit in Unit if works(name, kind)]
every = pytest.mark.parametrize(("name", "kind", "unit"), EVERY)
both_kinds = pytest.mark.parametrize("kind", KINDS)


class Script:
    """A hook that makes a decoder-only model write one text and then end, whatever it is given."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.step = [*ids, EOS], 0

    def __call__(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        self.step = 0 if kwargs["input_ids"].shape[1] > 1 else self.step + 1
        output.logits[:] = -20.0
        output.logits[..., self.ids[min(self.step, len(self.ids) - 1)]] = 0.0
        return output


@pytest.fixture
def scripted() -> Any:
    own = new_generator("llama")

    def write(name: str, text: str, unit: Unit, target: int, **options: Any) -> Result:
        hook = Script(list(own.encode(text)))
        handle = own.model.base.register_forward_hook(hook, with_kwargs=True)
        (result,) = STRATEGIES[name](**options).write(own, requests(unit, (target,)))
        handle.remove()
        return result

    return write


TEXT = "The ferry leaves at seven. Nobody could remember a winter like it. It rained."


# What holds for all


@every
def test_each_result_agrees_with_its_text_and_ids(name: str, kind: str, unit: Unit) -> None:
    own, asked = generator(kind), requests(unit)
    results = strategy(name).write(own, asked)
    assert len(results) == len(asked)
    for result, request in zip(results, asked, strict=True):
        whole = decode(own.tokenizer, result.ids)
        assert result.text == whole or (name.startswith("truncate") and whole.startswith(result.text))
        assert result.length == (
            own.vocabulary.count(result.ids, unit) if unit is Unit.TOKENS else measure(result.text, unit)
        )
        assert result.tokens_spent >= len(result.ids) or name == "prompted_countdown"
        assert EOS not in result.ids
        on_target = result.length == request.target or (
            name in ("at_most", "truncate_sentence") and result.length < request.target
        )
        title = own.is_title(request)
        assert result.looping == is_looping(result.text)
        assert result.finished <= (result.ended and is_whole(result.text, own_end=result.own_end, title=title))
        if result.landed == "natural":
            assert result.finished
            assert result.own_end
            assert not result.looping
        if result.landed != "missed":
            assert on_target
            assert result.ended or name.startswith("truncate")
        elif on_target and name not in ("at_most", "exact", "forced_eos"):  # those may have cut back
            assert not result.ended
        if result.ended and name != "truncate_sentence":
            assert result.eos_probability is not None
        assert result.eos_probability is None or 0 <= result.eos_probability <= 1


@pytest.mark.parametrize(("name", "kind", "unit"), [case for case in EVERY if case[2] is Unit.WORDS])
def test_results_do_not_depend_on_earlier_sampling(name: str, kind: str, unit: Unit) -> None:
    own, asked = generator(kind), requests(unit)
    once = strategy(name).write(own, asked)
    torch.rand(5)
    state = torch.get_rng_state()
    assert strategy(name).write(own, asked) == once
    assert torch.equal(state, torch.get_rng_state())


GREEDY = [case for case in EVERY if case[0] not in SAMPLED and case[2] is Unit.TOKENS]


@pytest.mark.parametrize(("name", "kind", "unit"), GREEDY)
def test_rows_alone_equal_rows_in_a_batch(name: str, kind: str, unit: Unit) -> None:
    own, asked = generator(kind), requests(unit)
    together = strategy(name).write(own, asked)
    alone = [result for request in asked for result in strategy(name).write(own, [request])]
    for one, other in zip(together, alone, strict=True):
        assert replace(one, eos_probability=None, eos_curve=()) == replace(other, eos_probability=None, eos_curve=())
        assert one.eos_probability == pytest.approx(other.eos_probability, abs=1e-5)


@both_kinds
def test_a_text_that_does_not_end_does_not_depend_on_its_batch(kind: str) -> None:
    own, asked = new_generator(kind, ending=0), requests(Unit.WORDS, (1, 2))
    together = strategy("natural").write(own, asked)
    assert [len(result.ids) for result in together] == [4 * 1 + 32, 4 * 2 + 32]
    assert [result.tokens_spent for result in together] == [4 * 1 + 32, 4 * 2 + 32]
    assert not any(result.ended for result in together)
    assert together[:1] == strategy("natural").write(own, asked[:1])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_batch_has_one_unit(name: str) -> None:
    mixed = [*requests(Unit.TOKENS), *requests(Unit.WORDS)]
    with pytest.raises(OptionError, match="one unit; got tokens, words"):
        strategy(name).write(generator("llama"), mixed)


def test_wrong_options_are_refused() -> None:
    for name, option, value in [
        ("plain", "limit", 0), ("min_max", "window", 1.5), ("min_max", "beams", 0), ("best_of_n", "n", 0),
        ("best_of_n", "temperature", 0), ("best_of_n", "top_p", 0), ("exponential_decay", "factor", 0.9),
        ("exponential_decay", "start", -1), ("metropolis", "steps", 0), ("metropolis", "temperature", 0),
    ]:  # fmt: skip
        with pytest.raises(OptionError, match=f"{option}={value}: give"):
            STRATEGIES[name](**{option: value})


# Steered


@both_kinds
def test_steered_texts_are_the_model_s_own_generate(kind: str) -> None:
    own, asked = generator(kind), requests(Unit.WORDS)
    for landing in ("natural", "exact", "at_most"):
        results = STRATEGIES[landing]().write(own, asked)
        output, reports = own.model.generate(
            **own.inputs(asked), target_words=[request.target for request in asked], landing=landing, return_report=True
        )
        rows = output[:, own.first_column(own.inputs(asked)) :].tolist()
        assert [result.ids for result in results] == [
            tuple(row[: row.index(EOS)] if EOS in row else row) for row in rows
        ]
        assert [(result.length, result.landed) for result in results] == [
            (report.length, report.landed) for report in reports
        ]


def test_tokens_that_at_most_removes_are_spent(scripted: Any) -> None:
    result = scripted("at_most", TEXT, Unit.WORDS, 6)
    assert (result.text, result.landed, result.ended) == ("The ferry leaves at seven.", "forced", True)
    taken_back = scripted("at_most", TEXT, Unit.WORDS, 5)
    assert taken_back.text == result.text
    assert result.tokens_spent > taken_back.tokens_spent == len(taken_back.ids) + 1
    assert result.eos_probability == pytest.approx(0, abs=1e-6)


def test_natural_without_a_signal_is_the_plain_model() -> None:
    own, asked = new_generator("bart", "none"), requests(Unit.TOKENS)
    assert STRATEGIES["natural"]().write(own, asked) == STRATEGIES["plain"](limit=2 * 14 + 32).write(own, asked)


# Unsteered


@both_kinds
@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS])
def test_forced_eos_lands_exactly(kind: str, unit: Unit) -> None:
    results = STRATEGIES["forced_eos"]().write(generator(kind), requests(unit))
    assert tuple(result.length for result in results) == TARGETS[unit]
    assert "missed" not in {result.landed for result in results}


@both_kinds
@pytest.mark.parametrize("unit", Unit)
def test_truncated_texts_are_beginnings_that_do_not_exceed(kind: str, unit: Unit) -> None:
    own, asked = generator(kind), requests(unit)
    plain = strategy("plain").write(own, asked)
    for name in ("truncate", "truncate_sentence"):
        for whole, result, request in zip(plain, strategy(name).write(own, asked), asked, strict=True):
            assert result.length <= request.target
            assert result.text == whole.text[: len(result.text)] or unit is Unit.TOKENS
            assert result.tokens_spent == whole.tokens_spent
            assert result.length == whole.length if whole.length <= request.target else result.text != whole.text


def test_truncate_cuts_where_the_target_falls(scripted: Any) -> None:
    for unit, target, text in [
        (Unit.WORDS, 4, "The ferry leaves at"), (Unit.CHARACTERS, 12, "The ferry le"),
        (Unit.SENTENCES, 1, "The ferry leaves at seven."),
    ]:  # fmt: skip
        result = scripted("truncate", TEXT, unit, target)
        assert (result.text, result.length, result.landed, result.ended) == (text, target, "forced", False)
    after_a_space = scripted("truncate", TEXT, Unit.CHARACTERS, 4)
    assert (after_a_space.text, after_a_space.landed) == ("The", "missed")
    whole = scripted("truncate", TEXT, Unit.WORDS, 14)
    assert (whole.text, whole.landed, whole.ended) == (TEXT, "natural", True)
    assert scripted("truncate", TEXT, Unit.WORDS, 20).landed == "missed"


def test_strategies_call_no_cut_or_looping_text_finished_or_natural(scripted: Any) -> None:
    cut, whole = (scripted(name, TEXT, Unit.WORDS, 5) for name in ("truncate", "truncate_sentence"))
    assert cut.text == whole.text == "The ferry leaves at seven."
    assert (cut.finished, whole.finished) == (False, True), "a cut that falls on a full stop is luck"
    for text in ("The ferry leaves at seven and", "so " * 19 + "so."):
        for name in ("plain", "truncate", "truncate_sentence", "metropolis", "best_of_n", "at_most"):
            result = scripted(name, text, Unit.WORDS, len(text.split()))
            assert (result.length, result.landed) == (result.target, "forced"), name
            assert result.looping == (text[:2] == "so")
            assert result.finished == result.looping


def test_truncate_sentence_keeps_whole_sentences_where_it_can(scripted: Any) -> None:
    for unit, target, length in [(Unit.WORDS, 11, 5), (Unit.CHARACTERS, 40, 26), (Unit.SENTENCES, 1, 1)]:
        result = scripted("truncate_sentence", TEXT, unit, target)
        assert result.text == "The ferry leaves at seven."
        assert (result.length, result.landed, result.ended) == (length, "forced", True)
        assert result.eos_probability == pytest.approx(0, abs=1e-6)
    result = scripted("truncate_sentence", TEXT, Unit.WORDS, 13)
    assert result.length == 12
    assert ends_sentence(result.text)
    none_fits = scripted("truncate_sentence", TEXT, Unit.WORDS, 3)
    assert (none_fits.text, none_fits.landed, none_fits.ended) == ("The ferry leaves", "forced", False)
    unfinished = scripted("truncate_sentence", "It rained. It rained and rained", Unit.WORDS, 5)
    assert unfinished.text == "It rained."


def test_a_character_that_is_cut_in_two_tokens_stays_whole(scripted: Any) -> None:
    result = scripted("truncate", "It is 👩‍🚀 again", Unit.CHARACTERS, 7)
    assert result.text == "It is 👩"


@both_kinds
def test_min_max_is_what_transformers_does(kind: str) -> None:
    own, asked = new_generator(kind), requests(Unit.TOKENS, (20, 10, 20))
    results = STRATEGIES["min_max"](beams=3, window=0.2).write(own, asked)
    assert all(result.tokens_spent % 3 == 0 for result in results)
    for result, request in zip(results, asked, strict=True):
        low, high = (16, 24) if request.target == 20 else (8, 12)
        assert low <= len(result.ids) <= high + 1
        assert result.ended == (len(result.ids) <= high)
    alone = base_alone(own, asked[:1], num_beams=3, min_new_tokens=16, max_new_tokens=25, length_penalty=1.0)
    assert [results[0].ids] == alone


def test_min_max_refuses_a_target_that_does_not_fit() -> None:
    with pytest.raises(TargetError, match="room for 399"):
        STRATEGIES["min_max"]().write(generator("bart"), requests(Unit.TOKENS, (450,)))
    (result,) = STRATEGIES["min_max"](beams=1).write(generator("bart"), requests(Unit.TOKENS, (390,)))
    assert 351 <= len(result.ids) <= 399


@both_kinds
def test_exponential_decay_is_what_transformers_does_row_by_row(kind: str) -> None:
    own, asked = new_generator(kind, ending=1), requests(Unit.TOKENS, (6, 12, 21))
    results = STRATEGIES["exponential_decay"](factor=1.5).write(own, asked)
    plain = STRATEGIES["plain"](limit=60).write(own, asked)
    assert [result.ids for result in results] != [result.ids for result in plain]
    for result, request in zip(results, asked, strict=True):
        penalty = (int(0.8 * request.target), 1.5)
        assert [result.ids] == base_alone(own, [request], exponential_decay_length_penalty=penalty, max_new_tokens=200)
        assert result.ended


def test_an_end_that_was_pushed_or_barred_is_forced(scripted: Any) -> None:
    length = len(generator("llama").encode(TEXT))
    assert scripted("min_max", TEXT, Unit.TOKENS, length, beams=1).landed == "natural"
    stretched = scripted("min_max", TEXT, Unit.WORDS, 14, window=0.0)
    assert stretched.landed in ("forced", "missed")
    assert scripted("exponential_decay", TEXT, Unit.TOKENS, length).landed == "natural"
    pushed = scripted("exponential_decay", TEXT, Unit.TOKENS, 7, start=0.9, factor=3.0)
    assert (pushed.length, pushed.landed) == (7, "forced")
    assert pushed.eos_probability == pytest.approx(0, abs=1e-6)


# Sampled


@both_kinds
@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS])
def test_best_of_n_is_the_best_of_n(kind: str, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked, drawn = new_generator(kind), requests(unit), []
    draw = own.generate_without_signal
    monkeypatch.setattr(
        own, "generate_without_signal", lambda *args, **options: drawn.extend(draw(*args, **options)) or drawn
    )
    best = STRATEGIES["best_of_n"](n=6, limit=30).write(own, asked)
    assert len(drawn) == 18
    for row, (result, request) in enumerate(zip(best, asked, strict=True)):
        rivals = drawn[6 * row : 6 * row + 6]
        assert len({rival.ids for rival in rivals}) > 1
        ranks = [rank(request, rivals[0], rival, sampled=True) for rival in rivals]
        assert rank(request, rivals[0], result, sampled=True) == min(ranks) <= ranks[0]
        assert not result.added
        assert result.first_unsupported == rivals[0].unsupported
        assert result.tokens_spent == sum(rival.tokens_spent for rival in rivals)
        if result.landed != "missed":
            natural = result.ids == rivals[0].ids and result.finished and not result.looping
            assert result.landed == ("natural" if natural else "forced")


def test_seeds_and_keys_decide_what_is_drawn() -> None:
    own, asked = generator("llama"), requests(Unit.TOKENS)
    for name in SAMPLED:
        once = strategy(name).write(own, asked)
        assert strategy(name, seed=1).write(own, asked) != once
        assert strategy(name).write(own, [replace(request, id=f"{request.id}!") for request in asked]) != once


@both_kinds
def test_metropolis_comes_nearer_and_counts_what_it_drew(kind: str) -> None:
    own = new_generator(kind)
    # The words of an untrained model are in no source; the message of a chat is none.
    asked = [replace(request, task="chat") for request in requests(Unit.TOKENS, tuple(range(6, 16)))]
    off, spent = [], []
    for steps in (1, 3, 9):
        results = STRATEGIES["metropolis"](steps=steps, limit=24).write(own, asked)
        off.append(sum(abs(result.length - request.target) for result, request in zip(results, asked, strict=True)))
        spent.append(sum(result.tokens_spent for result in results))
    assert off[0] > off[1] > off[2]
    assert off[2] < 0.7 * off[0]
    assert spent == sorted(spent)


@both_kinds
def test_metropolis_keeps_a_beginning_and_draws_the_rest(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked, seen = new_generator(kind), requests(Unit.TOKENS, (7, 9, 200)), []
    draw = own.generate_without_signal

    def watched(some: Any, **options: Any) -> list[Result]:
        results = draw(some, **options)
        replay = options["processors"](range(len(some)), 0)
        seen.extend(zip(replay[0].prefixes if replay else [()] * 3, results, strict=True))
        return results

    monkeypatch.setattr(own, "generate_without_signal", watched)
    results = STRATEGIES["metropolis"](steps=6, limit=24).write(own, asked)
    assert results[-1].landed == "missed"
    assert sum(len(kept) for kept, _ in seen) > 20
    assert all(result.ids[: len(kept)] == kept for kept, result in seen)
    assert sum(result.tokens_spent for result in results) == sum(
        result.tokens_spent - len(kept) for kept, result in seen
    )


def test_metropolis_visits_each_state_as_often_as_its_distribution_says() -> None:
    """On a model that goes on with probability 0.8, the chain is in each state as often as π says."""
    chance, keep_on, target, temperature = random.Random(5), 0.8, 6, 2.0

    def text(length: int) -> Result:
        return Result(length, target, Unit.TOKENS, "missed", None, text="", ids=(7,) * length, tokens_spent=length + 1)

    def drawn(kept: int) -> int:
        while chance.random() < keep_on:
            kept += 1
        return kept

    request = Request("a", "x", target, Unit.TOKENS)
    chain, visits, steps = Chain(request, text(drawn(0))), Counter[int](), 60_000
    for _ in range(steps):
        chain.step(text(drawn(chance.randrange(chain.state.length + 1))), 0, temperature, chance)
        visits[chain.state.length] += 1
    weights = [keep_on**length * math.exp(-abs(length - target) / temperature) for length in range(60)]
    for length in range(12):
        assert visits[length] / steps == pytest.approx(weights[length] / sum(weights), abs=0.01)


# Prompted


@pytest.mark.parametrize("name", ["prompted", "prompted_countdown"])
def test_prompted_strategies_need_a_model_that_follows_instructions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was generated")

    for own, why in (
        (new_generator("bart"), "encoder-decoder"),
        (new_generator("llama", tokenizer="wordpiece"), "chat template"),
    ):
        monkeypatch.setattr(own.model.base, "generate", never)
        with pytest.raises(UnsupportedModelError, match=why):
            STRATEGIES[name]().check(own)
        with pytest.raises(UnsupportedModelError, match=why):
            STRATEGIES[name]().write(own, requests(Unit.WORDS))


def asked_for(name: str, unit: Unit, target: int, monkeypatch: pytest.MonkeyPatch) -> str:
    own, seen = new_generator("llama"), []
    monkeypatch.setattr(own, "pad", lambda rows: seen.extend(rows) or TextGenerator.pad(own, rows))
    STRATEGIES[name](limit=1).write(own, requests(unit, (target,)))
    return str(own.tokenizer.decode(seen[0]))


def test_the_prompt_names_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for unit, target, amount in [
        (Unit.WORDS, 7, "7 words"), (Unit.WORDS, 1, "1 word"), (Unit.CHARACTERS, 160, "160 characters"),
        (Unit.SENTENCES, 2, "2 sentences"), (Unit.TOKENS, len(generator("llama").encode(CORPUS[0])), "16 words"),
    ]:  # fmt: skip
        prompt = asked_for("prompted", unit, target, monkeypatch)
        assert prompt.startswith(f"user: Summarize the text below. Write exactly {amount}, ")
        assert prompt.endswith(f"{CORPUS[0]}\nassistant: ")


def test_the_countdown_is_in_words_or_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    for unit, target, amount, start in [
        (Unit.WORDS, 7, "7 words", "<7>"), (Unit.SENTENCES, 3, "3 sentences", "<3>"),
        (Unit.CHARACTERS, len(CORPUS[0]), "16 words", "<16>"),
    ]:  # fmt: skip
        prompt = asked_for("prompted_countdown", unit, target, monkeypatch)
        assert f"Write exactly {amount}, " in prompt
        assert f"from {start} to <1>" in prompt


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<4> Snow <3> closed <2> the <1> harbour. <0>", "Snow closed the harbour."),
        ("Of course: <2>Snow<1>fell.<0> I hope this helps!", "Snow fell."),
        ("<2> Snow closed it.\n<1> No ferry left.\n<0>", "Snow closed it. No ferry left."),
        ("<12> Snow <11> fell <1", "Snow fell"),
        ("Snow fell, 3 < 4.", "Snow fell, 3 < 4."),
        ("<0>", ""),
    ],
)
def test_markers_are_removed(text: str, read: str) -> None:
    assert remove_markers(text) == read


def test_a_countdown_is_measured_without_its_markers(scripted: Any) -> None:
    own = generator("llama")
    text = "<4> The <3> ferry <2> leaves <1> today. <0>"
    result = scripted("prompted_countdown", text, Unit.WORDS, 4)
    assert (result.text, result.length, result.landed) == ("The ferry leaves today.", 4, "natural")
    assert result.tokens_spent == len(own.encode(text)) + 1
    assert result.ids == own.encode("The ferry leaves today.")
    assert scripted("prompted_countdown", text, Unit.WORDS, 5).landed == "missed"
    assert scripted("prompted_countdown", text, Unit.WORDS, 4, limit=12).landed == "missed"
