"""Layers that hear through biases: the same steps as by hooks, and a model that is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from impatience import attach
from impatience.hearing import Hearing
from impatience.lengths import Unit
from impatience.steering import Course
from test_contract import EVERY_TYPE, STEERING, WIDTH, assert_close, batch, family_of, teacher_forced, wake
from toys import tiny_model

TARGET = 11
ENDLESS = {"max_new_tokens": TARGET, "eos_token_id": 96, "do_sample": False}


def speaking(kind: str, **options: Any) -> Any:
    """Return a model that is told something in every layer, and whose own biases are not zero."""
    model = tiny_model(kind)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(len(name)))
    return wake(attach(model, "glide", **options))


def hooked(model: Any) -> list[bool]:
    return [bool(layer._forward_pre_hooks) for layer in model.family.layers_of(model.base_model)]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """What hooks are on at each step that biases carry."""
    states, tell = [], Hearing.tell

    def watched(self: Hearing, told: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = tell(self, told)
        states.append([bool(layer._forward_pre_hooks) for layer, _ in self._hooks])
        return left

    monkeypatch.setattr(Hearing, "tell", watched)
    return states


@pytest.mark.parametrize("kind", EVERY_TYPE)
@pytest.mark.parametrize("layers", ["all", [1]])
def test_biases_say_what_hooks_say(kind: str, layers: Any, seen: list[list[bool]]) -> None:
    model, source = speaking(kind, layers=layers), batch(1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    out = model.generate(**source, target_tokens=TARGET, output_logits=True, return_dict_in_generate=True, **ENDLESS)
    forced = teacher_forced(model, family_of(kind), source, out.sequences, TARGET)
    assert_close(torch.stack(out.logits, 1), forced[:, :TARGET])
    steps = TARGET if family_of(kind).encoder_decoder else TARGET - 1  # the first one reads the prompt
    assert seen == [[True, False] if layers == "all" else [False]] * steps
    assert hooked(model) == ([True, True] if layers == "all" else [False, True])
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_several_rows_and_modules_of_another_kind_are_told_by_hooks(seen: list[list[bool]]) -> None:
    class Other(nn.Linear):
        """Might do something with its sum."""

    model, source = speaking("llama"), batch(2)
    model.generate(**source, target_tokens=TARGET, **ENDLESS)
    assert seen == [[True, True]] * (TARGET - 1)
    seen.clear()
    base = tiny_model("llama")
    base.model.layers[0].mlp.down_proj.__class__ = Other
    wake(attach(base, "glide")).generate(**batch(1), target_tokens=TARGET, **ENDLESS)
    assert seen == [[True, True]] * (TARGET - 1)


def test_a_call_that_fails_leaves_hooks_and_biases_as_they_were() -> None:
    model = speaking("bart")
    own = [layer.final_layer_norm.bias for layer in model.base_model.model.decoder.layers]

    class StopError(Exception):
        """Any error in the middle."""

    def fail(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 4:
            assert hooked(model) == [True, False]
            raise StopError
        return scores

    with pytest.raises(StopError):
        model.generate(**batch(1), target_tokens=TARGET, logits_processor=[fail], **ENDLESS)
    assert hooked(model) == [True, True]
    assert all(layer.final_layer_norm.bias is bias for layer, bias in zip(model.model.decoder.layers, own, strict=True))
    model.detach()
    assert hooked(model) == [False, False]


def test_calls_inside_and_outside_of_inference_mode_follow_each_other() -> None:
    model, texts = speaking("t5"), []
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            texts.append(model.generate(**batch(1), target_tokens=TARGET, **ENDLESS).tolist())
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(("method", "kind"), STEERING)
def test_what_is_counted_on_the_processor_is_heard_where_the_model_is(method: str, kind: str) -> None:
    model = wake(attach(tiny_model(kind), method)).to("meta")  # any other device than the processor will do
    model.base_model.set_attn_implementation("eager")  # the default one looks at values, and here are none
    start = 1 if model.family.encoder_decoder else 3
    course, one = Course(torch.tensor([TARGET]), Unit.TOKENS, torch.tensor([start])), {"dtype": torch.long}
    with torch.no_grad():
        for written in (4, 5):
            model.steering.steer(course, torch.arange(4, 4 + written)[None], 1, noisy=False, into=torch.float32)
            given = {name: torch.empty(1, 1, **one, device="meta") for name in ("input_ids", "attention_mask")}
            if model.family.encoder_decoder:
                given = {f"decoder_{name}": ids for name, ids in given.items()}
                given["input_ids"] = torch.empty(1, WIDTH, **one, device="meta")
            assert model.base_model(**given, use_cache=False).logits.device.type == "meta"
