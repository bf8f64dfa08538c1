"""The decoding loop writes what ``generate`` writes one at a time, whatever else is in the batch."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import peft
import pytest
import torch

from impatience import attach
from impatience.decoding import loop, step
from impatience.decoding.base import TokenRequest
from impatience.decoding.loop import DecodingLoop, unsupported
from impatience.decoding.prefill import PrefillQueue
from impatience.decoding.step import BatchShape, DecodingSettings, DecodingStep
from impatience.errors import OptionError
from impatience.lengths import Landing, Target, Unit
from impatience.steps.budget import step_budget
from support.toys import DEVICE, EOS, TOKENIZERS, tiny_model

SOURCES = (1, 5, 17, 3, 30, 2, 40)


TARGETS = (3, 20, 8, 1, 15, 33, 6)


KINDS = ("llama", "gpt2", "gpt_neox", "t5", "marian", "bart")


def model_of(kind: str, method: str = "pre", tokenizer: str = "byte_level", **options: Any) -> Any:
    words = TOKENIZERS[tokenizer]()
    base = tiny_model(kind, vocab_size=len(words), seed=3, max_position_embeddings=400)
    with torch.no_grad():
        base.get_output_embeddings().weight[EOS] *= 2  # random weights hardly ever end by themselves
    model = attach(base, method, tokenizer=words, **options)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.taught = True
    return model.to(DEVICE)


def requests_for(model: Any, unit: Unit, landing: Landing, targets: tuple[int, ...]) -> list[TokenRequest]:
    draw = torch.Generator().manual_seed(1)
    requests = []
    for source, target in zip(SOURCES, targets, strict=False):
        ids = torch.randint(4, model.config.vocab_size, (source,), generator=draw).tolist()
        room = model.family.room(model.base)
        room = None if room is None else room - (1 if model.family.encoder_decoder else source)
        requests.append(TokenRequest(ids, target, step_budget(Target(unit, (target,)), landing, room)))
    return requests


def alone(model: Any, request: TokenRequest, settings: DecodingSettings) -> tuple[list[int], Any]:
    ids = torch.tensor([request.ids], device=DEVICE)
    given: dict[str, Any] = {f"target_{settings.unit}": request.target, "attention_mask": torch.ones_like(ids)}
    out, (report,) = model.generate(
        ids, **given, landing=settings.landing, no_loops=settings.no_loops, do_sample=False, return_report=True
    )
    written = out[0, 1 if model.family.encoder_decoder else len(request.ids) :].tolist()
    stop = next((column for column, i in enumerate(written) if i in (EOS, *settings.eos)), None)
    return written[:stop], report


def check(
    model: Any,
    settings: DecodingSettings,
    rows: int = 3,
    decoder: DecodingLoop | None = None,
    targets: tuple[int, ...] = TARGETS,
) -> None:
    requests = requests_for(model, settings.unit, settings.landing, targets)
    found = (decoder or DecodingLoop(model)).write(requests, settings, rows)
    assert len({written.ids for written in found}) > 2
    for request, written in zip(requests, found, strict=True):
        ids, report = alone(model, request, settings)
        assert list(written.ids[: written.kept]) == ids
        assert written.report.eos_probability == pytest.approx(report.eos_probability, abs=1e-4)
        assert replace(written.report, eos_probability=0.0) == replace(report, eos_probability=0.0)
        assert len(written.eos_curve) == len(written.ids)


@pytest.fixture(autouse=True)
def short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is read in small steps, so that it grows and is slid over what has ended."""
    monkeypatch.setattr(step, "STRIDE", 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS])
def test_texts_are_those_of_generate(kind: str, unit: Unit) -> None:
    check(model_of(kind), DecodingSettings(unit, Landing.NATURAL, (EOS,)))


