"""Layers that hear through biases and products: the same steps as by hooks, and a model that is left as it was."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import CompileConfig

from control.test_contract import EVERY_TYPE, STEERING, WIDTH, assert_close, batch, family_of, teacher_forced, wake
from impatience import attach
from impatience.control.following import Following
from impatience.control.hearing import Hearing
from impatience.control.steering import BatchTargets
from impatience.errors import OptionError
from impatience.lengths import Unit
from support import toys

TARGET = 11
ENDLESS = {"max_new_tokens": TARGET, "eos_token_id": 96, "do_sample": False}
DEPTH = next(name for name in toys.SMALL if "layers" in name)


def deep_model(kind: str) -> Any:
    """Return a model of four layers whose own biases are not zero."""
    with patch.dict(toys.SMALL, {DEPTH: 4}):
        model = toys.tiny_model(kind)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(len(name)))
    return model.to(toys.DEVICE)


def speaking(kind: str, layers: Any = "all") -> Any:
    """Return such a model that is told something in its layers."""
    return wake(attach(deep_model(kind), "glide", layers=layers))


def by_hooks(model: Any) -> Any:
    """Let all layers of a model hear by their hooks, as if none had an end that is known."""
    model.steering.hearing._ends = [None]
    return model


def hooks(model: Any) -> list[int]:
    """Return how many hooks each layer has."""
    return [len(layer._forward_pre_hooks) for layer in model.family.layers_of(model.base_model)]


def write(model: Any, rows: int = 1, **options: Any) -> Any:
    return model.generate(**batch(rows), **{"target_tokens": TARGET, **ENDLESS, **options})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Which of the layers that hear have a hook, at each step at which they are told something by ``tell``."""
    states, tell = [], Hearing.tell

    def watched(self: Hearing, told: torch.Tensor) -> None:
        tell(self, told)
        states.append([bool(layer._forward_pre_hooks) for layer, _ in self._hooks])

    monkeypatch.setattr(Hearing, "tell", watched)
    return states


@pytest.mark.parametrize("kind", EVERY_TYPE)
@pytest.mark.parametrize(
    ("layers", "hooked"),
    [
        ("all", [True, False, False, False]),
        ([1, 3], [True, False]),
        ([3, 1], [True, False]),
        ([2, 0], [True, False]),
        ([0], [True]),
    ],
)
def test_biases_and_products_say_what_hooks_say(
    kind: str, layers: Any, hooked: list[bool], seen: list[list[bool]]
) -> None:
    model, source = speaking(kind, layers), batch(1)
    on, before = hooks(model), {name: weight.clone() for name, weight in model.state_dict().items()}
    out = write(model, output_logits=True, return_dict_in_generate=True)
    forced = teacher_forced(model, family_of(kind), source, out.sequences, TARGET)
    assert_close(torch.stack(out.logits, 1), forced[:, :TARGET])
    steps = TARGET if family_of(kind).encoder_decoder else TARGET - 1  # the first one reads the prompt
    assert seen == [hooked] * steps
    assert hooks(model) == on
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


class Other(nn.Linear):
    """Might do something with its sum."""


def _several_rows() -> None:
    write(speaking("llama"), rows=2)


def _in_training() -> None:
    write(speaking("llama").train())


def _another_kind_of_module() -> None:
    model = speaking("llama")  # changed only after it was attached
    model.base_model.model.layers[1].mlp.down_proj.__class__ = Other
    write(model)


def _no_such_module() -> None:
    model = speaking("llama")
    model.base_model.model.layers[1].mlp = nn.Identity()
    write(model)


def _someone_elses_hook() -> None:
    model = speaking("llama")
    model.base_model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *given: 2 * given[2])
    write(model)


def _someone_elses_hook_on_the_way() -> None:
    model = speaking("llama")
    model.base_model.model.layers[1].mlp.register_forward_hook(lambda *given: 2 * given[2])
    write(model)


def _someone_elses_forward_on_the_way() -> None:
    model = speaking("llama")
    mlp = model.base_model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda states: 2 * own(states)
    write(model)


def _an_adapter_there() -> None:
    model = get_peft_model(deep_model("llama"), LoraConfig(target_modules=["down_proj"])).eval()
    write(wake(attach(model, "glide")))


def _another_type() -> None:
    model = speaking("llama")
    model.base_model.model.layers[2].mlp.double()
    model.base_model.model.layers[2].mlp.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    model.base_model.model.layers[2].mlp.register_forward_hook(lambda *given: given[2].float())
    write(model)


@pytest.mark.parametrize(
    "case",
    [
        _several_rows,
        _in_training,
        _another_kind_of_module,
        _no_such_module,
        _someone_elses_hook,
        _someone_elses_hook_on_the_way,
        _someone_elses_forward_on_the_way,
        _an_adapter_there,
        _another_type,
    ],
)
def test_where_what_is_told_might_be_changed_on_its_way_hooks_tell(case: Any, seen: list[list[bool]]) -> None:
    case()
    assert seen == [[True] * 4] * (TARGET - 1)


