"""What writes for every strategy: with the signal, without it, and what is known of the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from impatience import attach
from impatience.data import Encoder, EvalRequest, Example
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.errors import SourceError, TokenizerError
from impatience.lengths import Unit
from impatience.strategies import STRATEGIES
from support.generators import KINDS, ROOM, SAMPLED, base_alone, generator, new_pen, requests, strategy
from support.toys import EOS, TOKENIZERS, tiny_model

both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("kind", ["bart", "marian", "t5", "llama", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_unsteered_is_the_base_model_alone(kind: str, options: dict[str, Any]) -> None:
    own, asked = new_pen(kind, tokenizer="byte_level", ending=2, strength=5), requests(Unit.TOKENS)
    steered = own.steered(asked, max_new_tokens=20, **options)
    drafts = own.unsteered(asked, limit=20, **options)
    assert [draft.ids for draft in drafts] != [draft.ids for draft in steered]
    assert [draft.ids for draft in drafts] == base_alone(own, asked, max_new_tokens=20, **options)


@pytest.mark.parametrize(("method", "options"), [("laam", {}), ("pre", {"layers": "all"}), ("none", {})])
def test_no_way_of_steering_is_left_on(method: str, options: dict[str, Any]) -> None:
    own, asked = new_pen("bart", method, **options), requests(Unit.TOKENS)
    for weight in own.model.signal_parameters():
        torch.nn.init.normal_(weight)
    own.steered(asked)
    ids = [draft.ids for draft in own.unsteered(asked, limit=20)]
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
    assert [draft.ids for draft in own.unsteered(asked, limit=20)] == base_alone(own, asked, max_new_tokens=20)


@both_kinds
def test_the_base_s_own_lengths_and_chances_are_left_aside(kind: str) -> None:
    own, asked = new_pen(kind), requests(Unit.TOKENS)
    before = [STRATEGIES["plain"](limit=limit).write(own, asked) for limit in (30, 2)]
    assert any(draft.ended for draft in before[0])
    assert not all(draft.ended for draft in before[1])
    lengths = {"min_length": 60, "min_new_tokens": 50, "max_length": 70, "forced_eos_token_id": EOS}
    settings = {**lengths, "do_sample": True, "temperature": 0.6}
    own.model.generation_config.update(**settings)
    assert [STRATEGIES["plain"](limit=limit).write(own, asked) for limit in (30, 2)] == before


@both_kinds
def test_a_pen_has_settings_that_strategies_may_overrule(kind: str) -> None:
    def loops(draft: Draft) -> bool:
        pairs = list(pairwise(draft.ids))
        return len(set(pairs)) < len(pairs)

    plain, asked = new_pen(kind, ending=1), requests(Unit.TOKENS)
    own = TextGenerator(plain.model, plain.encoder, no_loops=2, max_new_tokens=60, num_beams=2)
    assert own.settings == {"no_loops": 2, "max_new_tokens": 60, "num_beams": 2}
    assert any(loops(draft) for draft in plain.unsteered(asked, limit=60, num_beams=2))
    for write in (own.steered, own.unsteered):
        drafts = write(asked)
        assert not any(loops(draft) for draft in drafts)
        assert all(draft.tokens_spent == 2 * (len(draft.ids) + draft.ended) <= 120 for draft in drafts)
    assert all(draft.tokens_spent <= 60 for draft in STRATEGIES["best_of_n"](n=1).write(own, asked))


@both_kinds
def test_the_limit_stays_within_the_model_s_room(kind: str) -> None:
    own, asked = new_pen(kind), requests(Unit.TOKENS)
    own.model.base_model.get_output_embeddings().weight.data[EOS] = 0
    longest = max(len(draft.ids) for draft in own.unsteered(asked))
    assert longest == ROOM - own.first(own.inputs(asked))
    with pytest.raises(SourceError, match="500 tokens, but this model has 400 positions"):
        own.pad([[5] * 500])


def test_p_eos_is_the_model_s_own() -> None:
    own, (asked,) = generator("llama"), requests(Unit.TOKENS, (6,))
    inputs = own.inputs([asked])["input_ids"]
    for name in ("natural", "plain", "forced_eos", "truncate", "min_max", "exponential_decay", *SAMPLED):
        (draft,) = strategy(name).write(own, [asked])
        assert draft.ids
        if name in ("natural", "endings"):
            continue  # written with the signal, so not what the base gives alone
        sequence = torch.cat([inputs, torch.tensor([draft.ids])], 1)
        with torch.inference_mode():
            chances = own.model.base_model(sequence).logits.softmax(-1)[0, inputs.shape[1] - 1 :, EOS]
        known = torch.tensor(draft.eos_curve)
        assert torch.allclose(known, chances[: len(known)], atol=2e-6), name
        if draft.ended or name == "truncate":
            assert draft.eos_probability == pytest.approx(float(chances[-1]), abs=2e-6)


def test_a_pen_that_cannot_count_says_so_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    own = TextGenerator(
        attach(tiny_model("gpt2", vocab_size=len(tokenizer)), "none"), Encoder(tokenizer, False, "summarize", 80)
    )
    assert len(own.unsteered(requests(Unit.TOKENS), limit=2)) == 3
    monkeypatch.setattr(own.model.base_model, "generate", None)
    with pytest.raises(TokenizerError, match="Counting words needs the tokenizer"):
        own.unsteered(requests(Unit.WORDS))


def test_a_language_token_is_no_part_of_the_window() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]()
    base = tiny_model("bart", vocab_size=len(tokenizer))
    base.generation_config.forced_bos_token_id = 50
    own = TextGenerator(attach(base, "none", tokenizer=tokenizer), Encoder(tokenizer, True, "summarize", 80))
    for name, options, length, wish in [
        ("exponential_decay", {"factor": 1e6}, 7, 0), ("forced_eos", {}, 8, 0), ("min_max", {"window": 0.0}, 8, 50),
    ]:  # fmt: skip
        base.final_logits_bias[0, EOS] = wish
        (draft,) = STRATEGIES[name](**options).write(own, requests(Unit.TOKENS, (8,)))
        assert draft.ids[0] == 50
        assert draft.ended
        assert draft.length == len(draft.ids) - 1 == length


def test_targets_are_converted_at_the_rate_of_the_source() -> None:
    own = generator("llama")
    source = "A good summary says what happened. Nobody cares why."
    request = EvalRequest("key", Example("id", source, "unseen"), 18, Unit.WORDS)
    assert own.convert(request, Unit.WORDS) == 18
    assert own.convert(request, Unit.TOKENS) == 2 * len(own.encode(source))
    assert own.convert(request, Unit.SENTENCES) == 4
    assert own.convert(replace(request, target=1), Unit.SENTENCES) == 1


@pytest.mark.parametrize("landing", ["natural", "exact", "at_most"])
@both_kinds
def test_our_own_loop_and_generate_write_the_same(kind: str, landing: str, caplog: pytest.LogCaptureFixture) -> None:
    own, asked = new_pen(kind), requests(Unit.WORDS)
    for write in (own.steered, own.unsteered):
        with caplog.at_level("DEBUG", "impatience"):
            ours = write(asked, landing)
            assert not caplog.records
            theirs = write(asked, landing, logits_processor=[])
            assert "with generate, because of logits_processor" in caplog.text
        caplog.clear()
        own._told.clear()
        assert [replace(draft, eos_probability=None, eos_curve=()) for draft in ours] == [
            replace(draft, eos_probability=None, eos_curve=()) for draft in theirs
        ]
        for mine, its in zip(ours, theirs, strict=True):
            assert mine.eos_curve == pytest.approx(its.eos_curve, abs=1e-4)
