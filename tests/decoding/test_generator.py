"""The text generator: with the signal, without it, with prefixes, and what is known of the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch

from impatience import attach
from impatience.data import Encoder, Request
from impatience.decoding.generator import TextGenerator
from impatience.decoding.loop import DecodingLoop
from impatience.decoding.results import Result
from impatience.decoding.retries import ending_requests
from impatience.errors import OptionError, SourceError, TokenizerError
from impatience.families import FAMILIES, Family
from impatience.lengths import Landing, Unit
from impatience.strategies import STRATEGIES
from support.generators import KINDS, ROOM, SAMPLED, base_alone, generator, new_generator, requests, strategy
from support.toys import CORPUS, EOS, TOKENIZERS, tiny_model

EVERY_TYPE = [kind for family in FAMILIES.values() for kind in family.model_types]
OTHERS = {
    "gpt_neo": (
        Family(("gpt_neo",), decoder="transformer", layers="h", positions="wpe"),
        {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "mamba": (Family(("mamba",), decoder="backbone", limit=None), {}),
    "bloom": (Family(("bloom",), decoder="transformer", layers="h", limit=None), {}),
}
"""Types that no family of ours declares: with a minimal declaration each, and sizes that make them differ."""
both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("kind", ["bart", "marian", "t5", "llama", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_without_the_signal_it_is_the_base_model_alone(kind: str, options: dict[str, Any]) -> None:
    own, asked = new_generator(kind, tokenizer="byte_level", ending=2, strength=5), requests(Unit.TOKENS)
    steered = own.generate_with_signal(asked, max_new_tokens=20, **options)
    results = own.generate_without_signal(asked, limit=20, **options)
    assert [result.ids for result in results] != [result.ids for result in steered]
    assert [result.ids for result in results] == base_alone(own, asked, max_new_tokens=20, **options)


def assert_texts_are_those_of_rows_alone(own: TextGenerator) -> tuple[str, ...]:
    """Check that texts written together, maybe by the loop, are what ``generate`` writes row by row; return them."""
    asked = [replace(one, landing=Landing.EXACT) for one in requests(Unit.TOKENS, (5, 23, 12, 30))]
    results = own.generate_with_signal(asked)
    for one, result in zip(asked, results, strict=True):
        inputs = own.inputs([one])
        written = own.model.generate(**inputs, target_tokens=one.target, landing="exact", do_sample=False)
        (ids,) = written[:, own.first_column(inputs) :].tolist()
        assert [*result.ids, EOS] == ids
        assert len(result.ids) == one.target
    return tuple(result.text for result in results)


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_texts_of_every_type_are_those_of_rows_alone(kind: str) -> None:
    own = new_generator(kind, tokenizer="byte_level")
    assert own.can_use_loop(2, {}) == (own.model.family.fast_loop and kind != "mistral")  # which has a window here
    assert_texts_are_those_of_rows_alone(own)


@pytest.mark.parametrize("kind", OTHERS)
def test_types_that_others_declare_are_written_with_generate(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for state in ("_sources", "_loaded"):
        monkeypatch.setattr(FAMILIES, state, dict(getattr(FAMILIES, state)))
    family, sizes = OTHERS[kind]
    FAMILIES.register(kind, family)
    monkeypatch.delattr(DecodingLoop, "write")
    assert_texts_are_those_of_rows_alone(new_generator(kind, tokenizer="byte_level", sizes=sizes))


@pytest.mark.parametrize(("method", "options"), [("laam", {}), ("pre", {"layers": "all"}), ("none", {})])
def test_no_method_leaves_its_signal_on(method: str, options: dict[str, Any]) -> None:
    own, asked = new_generator("bart", method, **options), requests(Unit.TOKENS)
    for weight in own.model.signal_parameters():
        torch.nn.init.normal_(weight)
    own.generate_with_signal(asked)
    ids = [result.ids for result in own.generate_without_signal(asked, limit=20)]
    assert ids == base_alone(own, asked, max_new_tokens=20)


@pytest.mark.parametrize(("kind", "task"), [("bart", "SEQ_2_SEQ_LM"), ("llama", "CAUSAL_LM")])
def test_a_base_that_peft_wraps_can_write(kind: str, task: str) -> None:
    import peft

    tokenizer = TOKENIZERS[KINDS[kind]]()
    wrapped = peft.get_peft_model(
        tiny_model(kind, vocab_size=len(tokenizer)),
        peft.LoraConfig(task_type=task, target_modules=["q_proj"], init_lora_weights=False),
    )
    own = TextGenerator(
        attach(wrapped, "pre", tokenizer=tokenizer), Encoder(tokenizer, kind == "bart", "summarize", 64)
    )
    asked = requests(Unit.TOKENS)
    assert [result.ids for result in own.generate_without_signal(asked, limit=20)] == base_alone(
        own, asked, max_new_tokens=20
    )


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "inside"])
def test_adapters_may_be_switched_between_calls(wrapped: bool) -> None:
    import peft

    tokenizer = TOKENIZERS["byte_level"]()
    base, seen = tiny_model("llama", vocab_size=len(tokenizer)), set()
    settings = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    if wrapped:
        base = peft.get_peft_model(base, settings, "one")
    for name in ("two",) if wrapped else ("one", "two"):
        base.add_adapter(adapter_name=name, **{"peft_config" if wrapped else "adapter_config": settings})
    own = TextGenerator(attach(base, "pre", tokenizer=tokenizer), Encoder(tokenizer, False, "summarize", 80))
    for name in ("one", "two", "one"):
        base.set_adapter(name)
        seen.add(assert_texts_are_those_of_rows_alone(own))
    assert len(seen) == 2


@both_kinds
def test_length_and_sampling_settings_of_the_base_are_ignored(kind: str) -> None:
    own, asked = new_generator(kind), requests(Unit.TOKENS)
    before = [STRATEGIES["plain"](limit=limit).write(own, asked) for limit in (30, 2)]
    assert any(result.ended for result in before[0])
    assert not all(result.ended for result in before[1])
    lengths = {"min_length": 60, "min_new_tokens": 50, "max_length": 70, "forced_eos_token_id": EOS}
    settings = {**lengths, "do_sample": True, "temperature": 0.6}
    own.model.generation_config.update(**settings)
    assert [STRATEGIES["plain"](limit=limit).write(own, asked) for limit in (30, 2)] == before


@both_kinds
def test_settings_of_a_generator_hold_unless_a_call_overrides_them(kind: str) -> None:
    def loops(result: Result) -> bool:
        pairs = list(pairwise(result.ids))
        return len(set(pairs)) < len(pairs)

    plain, asked = new_generator(kind, ending=1), requests(Unit.TOKENS)
    own = TextGenerator(plain.model, plain.encoder, no_loops=2, max_new_tokens=60, num_beams=2)
    assert own.settings == {"no_loops": 2, "max_new_tokens": 60, "num_beams": 2}
    assert any(loops(result) for result in plain.generate_without_signal(asked, limit=60, num_beams=2))
    for write in (own.generate_with_signal, own.generate_without_signal):
        results = write(asked)
        assert not any(loops(result) for result in results)
        assert all(result.tokens_spent == 2 * (len(result.ids) + result.ended) <= 120 for result in results)
    assert all(result.tokens_spent <= 60 for result in STRATEGIES["best_of_n"](n=1).write(own, asked))


@both_kinds
def test_the_limit_stays_within_the_model_s_room(kind: str) -> None:
    own, asked = new_generator(kind), requests(Unit.TOKENS)
    own.model.base.get_output_embeddings().weight.data[EOS] = 0
    written = [len(result.ids) for result in own.generate_without_signal(asked)]
    assert written == [ROOM - (1 if own.encoder_decoder else len(ids)) for ids in own.encode_sources(asked)]
    with pytest.raises(SourceError, match="500 tokens, but this model has 400 positions"):
        own.pad([[5] * 500])


def crowded(kind: str, sizes: dict[str, Any] | None = None) -> tuple[TextGenerator, list[Request]]:
    """Return a generator whose texts never end by themselves, and requests whose prompts leave them unequal room."""
    own = new_generator(kind, tokenizer="byte_level", ending=0, sizes=sizes or {"max_position_embeddings": 150})
    texts = ["Snow.", CORPUS[0], " ".join(CORPUS)[:200], CORPUS[0]]
    return own, [Request(f"key-{row}", text, 9, Unit.TOKENS) for row, text in enumerate(texts)]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bart"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {}), ("plain", {"limit": 90}), ("prompted", {}), ("truncate", {}), ("exponential_decay", {}),
        ("exponential_decay", {"start": 9.0, "limit": 90}), ("min_max", {"beams": 2, "window": 1.0}),
        ("forced_eos", {}), ("natural", {}), ("at_most", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.1}], ids=["loop", "generate"])
def test_a_text_has_the_room_that_it_has_alone(
    kind: str, name: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    own, asked = crowded(kind)
    if name == "prompted" and own.encoder_decoder:
        pytest.skip("it follows no instructions")
    if name in ("natural", "at_most", "forced_eos"):
        asked = [replace(request, unit=Unit.WORDS) for request in asked]
    own.settings = settings
    strategy = STRATEGIES[name](**options)
    alone = [strategy.write(own, [request])[0] for request in asked]
    together = strategy.write(own, asked)
    assert [(one.ids, one.ended, one.landed) for one in together] == [(one.ids, one.ended, one.landed) for one in alone]
    assert [one.tokens_spent for one in together] == [one.tokens_spent for one in alone]


def test_eos_probabilities_are_those_of_the_model_itself() -> None:
    own, (asked,) = generator("llama"), requests(Unit.TOKENS, (6,))
    inputs = own.inputs([asked])["input_ids"]
    for name in ("natural", "plain", "forced_eos", "truncate", "min_max", "exponential_decay", *SAMPLED):
        (result,) = strategy(name).write(own, [asked])
        assert result.ids
        if name in ("natural", "endings"):
            continue  # written with the signal, so not what the base gives alone
        sequence = torch.cat([inputs, torch.tensor([result.ids])], 1)
        with torch.inference_mode():
            logs = own.model.base(sequence).logits[0, inputs.shape[1] - 1 :].log_softmax(-1)
        chances, ids = logs[:, EOS].exp(), torch.tensor(result.ids)
        known = torch.tensor(result.eos_curve)
        assert torch.allclose(known, chances[: len(known)], atol=2e-6), name
        if result.ended or name == "truncate":
            assert result.eos_probability == pytest.approx(float(chances[-1]), abs=2e-6)
        if name != "min_max":  # beams leave no trace of single tokens
            own_logs = logs[range(len(ids)), ids].tolist()
            assert result.log_probabilities == pytest.approx(own_logs, abs=2e-4), name
        else:
            assert not result.log_probabilities


def test_counting_without_a_tokenizer_is_refused_before_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    own = TextGenerator(
        attach(tiny_model("gpt2", vocab_size=len(tokenizer)), "none"), Encoder(tokenizer, False, "summarize", 80)
    )
    assert len(own.generate_without_signal(requests(Unit.TOKENS), limit=2)) == 3
    monkeypatch.setattr(own.model.base, "generate", None)
    with pytest.raises(TokenizerError, match="Counting words needs the tokenizer"):
        own.generate_without_signal(requests(Unit.WORDS))


def test_a_language_token_is_no_part_of_the_window() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]()
    base = tiny_model("bart", vocab_size=len(tokenizer))
    base.generation_config.forced_bos_token_id = 50
    own = TextGenerator(attach(base, "none", tokenizer=tokenizer), Encoder(tokenizer, True, "summarize", 80))
    for name, options, length, wish in [
        ("exponential_decay", {"factor": 1e6}, 7, 0), ("forced_eos", {}, 8, 0), ("min_max", {"window": 0.0}, 8, 50),
    ]:  # fmt: skip
        base.final_logits_bias[0, EOS] = wish
        (result,) = STRATEGIES[name](**options).write(own, requests(Unit.TOKENS, (8,)))
        assert result.ids[0] == 50
        assert result.ended
        assert result.length == len(result.ids) - 1 == length


def test_targets_are_converted_at_the_rate_of_the_source() -> None:
    own = generator("llama")
    source = "A good summary says what happened. Nobody cares why."
    request = Request("key", source, 18, Unit.WORDS)
    assert own.convert(request, Unit.WORDS) == 18
    assert own.convert(request, Unit.TOKENS) == 2 * len(own.encode(source))
    assert own.convert(request, Unit.SENTENCES) == 4
    assert own.convert(replace(request, target=1), Unit.SENTENCES) == 1


@pytest.mark.parametrize("landing", ["natural", "exact", "at_most"])
@both_kinds
def test_our_own_loop_and_generate_write_the_same(kind: str, landing: str, caplog: pytest.LogCaptureFixture) -> None:
    own, asked = new_generator(kind), requests(Unit.WORDS)
    asked = [replace(request, landing=Landing(landing)) for request in asked]
    for name in ("generate_with_signal", "generate_without_signal"):
        write = getattr(TextGenerator(own.model, own.encoder), name)  # a new generator logs its reason again
        with caplog.at_level("DEBUG", "impatience"):
            ours = write(asked)
            assert not caplog.records
            theirs = write(asked, logits_processor=[])
            assert "with generate, because of logits_processor" in caplog.text
        caplog.clear()
        assert [replace(result, eos_probability=None, eos_curve=()) for result in ours] == [
            replace(result, eos_probability=None, eos_curve=()) for result in theirs
        ]
        for mine, its in zip(ours, theirs, strict=True):
            assert mine.eos_curve == pytest.approx(its.eos_curve, abs=1e-4)
            assert len(mine.log_probabilities) == len(mine.ids) > 0
            assert mine.log_probabilities == pytest.approx(its.log_probabilities, abs=1e-3)


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_a_limit_cuts_its_own_text_in_the_loop_and_with_generate(kind: str) -> None:
    own = new_generator(kind, "pre", tokenizer="byte_level", ending=1.5)
    asked = requests(Unit.WORDS, (9, 14, 20))
    whole = own.generate_with_signal(asked)
    longest = max(range(len(asked)), key=lambda row: len(whole[row].ids))
    limit = len(whole[longest].ids) - 1
    limited = [replace(request, limit=limit if row == longest else None) for row, request in enumerate(asked)]
    several: tuple[dict[str, Any], ...] = ({}, {"logits_processor": []})
    for options in several:
        written = own.generate_with_signal(limited, **options)
        cut = written[longest]
        assert (cut.ids, cut.tokens) == (whole[longest].ids[:limit], limit)
        assert (cut.landed, cut.finished, cut.ended) == ("missed", False, False)
        assert [one.ids for row, one in enumerate(written) if row != longest] == [
            one.ids for row, one in enumerate(whole) if row != longest
        ]
    alone = own.generate_with_signal([limited[longest]])[0]
    assert (alone.ids, alone.landed, alone.tokens_spent) == (cut.ids, "missed", limit)
    roomy = own.generate_with_signal([replace(asked[longest], limit=1000)])[0]
    assert (roomy.ids, roomy.landed) == (whole[longest].ids, whole[longest].landed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "unit"),
    [
        *product(["llama", "gpt2", "bart", "marian", "t5"], ["pre"], list(Unit)),
        *product(["llama", "bart"], ["glide", "rpe", "lrpe", "none"], [Unit.WORDS]),
        ("bart", "laam", Unit.WORDS),
    ],
)
def test_a_prefix_is_continued_the_same_in_the_loop_with_generate_and_alone(kind: str, method: str, unit: Unit) -> None:
    own = new_generator(kind, method, tokenizer="byte_level", ending=1.5)
    asked = requests(unit, (1, 2, 2) if unit is Unit.SENTENCES else (9, 14, 20))
    own.settings = {"no_loops": 3}
    whole = own.generate_with_signal(asked)
    asked = [
        replace(asked[0], prefix=whole[0].ids[:7]),
        replace(asked[1], draw=1),
        replace(asked[2], prefix=whole[2].ids[:11], draw=2),
    ]
    looped = own.generate_with_signal(asked)
    assert (looped[0].ids, looped[0].landed) == (whole[0].ids, whole[0].landed), "it goes on as it did"
    assert looped[0].tokens_spent == whole[0].tokens_spent - len(asked[0].prefix)
    assert looped[1].ids != whole[1].ids
    alone = [own.generate_with_signal([request])[0] for request in asked]
    own.can_use_loop = lambda *args: False  # type: ignore[method-assign]
    for others in (own.generate_with_signal(asked), alone):
        for result, other in zip(looped, others, strict=True):
            chance = other.eos_probability and pytest.approx(other.eos_probability, abs=1e-4)
            assert replace(result, eos_curve=(), eos_probability=chance) == replace(other, eos_curve=())
            assert result.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-3)
    for result, request in zip(looped, asked, strict=True):
        assert not any(result.log_probabilities[: len(request.prefix)])
        assert all(result.log_probabilities[len(request.prefix) :])


def test_max_new_tokens_does_not_count_the_prefix() -> None:
    own, asked = new_generator("llama", ending=0), requests(Unit.WORDS, (9, 14))
    asked[0] = replace(asked[0], prefix=(5, 6, 7))
    for _ in range(2):
        assert [len(result.ids) for result in own.generate_with_signal(asked, max_new_tokens=20)] == [23, 20]
        own.can_use_loop = lambda *args: False  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_beams_are_searched_only_for_texts_that_are_not_drawn(kind: str) -> None:
    own, asked = new_generator(kind), requests(Unit.TOKENS, (9, 14, 20))
    own.settings = {"num_beams": 3}
    asked[1:] = replace(asked[1], draw=1), replace(asked[2], prefix=(5, 6, 7), draw=2)
    alone = [own.generate_with_signal([request])[0] for request in asked]
    assert own.generate_with_signal(asked) == alone
    own.settings = {}
    assert own.generate_with_signal(asked)[1:] == own.generate_with_signal(asked, num_beams=3)[1:]
    drawn = [own.generate_with_signal(asked[1:], do_sample=True) for _ in range(2)]
    assert drawn[0] == drawn[1], "what is drawn is not drawn again"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("looped", [True, False])
def test_there_is_room_for_another_ending_where_a_text_filled_the_model(
    kind: str, looped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asked = new_generator(kind, ending=0), requests(Unit.TOKENS, (220, 240))
    monkeypatch.setattr(TextGenerator, "can_use_loop", lambda *args: looped)
    for first in own.generate_with_signal(asked, max_new_tokens=300):
        request = replace(asked[0], target=300, unit=Unit.SENTENCES)
        endings = ending_requests(request, replace(first, length=0), 3, own.vocabulary)
        assert max(len(ending.prefix) for ending in endings) <= len(first.ids) - 12
        drawn = [replace(asked[0], prefix=ending.prefix, draw=ending.draw) for ending in endings]
        results = own.generate_with_signal(drawn)
        assert all(result.tokens_spent >= 12 or result.ended for result in results)


def test_a_batch_has_one_landing() -> None:
    first, second = requests(Unit.WORDS, (9, 14))
    with pytest.raises(OptionError, match="one landing; got exact, natural"):
        generator("llama").generate_with_signal([first, replace(second, landing=Landing.EXACT)])