def test_steps_of_one_and_of_several_columns_follow_each_other(seen: list[list[bool]]) -> None:
    model = speaking("llama")
    expected = write(model)
    seen.clear()
    assert torch.equal(write(model, prompt_lookup_num_tokens=3), expected)
    assert 0 < len(seen) < TARGET - 1
    assert hooks(model) == [1] * 4


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize(
    ("rows", "columns", "grad", "cast"),
    [(1, 1, False, False), (1, 3, False, False), (2, 1, False, False), (1, 1, True, False), (1, 1, False, True)],
)
def test_anything_may_be_read_in_the_middle_of_a_step(
    kind: str, rows: int, columns: int, grad: bool, cast: bool
) -> None:
    model, twice = speaking(kind), []
    expected = write(model)
    reader, step = model.family.decoder_of(model.base_model), count()

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if next(step) == 3:
            with torch.set_grad_enabled(grad), torch.autocast(toys.DEVICE, torch.bfloat16, enabled=cast):
                some = ids[:, -columns:].expand(rows, -1)
                twice.extend(reader(some, use_cache=False).last_hidden_state for _ in range(2))
        return scores

    assert torch.equal(write(model, logits_processor=[look]), expected)
    assert torch.equal(*twice)
    assert hooks(model) == [1] * 4


def _cast_around(model: Any) -> Any:
    return torch.autocast(toys.DEVICE, torch.bfloat16)


def _cast_within(model: Any) -> Any:
    """Do as accelerate does."""
    base = model.base_model
    base.forward = torch.autocast(toys.DEVICE, torch.bfloat16)(base.forward)
    return nullcontext()


@pytest.mark.parametrize("kind", ["llama", "t5", "bart"])
@pytest.mark.parametrize("cast", [_cast_around, _cast_within])
def test_what_runs_in_another_type_than_its_weights_hears_too(kind: str, cast: Any, seen: list[list[bool]]) -> None:
    told = []
    for model in (speaking(kind), by_hooks(speaking(kind))):
        with cast(model):
            told.append(write(model, output_logits=True, return_dict_in_generate=True, max_new_tokens=4).logits[-1])
    torch.testing.assert_close(*told, atol=0.05, rtol=0.05)
    assert [True, False, False, False] in seen
    assert seen[-1] == [True] * 4


def test_what_is_read_in_another_type_than_that_of_products_is_heard(seen: list[list[bool]]) -> None:
    texts = []
    for model in (speaking("t5"), by_hooks(speaking("t5"))):
        model.bfloat16().base_model.decoder.embed_tokens.register_forward_hook(lambda *given: given[2].float())
        texts.append(write(model).tolist())
    assert texts[0] == texts[1]
    assert seen[:2] == [[True, False, False, False], [True] * 4]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch resets itself by it on a GPU
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_a_step_that_is_compiled_is_compiled_as_a_whole_and_not_for_each_text(kind: str) -> None:
    model, graphs, steps = speaking(kind), [], []
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
def test_a_prompt_is_told_nothing_but_at_its_end(method: str) -> None:
    model, widths = wake(attach(deep_model("llama"), method)), []
    embedding = model.steering.method.embedding

    def watched(progress: torch.Tensor, *given: Any) -> torch.Tensor:
        widths.append(progress.shape[1])
        return embedding(progress, *given)

    with patch.object(type(model.steering.method), "embedding", lambda _, *given: watched(*given)):
        for prompt, told in ((WIDTH, 1), (WIDTH - 2, 3)):  # from its last token on
            widths.clear()
            write(model, rows=2, prompt_lengths=prompt)
            assert widths[0] == told


def test_where_less_is_read_than_was_told_the_last_of_it_is_heard() -> None:
    model = speaking("llama")
    decoder, widths = model.base_model.model, []
    decoder.layers[-1].register_forward_hook(lambda *given: widths.append(given[2].shape[1]))
    write(model, prompt_lengths=WIDTH - 2, guidance_scale=1.5)
    assert widths == [WIDTH] + [1] * (2 * TARGET - 1)


@pytest.mark.parametrize("kind", ["llama", "t5", "bart"])
@pytest.mark.parametrize("layers", ["all", [0, 2]])
def test_what_layers_read_and_say_is_what_it_is_with_hooks(kind: str, layers: Any) -> None:
    models = speaking(kind, layers), by_hooks(speaking(kind, layers))
    texts = [write(model, output_hidden_states=True, return_dict_in_generate=True) for model in models]
    name = "hidden_states" if kind == "llama" else "decoder_hidden_states"
    for step, expected in zip(*(text[name] for text in texts), strict=True):
        for hidden, other in zip(step, expected, strict=True):
            assert_close(hidden, other)


def test_nothing_that_was_worked_out_is_kept() -> None:
    model = speaking("llama")
    write(model)
    assert model.steering.hearing._told is model.steering.message.layers is None


