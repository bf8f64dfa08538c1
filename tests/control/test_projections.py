"""Projections that are precomputed: the same steps as without, and a model that is left as it was."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from transformers import CompileConfig

from control.test_contract import (
    ONE_A_FAMILY,
    STEERING,
    WIDTH,
    assert_close,
    batch,
    family_of,
    model_of,
    randomize_projections,
    teacher_forced,
)
from impatience import attach
from impatience.control.generation import GenerateSteering
from impatience.control.projections import SIGNALS, PrecomputedProjections
from impatience.control.targets import BatchTargets
from impatience.errors import OptionError
from impatience.lengths import Unit
from support import toys

TARGET = 11
ENDLESS = {"max_new_tokens": TARGET, "suppress_tokens": [toys.EOS], "do_sample": False}
DEPTH = next(name for name in toys.SMALL if "layers" in name)


def deep_model(kind: str) -> Any:
    """Return a model of four layers whose biases are not zero."""
    with patch.dict(toys.SMALL, {DEPTH: 4}):
        model = toys.tiny_model(kind)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(len(name)))
    return model.to(toys.DEVICE)


def controlled(kind: str, layers: Any = "all") -> Any:
    """Return such a model with projections that are not zero."""
    return randomize_projections(attach(deep_model(kind), "glide", layers=layers))


def directly() -> Any:
    """Project the signal at each step instead of looking it up."""
    return patch("impatience.control.generation.ROWS", 0)


def hooks(model: Any) -> list[int]:
    """Return the number of hooks on each layer."""
    return [len(layer._forward_pre_hooks) for layer in model.family.layers_of(model.base)]


def write(model: Any, rows: int = 1, **options: Any) -> Any:
    return model.generate(**batch(rows), **{"target_tokens": TARGET, **ENDLESS, **options})


@pytest.mark.parametrize("kind", ONE_A_FAMILY)
@pytest.mark.parametrize("layers", ["all", [1, 3], [3, 1], [2, 0], [0]])
def test_precomputed_steps_equal_one_forward_pass_and_leave_the_model_as_it_was(kind: str, layers: Any) -> None:
    model, source = controlled(kind, layers), batch(1)
    on, before = hooks(model), {name: weight.clone() for name, weight in model.state_dict().items()}
    out = write(model, output_logits=True, return_dict_in_generate=True)
    forced = teacher_forced(model, family_of(kind), source, out.sequences, TARGET)
    assert_close(torch.stack(out.logits, 1), forced[:, :TARGET])
    assert hooks(model) == on
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize(
    ("rows", "most", "options"),  # most: of 40 steps, those at which anything is projected
    [
        (1, 2, {"target_tokens": 30}),
        (1, 2, {"target_words": 12}),
        (1, 2, {"target_characters": 90}),
        (1, 2, {"target_characters": 900}),
        (2, 3, {"target_characters": [600, 300]}),
        (2, 2, {"target_tokens": [25, 40], "prompt_lengths": [2, 3]}),
        (2, 2, {"target_sentences": [3, 2]}),
        (2, 3, {"target_tokens": [25, 40], "num_beams": 3}),
        (2, 20, {"target_characters": [600, 300], "num_beams": 3}),
    ],
)
@pytest.mark.parametrize("layers", ["all", [0], [1]])
@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_precomputed_texts_equal_direct_ones_and_project_seldom(
    kind: str, layers: Any, rows: int, most: int, options: dict[str, Any]
) -> None:
    tokenizer, calls = toys.byte_level_tokenizer(), []
    model = randomize_projections(
        attach(model_of(kind, vocab_size=len(tokenizer)), "glide", tokenizer=tokenizer, layers=layers)
    )
    for projection in model.steering.projections.values():
        projection.register_forward_hook(lambda *given: calls.append(given))
    endless = {"suppress_tokens": [toys.EOS], "max_new_tokens": 40, "do_sample": False}
    source = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]][:rows], device=toys.DEVICE)
    precomputed = model.generate(source, **endless, **options)
    few = len(calls)
    with directly():
        direct = model.generate(source, **endless, **options)
    assert torch.equal(precomputed, direct)
    assert len(calls) - few == 40 * len(model.steering.projections)
    assert few <= most * len(model.steering.projections)


@pytest.mark.parametrize(
    ("counts", "targets", "expected"),
    [([3.0, 1.0], [5, 4], [[3, 4, 5, 6], [1, 2, 3, 4]]), ([0.0], [1000], [list(range(SIGNALS))])],
)
def test_nothing_is_precomputed_beyond_the_last_target(
    counts: list[float], targets: list[int], expected: list[list[int]]
) -> None:
    asked = []

    def signal(counts: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        asked.append((counts.tolist(), targets.tolist()))
        return counts[..., None].expand(-1, -1, 8)

    projections = [nn.Linear(8, 8, bias=False)] * 3
    precomputed = PrecomputedProjections(signal, projections, torch.bfloat16)
    first = precomputed.lookup(counts, targets)
    assert (first.shape, first.dtype) == ((3, len(counts), 1, 8), torch.bfloat16)
    assert asked == [(expected, [[target] for target in targets])]


def test_rows_that_advance_apart_are_looked_up_row_by_row() -> None:
    projections = [nn.Linear(4, 4, bias=False) for _ in range(3)]

    def signal(counts: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (counts / targets)[..., None].expand(-1, -1, 4)

    precomputed = PrecomputedProjections(signal, projections, torch.float32)
    for counts, targets in (([0.0, 0.0], [9, 7]), ([4.0, 2.0], [9, 7]), ([1.0, 2.0], [9, 7]), ([3.0], [9])):
        expected = signal(torch.tensor(counts)[:, None], torch.tensor(targets)[:, None])
        projected = torch.stack([projection(expected) for projection in projections])
        assert torch.allclose(precomputed.lookup(counts, targets), projected, atol=1e-6)


def test_steps_of_one_and_of_several_columns_follow_each_other() -> None:
    model = controlled("llama")
    assert torch.equal(write(model, prompt_lookup_num_tokens=3), write(model))


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize(
    ("rows", "columns", "grad", "cast"),
    [(1, 1, False, False), (1, 3, False, False), (2, 1, False, False), (1, 1, True, False), (1, 1, False, True)],
)
def test_the_decoder_may_run_in_between(kind: str, rows: int, columns: int, grad: bool, cast: bool) -> None:
    model, twice = controlled(kind), []
    expected = write(model)
    reader, step = model.family.decoder_of(model.base), count()

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if next(step) == 3:
            with torch.set_grad_enabled(grad), torch.autocast(toys.DEVICE, torch.bfloat16, enabled=cast):
                some = ids[:, -columns:].expand(rows, -1)
                twice.extend(reader(some, use_cache=False).last_hidden_state for _ in range(2))
        return scores

    assert torch.equal(write(model, logits_processor=[look]), expected)
    assert torch.equal(*twice)


def _cast_around(model: Any) -> Any:
    return torch.autocast(toys.DEVICE, torch.bfloat16)


def _cast_within(model: Any) -> Any:
    """Do as accelerate does."""
    base = model.base
    base.forward = torch.autocast(toys.DEVICE, torch.bfloat16)(base.forward)
    return nullcontext()


@pytest.mark.parametrize("kind", ["llama", "t5", "bart"])
@pytest.mark.parametrize("cast", [_cast_around, _cast_within])
def test_a_model_that_runs_in_another_dtype_gets_the_signal(kind: str, cast: Any) -> None:
    logits = []
    for way in (nullcontext, directly):
        model = controlled(kind)
        with way(), cast(model):
            logits.append(write(model, output_logits=True, return_dict_in_generate=True, max_new_tokens=4).logits[-1])
    torch.testing.assert_close(*logits, atol=0.05, rtol=0.05)


def test_states_in_another_dtype_than_the_weights_get_the_signal() -> None:
    texts = []
    for way in (nullcontext, directly):
        model = controlled("t5").bfloat16()
        model.base.decoder.embed_tokens.register_forward_hook(lambda *given: given[2].float())
        with way():
            texts.append(write(model).tolist())
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch resets itself by it on a GPU
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_a_compiled_step_is_compiled_as_a_whole_and_once_for_all_texts(kind: str) -> None:
    model, graphs, steps = controlled(kind), [], []
    targets = (11, 7, 13, 9)
    texts = [write(model, target_tokens=target).tolist() for target in targets]

    def compiled(graph: Any, given: Any) -> Any:
        del given
        graphs.append(graph)

        def step(*given: Any) -> Any:
            steps.append(len(graphs))
            return graph.forward(*given)

        return step

    whole = CompileConfig(backend=compiled, fullgraph=True, mode=None)
    whole._compile_all_devices = True
    options = {"cache_implementation": "static", "compile_config": whole}
    torch.compiler.reset()
    try:
        for target, text in zip(targets, texts, strict=True):
            assert write(model, target_tokens=target, **options).tolist() == text
    finally:
        torch.compiler.reset()
    assert steps == [1] * len(targets) * (TARGET - 1)


@pytest.mark.parametrize("method", ["pre", "glide"])
def test_a_prompt_gets_no_signal_before_its_last_token(method: str) -> None:
    model, widths = randomize_projections(attach(deep_model("llama"), method)), []
    embedding = model.method.embedding

    def watched(progress: torch.Tensor, *given: Any) -> torch.Tensor:
        widths.append(progress.shape[1])
        return embedding(progress, *given)

    with patch.object(type(model.method), "embedding", lambda _, *given: watched(*given)):
        for prompt, columns in ((WIDTH, 1), (WIDTH - 2, 3)):  # from its last token on
            widths.clear()
            write(model, rows=2, prompt_lengths=prompt)
            assert widths[0] == columns


def test_a_pass_over_fewer_columns_gets_the_last_of_the_signal() -> None:
    model = controlled("llama")
    decoder, widths = model.base.model, []
    decoder.layers[-1].register_forward_hook(lambda *given: widths.append(given[2].shape[1]))
    write(model, prompt_lengths=WIDTH - 2, guidance_scale=1.5)
    assert widths == [WIDTH] + [1] * (2 * TARGET - 1)


@pytest.mark.parametrize("kind", ["llama", "t5", "bart"])
@pytest.mark.parametrize("layers", ["all", [0, 2]])
def test_hidden_states_are_the_same_precomputed_and_direct(kind: str, layers: Any) -> None:
    texts = []
    for way in (nullcontext, directly):
        with way():
            texts.append(write(controlled(kind, layers), output_hidden_states=True, return_dict_in_generate=True))
    name = "hidden_states" if kind == "llama" else "decoder_hidden_states"
    for step, expected in zip(*(text[name] for text in texts), strict=True):
        for hidden, other in zip(step, expected, strict=True):
            assert_close(hidden, other)


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("fails", [True, False], ids=["by a failure", "by detach"])
def test_a_text_that_is_broken_off_leaves_the_model_as_it_was(kind: str, fails: bool) -> None:
    model, seen = controlled(kind), []
    before = {name: weight.clone() for name, weight in model.base.state_dict().items()}
    source = batch(1) | {"labels": batch(1)["input_ids"]}
    plain, expected = model.base(**source).logits, write(model)

    def interrupt(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids.shape[1])
        if len(seen) == 3:
            if fails:
                raise RuntimeError("no memory")
            model.detach()
        return scores

    if fails:
        with pytest.raises(RuntimeError, match="no memory"):
            write(model, logits_processor=[interrupt])
        assert torch.equal(write(model), expected)
        model.detach()
    else:
        write(model, logits_processor=[interrupt])
        assert len(seen) == TARGET
    assert hooks(model) == [0] * 4
    assert torch.equal(model.base(**source).logits, plain)
    after = model.base.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_rows_may_become_more_and_fewer() -> None:
    model = controlled("llama")
    targets = BatchTargets(torch.tensor([TARGET]), Unit.TOKENS, torch.tensor([2]))
    steering, logits = GenerateSteering(model.steering, targets, torch.float32), []
    for rows in (1, 2, 1):
        ids = torch.arange(4, 9, device=toys.DEVICE).expand(rows, -1)
        with torch.no_grad():
            steering.set_signal(ids, 1)
            logits.append(model.base(ids[:, -1:]).logits)
        assert logits[-1].shape[0] == rows
        assert_close(logits[-1][:1], logits[0])


def test_calls_inside_and_outside_of_inference_mode_follow_each_other() -> None:
    model, texts = controlled("t5"), []
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            texts.append(write(model).tolist())
    assert texts[0] == texts[1] == texts[2]


def test_a_model_is_trained_after_it_wrote_as_before() -> None:
    losses = []
    for writes in (False, True):
        model = controlled("gpt2")
        if writes:
            write(model)
        model.train()
        labels = batch(2)["input_ids"]
        torch.manual_seed(0)  # of the noise
        loss = model(**batch(2), labels=labels, prompt_lengths=2).loss
        loss.backward()
        grads = [weight.grad for name, weight in model.named_parameters() if name.endswith("bias")]
        losses.append((loss.item(), sum(float(grad.abs().sum()) for grad in grads if grad is not None)))
    assert losses[0] == losses[1]


def test_a_layer_is_given_once() -> None:
    with pytest.raises(OptionError, match="each once"):
        controlled("llama", [1, 1])


# LED looks at values, and on meta there are none.
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("method", "kind"), [pair for pair in STEERING if pair[1] in {*ONE_A_FAMILY} - {"led"}])
def test_progress_counted_on_the_cpu_is_used_on_the_models_device(method: str, kind: str, rows: int) -> None:
    model = randomize_projections(attach(toys.tiny_model(kind), method)).to(
        "meta"
    )  # any other device than the CPU will do
    model.base.set_attn_implementation("eager")  # the default looks at values, and there are none
    start = 1 if model.family.encoder_decoder else 3
    starts = torch.tensor([start, start + 1][:rows])  # rows that do not advance together
    targets, long = BatchTargets(torch.tensor([TARGET] * rows), Unit.TOKENS, starts), {"dtype": torch.long}
    steering = GenerateSteering(model.steering, targets, torch.float32)
    with torch.no_grad():
        for written in (4, 5):
            steering.set_signal(torch.arange(4, 4 + written).expand(rows, -1), 1)
            given = {name: torch.empty(rows, 1, **long, device="meta") for name in ("input_ids", "attention_mask")}
            if model.family.encoder_decoder:
                given = {f"decoder_{name}": ids for name, ids in given.items()}
                given["input_ids"] = torch.empty(rows, WIDTH, **long, device="meta")
            assert model.base(**given, use_cache=False).logits.device.type == "meta"