@pytest.mark.slow
@pytest.mark.parametrize("landing", [Landing.EXACT, Landing.AT_MOST])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize(("kind", "tokenizer"), [("llama", "sentencepiece"), ("t5", "byte_level")])
def test_exact_and_at_most_texts_are_those_of_generate(kind: str, tokenizer: str, unit: Unit, landing: Landing) -> None:
    targets = (1, 2, 1, 3) if unit is Unit.SENTENCES else TARGETS  # nothing is as slow as a splitter at every step
    check(model_of(kind, tokenizer=tokenizer), DecodingSettings(unit, landing, (EOS,)), targets=targets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "options"),
    [
        ("llama", "rpe", {}),
        ("llama", "none", {}),
        ("llama", "pre", {"layers": "all", "rank": 4}),
        ("t5", "lrpe", {}),
        ("bart", "laam", {}),
        ("marian", "pre", {"layers": (1,)}),
    ],
)
def test_every_method_steers_as_in_generate(kind: str, method: str, options: dict[str, Any]) -> None:
    check(model_of(kind, method, **options), DecodingSettings(Unit.WORDS, Landing.NATURAL, (EOS,)))


@pytest.mark.parametrize("kind", ["llama", "marian"])
@pytest.mark.parametrize("landing", list(Landing))
def test_texts_without_repeats_are_those_of_generate(kind: str, landing: Landing) -> None:
    check(model_of(kind), DecodingSettings(Unit.TOKENS, landing, (EOS,), no_loops=3))


@pytest.mark.parametrize("landing", list(Landing))
def test_several_ids_may_end_a_text(landing: Landing) -> None:
    model, ends = model_of("t5"), (EOS, 21, 589)  # ids that this model likes
    model.generation_config.eos_token_id = list(ends)
    settings = DecodingSettings(Unit.TOKENS, landing, ends)
    check(model, settings)
    if landing is Landing.NATURAL:
        found = DecodingLoop(model).write(requests_for(model, settings.unit, landing, TARGETS), settings, 3)
        assert {written.ids[-1] for written in found} >= set(ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_results_do_not_depend_on_rows_or_earlier_calls(kind: str) -> None:
    model = model_of(kind)
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    for rows in (1, 7, 2, 2, 100):
        check(model, settings, rows, decoder)
    check(model, DecodingSettings(Unit.WORDS, Landing.NATURAL, (EOS,)), 2, decoder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), [("llama", "pre"), ("t5", "lrpe"), ("bart", "laam")])
def test_idle_rows_do_not_change_later_texts(kind: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodingLoop, "records", True)
    model = model_of(kind, method)
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    for rows in (7, 2, 7):
        check(model, settings, rows, decoder)
    assert [batch.shape.rows for batch in decoder.steps] == [7]


def test_rows_are_filled_again_and_the_cache_slides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECK_EVERY", 1)  # a GPU looks later, and takes some steps more
    model, steps, slides = model_of("llama"), [], []
    step, slide = DecodingStep.step, DecodingStep.slide
    monkeypatch.setattr(DecodingStep, "step", lambda self, column: (steps.append(column), step(self, column)))
    monkeypatch.setattr(DecodingStep, "slide", lambda self, by, column: (slides.append(by), slide(self, by, column)))
    budgets = [40, 30, 20, 10, 10, 10] * 3
    requests = [TokenRequest([5, 6, 7], budget, budget) for budget in budgets]
    found = DecodingLoop(model).write(requests, DecodingSettings(Unit.TOKENS, Landing.NATURAL, ()), 2)
    assert [len(written.ids) for written in found] == budgets
    assert len(steps) <= sum(budgets) / 2 + 10
    assert slides
    assert max(steps) < 80


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_prompt_of_several_texts_is_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = model_of(kind), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    apart = requests_for(model, Unit.TOKENS, Landing.NATURAL, TARGETS)[:4]
    requests = [replace(request, target=target, budget=40) for target in (20, 17, 14) for request in apart]
    read, passes = PrefillQueue.read, []

    def note(self: Any, rows: Any) -> Any:
        passes.append(len(rows))
        return read(self, rows)

    monkeypatch.setattr(PrefillQueue, "read", note)
    found = DecodingLoop(model).write(requests, settings, 4)
    assert passes == [4]
    assert [one.ids for one in found] == [
        DecodingLoop(model).write([request], settings, 1)[0].ids for request in requests
    ]
    assert len({one.ids for one in found}) > 4


