"""The signal belongs to one forward pass: threads, nested calls, backward passes and direct calls of the base."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from impatience import LengthControlled, attach
from impatience.errors import OptionError, TargetError
from impatience.families import FAMILIES
from impatience.lengths import Unit
from support.toys import EOS, byte_level_tokenizer, tiny_model

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
TYPES = [family.model_types[0] for family in FAMILIES.values()]


def trained(kind: str = "llama", method: str = "glide", **options: Any) -> LengthControlled:
    """Return a model whose projections are not zero, as after training."""
    torch.manual_seed(1)
    model = attach(tiny_model(kind), method, **options)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def labels_of(ids: Tensor, prompt: int) -> Tensor:
    return ids.masked_fill(torch.arange(ids.shape[1]) < prompt, -100)


# Threads and nested calls


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_threads_write_what_one_thread_writes(method: str) -> None:
    model = trained(method=method)
    targets = [4, 7, 11, 18, 25, 33, 41, 52]

    def write(target: int) -> list[int]:
        ids: list[int] = model.generate(IDS[:1], target_tokens=target, landing="exact")[0].tolist()
        return ids

    alone = [write(target) for target in targets]
    assert len({tuple(text[4:8]) for text in alone}) > 1  # the target matters from the first tokens on
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, targets * 4)) == alone * 4


def test_forward_passes_and_texts_of_two_threads_do_not_mix() -> None:
    model = trained()
    text, labels = torch.arange(5, 25)[None], labels_of(torch.arange(5, 25)[None], 4)
    logits, ids = model(text, labels=labels).logits, model.generate(IDS, target_tokens=30, landing="exact")
    with ThreadPoolExecutor(2) as pool:
        passes = [pool.submit(lambda: model(text, labels=labels).logits) for _ in range(20)]
        texts = [pool.submit(model.generate, IDS, target_tokens=30, landing="exact") for _ in range(3)]
        assert all(torch.equal(one.result(), logits) for one in passes)
        assert all(torch.equal(one.result(), ids) for one in texts)


class CallsInside(LogitsProcessor):
    """Calls the model with another target at each step of a text."""

    def __init__(self, model: LengthControlled) -> None:
        self.model = model

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.model.generate(IDS[:1], target_tokens=3, landing="exact")
        self.model(IDS[:1], labels=labels_of(IDS[:1], 2))
        return scores


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_a_call_inside_a_call_does_not_change_the_outer_text(method: str) -> None:
    model = trained(method=method)
    alone = model.generate(IDS, target_tokens=[9, 20], landing="exact")
    inside = LogitsProcessorList([CallsInside(model)])
    assert torch.equal(model.generate(IDS, target_tokens=[9, 20], landing="exact", logits_processor=inside), alone)
    assert torch.equal(model.generate(IDS, target_tokens=[9, 20], landing="exact"), alone)


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_forward_inside_a_call_or_a_text_gets_its_own_signal(method: str) -> None:
    model = trained(method=method)
    inputs = {"labels": labels_of(IDS, 2), "target_tokens": 9}
    expected = model(IDS, **inputs).logits
    found = []

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        found.append(model.forward(IDS, **inputs).logits)
        return scores

    with model.exclusive():
        found.append(model.forward(IDS, **inputs).logits)
    alone = model.generate(IDS, target_tokens=20, landing="exact")
    inside = LogitsProcessorList([processor])
    assert torch.equal(model.generate(IDS, target_tokens=20, landing="exact", logits_processor=inside), alone)
    found.append(model.forward(IDS, **inputs).logits)
    assert len(found) >= 20
    assert all(torch.equal(one, expected) for one in found)


def test_a_call_that_fails_before_forward_leaves_no_trace() -> None:
    model = trained(method="pre")
    inputs = {"labels": labels_of(IDS, 2), "target_tokens": 9}
    expected = model(IDS, **inputs).logits

    def refuse(*_: Any) -> None:
        raise RuntimeError("refused")

    handle = model.register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="refused"):
        model(IDS, **inputs)
    handle.remove()
    assert torch.equal(model.forward(IDS, **inputs).logits, expected)


# Training


@pytest.mark.parametrize("kind", TYPES)
def test_after_a_training_step_the_base_is_not_steered(kind: str) -> None:
    model = trained(kind).train()
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS} if model.family.encoder_decoder else {"input_ids": IDS}
    before = model.base(**inputs).logits
    model(IDS, labels=labels_of(IDS, 2)).loss.backward()
    assert torch.equal(model.base(**inputs).logits, before)


def gradients(model: LengthControlled, together: bool) -> list[Tensor]:
    """Return the gradients of two texts of different lengths, with one backward pass or two."""
    model.zero_grad()
    texts = torch.arange(5, 15)[None], torch.arange(20, 50)[None]
    losses = [lambda ids=ids: model(ids, labels=labels_of(ids, 3)).loss for ids in texts]
    if together:
        sum(loss() for loss in losses).backward()
    else:
        for loss in losses:
            loss().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize(("method", "kind"), [("glide", "llama"), ("glide", "gpt2"), ("glide", "t5"), ("laam", "bart")])
def test_two_forward_passes_before_one_backward_pass_are_recomputed_with_their_own_signals(
    method: str, kind: str
) -> None:
    model = trained(kind, method, noise=0).train()
    expected = gradients(model, together=False)
    model.gradient_checkpointing_enable()
    for one, other in zip(gradients(model, together=True), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_checkpointing_that_would_lose_the_signal_is_refused() -> None:
    model = trained().train()
    with pytest.raises(OptionError, match="use_reentrant=False"):
        model.gradient_checkpointing_enable({"use_reentrant": True})
    model.base.gradient_checkpointing_enable()
    with pytest.raises(OptionError, match="Enable it on this model"):
        model(IDS, labels=labels_of(IDS, 2))
    model.gradient_checkpointing_disable()
    assert model(IDS, labels=labels_of(IDS, 2)).loss.isfinite()


@pytest.mark.parametrize("kind", TYPES)
def test_checkpointing_of_the_base_is_seen_without_a_walk_through_its_modules(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(kind).train()
    model(IDS, labels=labels_of(IDS, 2))  # transformers itself walks in the first call
    walks = []
    modules = torch.nn.Module.modules
    monkeypatch.setattr(torch.nn.Module, "modules", lambda self: walks.append(type(self)) or modules(self))
    model(IDS, labels=labels_of(IDS, 2))
    assert type(model.base) not in walks
    model.base.gradient_checkpointing_enable()
    with pytest.raises(OptionError, match="Enable it on this model"):
        model(IDS, labels=labels_of(IDS, 2))


def test_a_context_of_the_callers_own_is_kept_under_checkpointing() -> None:
    from contextlib import contextmanager, nullcontext

    entered = []

    @contextmanager
    def noted() -> Any:
        entered.append(1)
        yield

    model = trained().train()
    model.gradient_checkpointing_enable({"context_fn": lambda: (nullcontext(), noted())})
    model(IDS, labels=labels_of(IDS, 2)).loss.backward()
    assert len(entered) == len(model.family.layers_of(model.base))


# Copies


@pytest.mark.parametrize("kind", TYPES)
def test_a_pickled_and_a_deep_copy_write_the_same_and_are_independent(kind: str) -> None:
    model = trained(kind)
    expected = model.generate(IDS, target_tokens=12, landing="exact")
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(twin.generate(IDS, target_tokens=12, landing="exact"), expected)
        for weight in twin.signal_parameters():
            torch.nn.init.normal_(weight, std=3.0)
        assert torch.equal(model.generate(IDS, target_tokens=12, landing="exact"), expected)
        assert twin.family is model.family


# Prompts that are given as embeddings


@pytest.mark.parametrize("method", ["glide", "pre"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_embeddings_of_a_prompt_give_the_text_that_its_ids_give(kind: str, method: str) -> None:
    model = trained(kind, method)
    embeds = model.get_input_embeddings()(IDS)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    options = {"attention_mask": mask, "target_tokens": [7, 15], "landing": "exact", "return_report": True}
    ids, reports = model.generate(IDS, **options)
    from_embeds, same = model.generate(inputs_embeds=embeds, **options)
    assert torch.equal(from_embeds, ids[:, 4:])
    assert same == reports


def test_a_training_step_takes_embeddings_with_labels() -> None:
    model = trained(noise=0).train()
    expected = model(IDS, labels=labels_of(IDS, 2)).loss
    embeds = model.get_input_embeddings()(IDS)
    torch.testing.assert_close(model(inputs_embeds=embeds, labels=labels_of(IDS, 2)).loss, expected)


# Other ways to write, and other vocabularies


def test_continuous_batching_is_refused_because_it_has_no_target() -> None:
    model = trained()
    for method in (model.generate_batch, model.init_continuous_batching, model.continuous_batching_context_manager):
        with pytest.raises(OptionError, match="takes no target"):
            method([[5, 6]], target_tokens=5)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_vocabulary_that_is_resized_after_attach_is_counted_anew(kind: str) -> None:
    model = trained(kind)
    model.resize_token_embeddings(model.config.vocab_size + 40, mean_resizing=False)
    new = torch.full((1, 3), model.config.vocab_size - 1)
    ids, (report,) = model.generate(new, target_tokens=9, landing="exact", return_report=True)
    assert report.length == 9
    assert int((ids[0] == EOS).sum()) == 1
    assert model(new, labels=new).loss.isfinite()


def test_a_default_target_is_used_where_a_call_has_none() -> None:
    model = trained()
    model.set_default_target(target_tokens=9)
    expected = model.generate(IDS, target_tokens=9, landing="exact")
    assert torch.equal(model.generate(IDS, landing="exact"), expected)
    assert not torch.equal(model.generate(IDS, target_tokens=20, landing="exact"), expected)
    logits = model(IDS, labels=labels_of(IDS, 2), target_tokens=9).logits
    assert torch.equal(model(IDS, labels=labels_of(IDS, 2)).logits, logits)
    model.set_default_target()
    assert not torch.equal(model(IDS, labels=labels_of(IDS, 2)).logits, logits)
    for bad in ({"words": 5}, {"target_words": 5, "target_tokens": 5}):
        with pytest.raises(OptionError, match="give one of target_tokens"):
            model.set_default_target(**bad)


# Threads and the signal


def test_a_base_called_in_another_thread_is_not_steered() -> None:
    model = trained(method="pre")
    plain = model.base(IDS).logits
    with model.step_signal(torch.ones(2, 1), torch.full((2, 1), 9.0), Unit.TOKENS), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(lambda: model.base(IDS).logits).result(), plain)
        assert not torch.equal(model.base(IDS).logits, plain)


def test_layers_are_recomputed_in_another_thread_while_this_one_waits() -> None:
    model = trained(noise=0).train()
    expected = gradients(model, together=False)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    texts = torch.arange(5, 15)[None], torch.arange(20, 50)[None]
    loss = sum(model(ids, labels=labels_of(ids, 3)).loss for ids in texts)
    with model.exclusive():
        backward = threading.Thread(target=loss.backward, daemon=True)  # as autograd does on a GPU
        backward.start()
        backward.join(20)
        assert not backward.is_alive()
    found = [weight.grad for weight in model.parameters() if weight.grad is not None]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_replicas_of_data_parallel_get_the_signal(method: str) -> None:
    model = trained(method=method)
    replica = model._replicate_for_data_parallel()
    replica.steering = model.steering._replicate_for_data_parallel()
    expected = model(IDS, labels=labels_of(IDS, 2)).logits
    assert torch.equal(replica(IDS, labels=labels_of(IDS, 2)).logits, expected)


@pytest.mark.slow
def test_a_compiled_model_gets_the_signal_of_each_call() -> None:
    model = trained(method="pre")
    compiled: Any = torch.compile(model, backend="eager")
    for target in (5, 30):
        inputs = {"labels": labels_of(IDS, 2), "target_tokens": target}
        torch.testing.assert_close(compiled(IDS, **inputs).logits, model(IDS, **inputs).logits)
    torch.compiler.reset()


def test_arguments_that_have_no_place_are_refused() -> None:
    with pytest.raises(TypeError, match="name all arguments after"):
        trained()(IDS, torch.ones_like(IDS), labels_of(IDS, 2), 5)
    model = trained()
    with pytest.raises(OptionError, match="runs parts of the model itself"):
        model(model, IDS)


# Frozen signals


@pytest.mark.parametrize("rank", [None, 4])
def test_training_with_a_frozen_signal_that_is_zero_is_refused(rank: int | None) -> None:
    model = attach(tiny_model("llama"), "glide", rank=rank).train()
    for weight in model.signal_parameters():
        weight.requires_grad_(False)
    with pytest.raises(OptionError, match="frozen"):
        model(IDS, labels=labels_of(IDS, 2))
    model.eval()(IDS, labels=labels_of(IDS, 2))
    frozen = trained().train()
    for weight in frozen.signal_parameters():
        weight.requires_grad_(False)
    assert frozen(IDS, labels=labels_of(IDS, 2)).loss.requires_grad


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_the_base_in_another_thread_is_not_steered_while_a_text_is_written(method: str) -> None:
    model = trained(method=method)
    plain = model.base.generate(IDS, max_new_tokens=9, do_sample=False)
    alone = model.generate(IDS, target_tokens=12, landing="exact")
    found = []

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(model.base.generate, IDS, max_new_tokens=9, do_sample=False).result())
        return scores

    written = model.generate(IDS, target_tokens=12, landing="exact", logits_processor=LogitsProcessorList([processor]))
    assert torch.equal(written, alone)
    assert len(found) >= 12
    assert all(torch.equal(one, plain) for one in found)


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_a_forward_of_the_base_inside_a_text_is_not_steered(method: str) -> None:
    model = trained(method=method)
    plain, found = model.base(IDS).logits, []

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        found.append(model.base(IDS).logits)
        return scores

    model.generate(IDS, target_tokens=12, landing="exact", logits_processor=LogitsProcessorList([processor]))
    assert all(torch.equal(one, plain) for one in found)


def test_two_models_around_one_base_take_turns() -> None:
    base = tiny_model("llama")
    models = [attach(base, "glide"), attach(base, "pre")]
    for weight in models[0].signal_parameters():
        torch.nn.init.normal_(weight, std=0.3)
    alone = [model.generate(IDS, target_tokens=12, landing="exact") for model in models]
    with ThreadPoolExecutor(2) as pool:
        texts = [
            [pool.submit(model.generate, IDS, target_tokens=12, landing="exact") for _ in range(8)] for model in models
        ]
        for found, expected in zip(texts, alone, strict=True):
            assert all(torch.equal(one.result(), expected) for one in found)


def test_a_copy_that_is_made_while_a_text_is_written_is_whole() -> None:
    model = trained()
    copies = []

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        if not copies:
            copies.append(pool.submit(copy.deepcopy, model))
        return scores

    with ThreadPoolExecutor(1) as pool:
        model.generate(IDS, target_tokens=12, landing="exact", logits_processor=LogitsProcessorList([processor]))
        copied = copies[0].result()
    assert "prepare_inputs_for_generation" not in vars(copied.base)
    for one in (model, copied):
        assert torch.equal(one.generate(IDS, target_tokens=9), model.generate(IDS, target_tokens=9))


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("method", ["glide", "pre"])
def test_a_step_with_a_cache_needs_progress_and_is_steered_by_it(kind: str, method: str) -> None:
    model, text = trained(kind, method), torch.arange(5, 15)[None]
    first, ids = (1, "decoder_input_ids") if model.family.encoder_decoder else (4, "input_ids")
    source = {"input_ids": IDS[:1]} if model.family.encoder_decoder else {}
    options = {"target_tokens": 8, "prompt_lengths": first, **source}
    whole = model(**options, **{ids: text}).logits
    before = model(**options, **{ids: text[:, :first]}, use_cache=True).past_key_values
    step = {**options, ids: text[:, first : first + 1], "past_key_values": before}
    with pytest.raises(OptionError, match="progress"):
        model(**step)
    found = model(**step, progress=torch.ones(1, 1)).logits[:, 0]
    assert torch.allclose(found, whole[:, first], atol=1e-4)


@pytest.mark.parametrize("lengths", [0, -1, 99, 2.5, "4", [2, 2, 2], [[2]]])
def test_prompt_lengths_that_cannot_be_are_refused(lengths: Any) -> None:
    model = trained()
    with pytest.raises(TargetError, match="prompt_lengths"):
        model(IDS, target_tokens=5, prompt_lengths=lengths)


def test_targets_in_tensors_must_fit_the_rows() -> None:
    model, labels = trained(), labels_of(IDS, 2)
    expected = model(IDS, labels=labels, target_tokens=5).logits
    for target in (torch.tensor(5), torch.tensor([5, 5])):
        assert torch.equal(model(IDS, labels=labels, target_tokens=target).logits, expected)
    assert model.generate(IDS, target_tokens=torch.tensor(5)).shape[0] == 2
    for target in (torch.tensor([5]), torch.tensor([5, 5, 5]), torch.tensor([[5], [5]])):
        with pytest.raises(TargetError, match="rows"):
            model(IDS, labels=labels, target_tokens=target)
    with pytest.raises(TargetError, match="one target"):
        model(IDS, labels=labels, target_tokens=torch.tensor([5, 5]), target_words=3)


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("method", ["glide", "pre"])
def test_generate_of_the_base_inside_a_text_is_not_steered(kind: str, method: str) -> None:
    model = trained(kind, method)
    plain = model.base.generate(IDS, max_new_tokens=6, do_sample=False)
    alone = model.generate(IDS, target_tokens=9, landing="exact")
    short = model.generate(IDS, target_tokens=4, landing="exact")
    found = []

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        found.append(torch.equal(model.base.generate(IDS, max_new_tokens=6, do_sample=False), plain))
        found.append(torch.equal(model.generate(IDS, target_tokens=4, landing="exact"), short))
        return scores

    written = model.generate(IDS, target_tokens=9, landing="exact", logits_processor=LogitsProcessorList([processor]))
    assert torch.equal(written, alone)
    assert len(found) >= 18
    assert all(found)
    assert not {"generate", "prepare_inputs_for_generation"} & vars(model.base).keys()


def test_a_model_is_not_copied_by_code_inside_its_own_text() -> None:
    model = trained()
    inside = LogitsProcessorList([lambda _, scores: copy.deepcopy(model) and scores])
    with pytest.raises(OptionError, match="cannot be copied now"):
        model.generate(IDS, target_tokens=5, logits_processor=inside)
    assert copy.deepcopy(model).steering.lock is not model.steering.lock


def test_models_around_a_copied_base_share_its_lock() -> None:
    copied = copy.deepcopy(trained())
    assert attach(copied.base, "pre").steering.lock is copied.steering.lock
    unpickled = pickle.loads(pickle.dumps(trained()))
    assert attach(unpickled.base, "pre").steering.lock is unpickled.steering.lock


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_the_base_in_another_thread_forces_its_eos_while_a_text_is_written(kind: str) -> None:
    model = trained(kind)
    model.base.generation_config.forced_eos_token_id = EOS
    limits = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    plain, found = model.base.generate(IDS, **limits), []
    assert plain[:, -1].tolist() == [EOS, EOS]

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(model.base.generate, IDS, **limits)
        found.append(torch.equal(call.result(), plain))
        return scores.index_fill(1, torch.tensor([EOS]), -torch.inf)

    options = {"max_new_tokens": 4, "min_new_tokens": 4, "target_tokens": 30}
    for settings in ({}, {"generation_config": model.base.generation_config}):
        written = model.generate(IDS, logits_processor=LogitsProcessorList([processor]), **options, **settings)
        assert EOS not in written[:, -1]  # a text that was cut does not look finished
    assert found == [True] * 8
    assert model.generate(IDS, **options, forced_eos_token_id=EOS)[:, -1].tolist() == [EOS, EOS]


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_a_callback_of_a_setting_that_calls_the_base_gets_it_without_a_signal(method: str) -> None:
    model = trained(method=method)
    plain, found = model.base(IDS).logits, []
    alone = model.generate(IDS, target_tokens=9, landing="exact")

    def allowed(*_: Any) -> list[int]:
        found.append(torch.equal(model.base(IDS).logits, plain))
        return list(range(96))

    assert torch.equal(model.generate(IDS, target_tokens=9, landing="exact", prefix_allowed_tokens_fn=allowed), alone)
    assert len(found) >= 18
    assert all(found)


@pytest.mark.parametrize("method", ["glide", "pre"])
def test_the_unguided_pass_of_guidance_gets_no_signal(method: str) -> None:
    model = trained(method=method)
    target = {"target_tokens": 9, "landing": "exact", "max_new_tokens": 1, "output_logits": True, "output_scores": True}
    one = model.generate(IDS, **target, return_dict_in_generate=True, guidance_scale=3.0, renormalize_logits=False)
    steered, scores = one.logits[0].log_softmax(-1), one.scores[0]
    unguided = model.base(IDS[:, -1:]).logits[:, -1].log_softmax(-1)
    expected, fits = 3.0 * (steered - unguided) + unguided, scores.isfinite()
    assert torch.allclose(scores[fits], expected[fits], atol=1e-4)


COPIES = [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]


@pytest.mark.parametrize("make_copy", COPIES, ids=["copy", "pickle"])
def test_a_copy_of_the_base_that_is_made_while_a_text_is_written_is_its_own(make_copy: Any) -> None:
    model, copies = trained(), []
    plain = model.base.generate(IDS, max_new_tokens=9, do_sample=False)

    def processor(_: Tensor, scores: Tensor) -> Tensor:
        copies.append(pool.submit(make_copy, model.base))
        return scores

    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            model.generate(IDS, target_tokens=12, landing="exact", logits_processor=LogitsProcessorList([processor]))
        copied = [one.result() for one in copies]
    replaced = {"generate", "prepare_inputs_for_generation", "__deepcopy__", "__reduce_ex__"}
    assert not any(replaced & vars(one).keys() for one in [*copied, model.base])
    for parameter in model.base.parameters():
        parameter.data.zero_()
    assert torch.equal(copied[0].generate(IDS, max_new_tokens=9, do_sample=False), plain)


@pytest.mark.parametrize("make_copy", COPIES, ids=["copy", "pickle"])
def test_the_base_is_not_copied_by_code_inside_its_own_text(make_copy: Any) -> None:
    model = trained()
    inside = LogitsProcessorList([lambda _, scores: make_copy(model.base) and scores])
    with pytest.raises(OptionError, match="cannot be copied now"):
        model.generate(IDS, target_tokens=5, logits_processor=inside)
    assert not {"__deepcopy__", "__reduce_ex__"} & vars(make_copy(model.base)).keys()


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("target", [[5.0, NAN], [0, 5], [-3, 5], [INFINITY, 5.0], [True, True]], ids=str)
def test_targets_in_tensors_that_no_text_can_have_are_refused(target: list[float]) -> None:
    model = trained()
    with pytest.raises(TargetError, match="number above 0"):
        model(IDS, labels=labels_of(IDS, 2), target_tokens=torch.tensor(target))
    assert model(IDS, labels=labels_of(IDS, 2), target_tokens=torch.tensor([2.5, 5.0])).loss.isfinite()


@pytest.mark.parametrize(
    "progress",
    [
        *(torch.full((2, 4), value) for value in (NAN, -1.0, INFINITY, True)),
        torch.ones(2, 3),
        torch.ones(4),
        [[0] * 4] * 2,
    ],
    ids=["nan", "negative", "infinite", "bool", "columns", "rows", "list"],
)
@pytest.mark.parametrize("method", ["glide", "pre"])
def test_progress_that_cannot_be_is_refused(progress: Any, method: str) -> None:
    model = trained(method=method)
    with pytest.raises(TargetError, match=r"(?s)progress=.*shape \(2, 4\)"):
        model(IDS, labels=labels_of(IDS, 2), target_tokens=5, progress=progress)
    own = torch.tensor([[0, 0, 1, 2]] * 2)
    expected = model(IDS, labels=labels_of(IDS, 2), target_tokens=5).logits
    assert torch.equal(model(IDS, labels=labels_of(IDS, 2), target_tokens=5, progress=own).logits, expected)


def test_special_tokens_that_come_after_attach_are_not_counted() -> None:
    tokenizer = byte_level_tokenizer()
    model = attach(tiny_model("llama", vocab_size=len(tokenizer) + 4), tokenizer=tokenizer)
    ids = torch.tensor([[10, 11, 12, len(tokenizer), 14, 15]])
    counts = []
    for _ in range(2):
        model(ids, target_tokens=9, prompt_lengths=2)
        counts.append(model.vocabulary.count(ids[0].tolist(), Unit.TOKENS))
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    assert counts == [6, 5]