PLACES = {"nn.Parameter": nn.Parameter, "torch.add": torch.add, "partial": partial, "torch.addcmul": torch.addcmul}


@pytest.mark.parametrize(
    ("kind", "place"),
    [("bart", "nn.Parameter"), ("bart", "torch.add"), ("llama", "partial"), ("llama", "torch.addcmul")],
)
def test_what_fails_while_layers_are_told_leaves_hooks_and_ends_as_they_were(
    kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = speaking(kind)
    layers = model.family.layers_of(model.base_model)
    ends = [layer.get_submodule(model.family.ends[kind]) for layer in layers]
    own, expected = [end.bias for end in ends], write(model)
    left = iter(range(2))

    def fail(*args: Any, **options: Any) -> Any:
        next(left)  # the third time is one too many
        return real(*args, **options)

    real = PLACES[place]
    monkeypatch.setattr(f"impatience.control.hearing.{place}", fail)
    with pytest.raises(StopIteration):
        write(model)
    monkeypatch.undo()
    assert hooks(model) == [1] * 4
    assert all(end.bias is bias and "forward" not in vars(end) for end, bias in zip(ends, own, strict=True))
    assert torch.equal(write(model), expected)
    model.detach()
    assert hooks(model) == [0] * 4


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_a_model_that_is_given_back_while_it_writes_is_as_it_was(kind: str) -> None:
    model = speaking(kind)
    before = {name: weight.clone() for name, weight in model.base_model.state_dict().items()}
    seen = []

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids.shape[1])
        if len(seen) == 3:
            model.detach()
        return scores

    write(model, logits_processor=[look])
    assert len(seen) == TARGET
    assert hooks(model) == [0] * 4
    after = model.base_model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_rows_may_become_more_and_fewer() -> None:
    model = speaking("llama")
    following = Following(
        model.steering, BatchTargets(torch.tensor([TARGET]), Unit.TOKENS, torch.tensor([2])), torch.float32
    )
    for rows, hooked in ((1, [1, 0, 0, 0]), (2, [1] * 4), (1, [1, 0, 0, 0])):
        ids = torch.arange(4, 9, device=toys.DEVICE).expand(rows, -1)
        with torch.no_grad():
            following.steer(ids, 1)
            assert hooks(model) == hooked
            assert model.base_model(ids[:, -1:]).logits.shape[0] == rows


def test_a_text_that_is_counted_token_by_token_is_counted_as_a_whole() -> None:
    model = speaking("llama")
    special = min(model.vocabulary.special_ids)
    ids = torch.tensor([[5, special, 7, 8, special, 9, 9, special, 4, 5, 6]])
    following = Following(
        model.steering, BatchTargets(torch.tensor([5]), Unit.TOKENS, torch.tensor([3])), torch.float32
    )
    for columns in (2, 3, 4, 5, 6, 11, 10, 7, 8, 9):  # on by one, on by more, and back
        with torch.no_grad():
            following.steer(ids[:, :columns], 1)
        assert following._written == [model.vocabulary.count(ids[0, 3:columns].tolist(), Unit.TOKENS)]
    ids[0, 8] = special  # another one than was counted
    with torch.no_grad():
        following.steer(ids[:, :9], 2)
        following.steer(ids[:, :10], 1)
    assert following._written == [model.vocabulary.count(ids[0, 3:10].tolist(), Unit.TOKENS)]


def test_calls_inside_and_outside_of_inference_mode_follow_each_other() -> None:
    model, texts = speaking("t5"), []
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            texts.append(write(model).tolist())
    assert texts[0] == texts[1] == texts[2]


def test_a_model_is_trained_after_it_wrote_as_before() -> None:
    losses = []
    for writes in (False, True):
        model = speaking("gpt2")
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


def test_a_layer_hears_once() -> None:
    with pytest.raises(OptionError, match="each once"):
        speaking("llama", [1, 1])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("method", "kind"), STEERING)
def test_what_is_counted_on_the_processor_is_heard_where_the_model_is(method: str, kind: str, rows: int) -> None:
    model = wake(attach(toys.tiny_model(kind), method)).to("meta")  # any other device than the processor will do
    model.base_model.set_attn_implementation("eager")  # the default one looks at values, and here are none
    start = 1 if model.family.encoder_decoder else 3
    places = torch.tensor([start, start + 1][:rows])  # rows that do not go on together
    course, one = BatchTargets(torch.tensor([TARGET] * rows), Unit.TOKENS, places), {"dtype": torch.long}
    following = Following(model.steering, course, torch.float32)
    with torch.no_grad():
        for written in (4, 5):
            following.steer(torch.arange(4, 4 + written).expand(rows, -1), 1)
            given = {name: torch.empty(rows, 1, **one, device="meta") for name in ("input_ids", "attention_mask")}
            if model.family.encoder_decoder:
                given = {f"decoder_{name}": ids for name, ids in given.items()}
                given["input_ids"] = torch.empty(rows, WIDTH, **one, device="meta")
            assert model.base_model(**given, use_cache=False).logits.device.type == "meta"