def test_a_listener_receives_tokens_and_can_cancel() -> None:
    class Reader:
        def __init__(self) -> None:
            self.seen: dict[int, list[int]] = {}

        def put(self, position: int, token: int) -> None:
            self.seen.setdefault(position, []).append(token)

        def cancelled(self, position: int) -> bool:
            return position == 1 and len(self.seen[position]) == 4

    reader, requests = Reader(), [TokenRequest([5, 6, 7 + n], 9, 9 + n) for n in range(5)]
    found = DecodingLoop(model_of("llama")).write(
        requests, DecodingSettings(Unit.TOKENS, Landing.NATURAL, ()), 2, reader
    )
    assert [len(written.ids) for written in found] == [9, 4, 11, 12, 13]
    assert [tuple(reader.seen[position]) for position in range(5)] == [written.ids for written in found]


def test_steps_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodingLoop, "records", True)
    decoder, few = DecodingLoop(model_of("llama")), [TokenRequest([5, 6], 4, 4)] * 2
    natural = DecodingSettings(Unit.TOKENS, Landing.NATURAL, ())
    decoder.write(few, natural, 2)
    (first,) = decoder.steps
    decoder.write(few[:1] + few[:1] * 3, natural, 2)
    assert decoder.steps == [first]
    decoder.write(few * 5, natural, 10)
    decoder.write(few, natural, 2)
    assert decoder.steps[-1] is first, "few texts and many may take turns"
    decoder.write([TokenRequest([5, 6], 400, 400)] * 2, natural, 2)
    assert first not in decoder.steps, "what another has room for is not kept"
    for size in range(2, 7):
        decoder.write(few, replace(natural, no_loops=size), 2)
    assert [batch.settings.no_loops for batch in decoder.steps] == [4, 5, 6]
    monkeypatch.setattr(DecodingLoop, "records", False)
    decoder.write(few, natural, 2)
    assert [batch.settings for batch in decoder.steps] == [natural]
    small, large = BatchShape(2, 64, 64, 0), BatchShape(8, 64, 64, 0)
    assert large.holds(small, 4)
    assert not large.holds(small, 1)
    assert not small.holds(large, 4)
    assert not large.holds(replace(small, steps=65), 4)


def test_a_detached_model_writes_without_the_signal() -> None:
    model = model_of("llama")
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    requests = requests_for(model, Unit.TOKENS, Landing.NATURAL, TARGETS)
    steered = [written.ids for written in decoder.write(requests, settings, 3)]
    unsteered = [written.ids for written in decoder.write(requests, replace(settings, signal=False), 3)]
    model.detach()
    assert [written.ids for written in decoder.write(requests, settings, 3)] == unsteered != steered


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_a_failure_leaves_the_model_as_it_was(kind: str) -> None:
    model, seen = model_of(kind), []
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    requests = requests_for(model, Unit.TOKENS, Landing.NATURAL, TARGETS)
    source = dict.fromkeys(("input_ids", "labels"), torch.tensor([[5, 6, 7]], device=DEVICE))
    unsteered = model.base(**source).logits
    expected, first = alone(model, requests[0], settings), decoder.write(requests, settings, 3)
    table = model.family.decoder_of(model.base).get_submodule(model.family.positions or "norm")

    def fail(*args: Any) -> None:
        seen.append(unsupported(model, {}))
        raise RuntimeError("no memory")

    handle = model.base.get_output_embeddings().register_forward_hook(fail)
    failing = DecodingLoop(model)  # a step that was recorded does not ask the model any more
    with pytest.raises(RuntimeError, match="no memory"):
        failing.write(requests, settings, 3)
    handle.remove()
    assert seen == [None], "another thread may ask in between"
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model.base(**source).logits, unsteered)
    assert len(table._forward_hooks) == 0
    assert alone(model, requests[0], settings) == expected
    assert decoder.write(requests, settings, 3) == failing.write(requests, settings, 3) == first


def test_a_model_that_was_moved_gets_a_new_step() -> None:
    model = model_of("llama")
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    requests = requests_for(model, Unit.TOKENS, Landing.NATURAL, TARGETS)
    before = decoder.write(requests, settings, 3)
    before_it = list(decoder.steps)
    model.to(torch.float64)
    assert [one.ids for one in decoder.write(requests, settings, 3)] == [one.ids for one in before]
    assert len(decoder.steps) == 1
    assert decoder.steps != before_it


def test_a_signal_of_another_strength_gets_a_new_step() -> None:
    model = model_of("llama", layers="all")
    decoder, settings = DecodingLoop(model), DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,))
    requests = requests_for(model, Unit.TOKENS, Landing.NATURAL, TARGETS)
    seen = []
    for change in (lambda: None, lambda: model.scale_signal(0.5), lambda: model.steering.projections.double()):
        change()
        decoder.write(requests, settings, 3)
        seen.append(decoder.steps[-1])
    assert len(set(map(id, seen))) == 3, "what is recorded has the strength and the projections in it"


def test_no_requests_give_no_results() -> None:
    assert DecodingLoop(model_of("llama")).write([], DecodingSettings(Unit.TOKENS, Landing.NATURAL, (EOS,)), 4) == []


@pytest.mark.parametrize(
    ("kind", "config", "options", "reason"),
    [
        ("llama", {}, {}, None),
        ("t5", {}, {"do_sample": False, "max_new_tokens": 9}, None),
        ("mistral", {}, {}, "window"),
        ("llama", {}, {"do_sample": True}, "draws"),
        ("llama", {}, {"num_beams": 2}, "searches"),
        ("llama", {}, {"min_new_tokens": 5, "eos_token_id": 7, "max_length": 9}, "eos_token_id, max_length, min_new"),
        ("llama", {}, {"repetition_penalty": 1.2, "streamer": object()}, "repetition_penalty, streamer"),
    ],
)
def test_unsupported_options_give_a_reason(kind: str, config: Any, options: dict[str, Any], reason: Any) -> None:
    found = unsupported(model_of(kind, **config), options)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("mistral", {"sliding_window": None}, None),
        ("gpt2", {"alibi": True}, "ALiBi"),
        ("falcon", {}, "falcon"),
        ("smollm3", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("gemma2", {}, "no family declares that the loop can run gemma2"),
        ("llava", {}, "llava"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_unsupported_layers_give_a_reason(kind: str, sizes: dict[str, Any], reason: str | None) -> None:
    found = unsupported(attach(tiny_model(kind, **sizes), "pre"), {})
    assert found is None if reason is None else reason in str(found)


def test_adapters_in_the_model_give_a_reason_until_they_are_merged() -> None:
    settings = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "init_lora_weights": False}
    base = tiny_model("llama")
    base.add_adapter(peft.LoraConfig(**settings))
    assert "adapter" in str(unsupported(attach(base, "pre"), {}))
    wrapped = peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(**settings))
    assert "adapter" in str(unsupported(attach(wrapped, "pre"), {}))
    assert unsupported(attach(wrapped.merge_and_unload(), "pre"), {}) is None


def test_unsupported_settings_of_the_model_give_a_reason() -> None:
    model = model_of("bart")
    model.generation_config.no_repeat_ngram_size = 3
    assert unsupported(model, {}) == "of no_repeat_ngram_size"
    assert "conventions" in str(unsupported(model_of("bart", conventions="authors"), {}))


def test_the_base_is_not_copied_with_what_the_loop_changed() -> None:
    model, copies = model_of("llama"), []
    attention = model.base.config._attn_implementation
    with ThreadPoolExecutor(1) as pool:
        with step.prepared_model(model):
            assert model.base.config._attn_implementation != attention
            copies.append(pool.submit(copy.deepcopy, model.base))
            with pytest.raises(OptionError, match="cannot be copied now"):
                copy.deepcopy(model.base)
        assert copies[0].result().config._attn_implementation == attention


def test_the_base_in_another_thread_reads_no_padding_while_texts_are_written() -> None:
    model = model_of("llama")
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    ids = torch.tensor([[0, 0, 0, 30, 40], [9, 8, 20, 30, 40]], device=DEVICE)
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}

    @torch.no_grad()
    def logits() -> torch.Tensor:
        return model.base(**batch).logits

    before, own = logits(), model.base.generate(**batch, max_new_tokens=4)
    with ThreadPoolExecutor(1) as pool, step.prepared_model(model):
        torch.testing.assert_close(pool.submit(logits).result(), before)
        assert torch.equal(pool.submit(model.base.generate, **batch, max_new_tokens=4).result(), own)
