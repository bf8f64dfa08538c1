"""The trainer: loss, batches, sampler and CUDA graphs."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from impatience.training import run as run_module
from impatience.training.cuda_graphs import TrainingGraphs, causal_attention
from impatience.training.run import train
from impatience.training.run_folder import Run
from impatience.training.trainer import GroupedSampler, can_use_graphs, pad_to_shape, prompts, token_loss
from support.recipes import toy
from support.toys import tiny_model


def test_eos_weight_applies_only_at_eos() -> None:
    logits = torch.randn(2, 4, 9)
    labels = torch.tensor([[3, 4, 1, -100], [5, 1, -100, -100]])
    plain, count = token_loss(logits, labels, [1], 1.0)
    heavy, _ = token_loss(logits, labels, [1], 3.0)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    at_ends = -logits.log_softmax(-1)[[0, 1], [2, 1], 1].sum()
    assert count == 5
    assert torch.allclose(plain, expected)
    assert torch.allclose(heavy, plain + 2 * at_ends)


def test_ending_weight_applies_to_the_last_tokens_before_eos() -> None:
    logits = torch.randn(2, 20, 9)
    labels = torch.full((2, 20), 3)
    labels[0, 19] = labels[1, 4] = 1
    labels[1, 5:] = -100
    plain, _ = token_loss(logits, labels, [1])
    heavy, _ = token_loss(logits, labels, [1], ending_weight=3.0)
    chances = -logits.log_softmax(-1)[..., 3]
    assert torch.allclose(heavy, plain + 2 * (chances[0, 3:19].sum() + chances[1, :4].sum()))


def test_graphs_are_used_only_if_all_steps_run_the_same_kernels() -> None:
    assert can_use_graphs(toy().train)
    for change in (
        {"train__accumulation": 2},
        {"train__gradient_checkpointing": True},
        {"train__strength_from": 3, "train__strength_steps": 4},
        {"train__cuda_graphs": False},
    ):
        assert not can_use_graphs(toy(**change).train)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: run the tests on a machine that has one")
@pytest.mark.parametrize(
    "changes",
    [{}, {"train__decoys": 0.3, "train__units": "[tokens, words]", "model__lora": "{rank: 4, alpha: 8}"}],
    ids=["plain", "decoys and adapters"],
)
def test_recorded_steps_train_like_plain_ones(changes: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    changes = {**changes, "train__eos_weight": 2, "model__options": "{noise: 0}", "train__precision": "fp32"}
    for graphs in (True, False):
        recipe = toy(train__cuda_graphs=graphs, **changes)
        folder = train(recipe, tmp_path / str(graphs))
        losses.append([line["loss"] for line in Run(folder).metrics() if "loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: run the tests on a machine that has one")
@pytest.mark.parametrize("length", [64, 192, 256])
def test_recorded_gradients_are_those_of_plain_steps_with_large_biases(length: int) -> None:
    model = tiny_model("qwen2", hidden_size=896, num_attention_heads=14, num_key_value_heads=2).bfloat16().cuda()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                weight.normal_(std=20)
    batch = {"input_ids": torch.randint(4, 64, (16, length), device="cuda")}

    def body(tensors: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**tensors, labels=tensors["input_ids"], use_cache=False).loss
        loss.backward()
        return loss

    body(batch)
    plain = [weight.grad for weight in model.parameters() if weight.grad is not None]
    graphs = TrainingGraphs(model, list(model.parameters()))
    graphs.step(batch, 0, body)
    for weight, gradient in zip(graphs.gradients, plain, strict=True):
        assert torch.nn.functional.cosine_similarity(weight.flatten(), gradient.flatten(), 0) > 0.99


@pytest.mark.parametrize(("kind", "masked"), [("qwen2", False), ("gpt2", False), ("mistral", True), ("t5", True)])
def test_recorded_steps_attend_without_a_mask(kind: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind)
    seen: list[bool] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watch(*args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        seen.append(attn_mask is not None)
        return attend(*args, attn_mask=attn_mask, **kwargs)

    ids = torch.randint(4, 20, (2, 9))
    inputs = {"input_ids": ids} | ({"labels": ids} if model.config.is_encoder_decoder else {"use_cache": False})
    plain = model(**inputs).logits
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    with causal_attention(model):
        recorded = model(**inputs).logits
    assert any(seen) == masked
    assert model.config._attn_implementation == "sdpa"
    assert torch.allclose(recorded, plain, atol=1e-5)


def test_grouped_sampler_yields_every_row_once_and_similar_lengths_together() -> None:
    lengths = [random.Random(i).randint(1, 500) for i in range(1000)]
    sampler = GroupedSampler(lengths, 10, seed=3)
    order = list(sampler)
    assert sorted(order) == list(range(1000))
    spread = [
        max(lengths[i] for i in order[b : b + 10]) - min(lengths[i] for i in order[b : b + 10])
        for b in range(0, 1000, 10)
    ]
    assert sum(spread) / len(spread) < 20
    assert list(sampler) == order
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_prompts_are_padded_on_the_side_the_model_needs() -> None:
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [5, 9, 1], "labels": [-100, 9, 1]}]
    assert prompts(rows, 0, encoder_decoder=False)["input_ids"].tolist() == [[5, 6], [0, 5]]
    assert prompts(rows, 0, encoder_decoder=True)["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    padded = {length: pad_to_shape(torch.ones(2, length), 0).shape[1] for length in (1, 64, 65, 512, 513, 1024, 1025)}
    assert padded == {1: 64, 64: 64, 65: 128, 512: 512, 513: 640, 1024: 1024, 1025: 1280}


def test_validation_before_the_first_step_writes_no_texts_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy(train__eval_first=True, train__steps=4, train__eval_steps=2, train__save_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_result", _kill)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint-4")
    train(recipe, tmp_path, resume=True)
    lines = [line for line in Run(tmp_path).metrics() if "eval_loss" in line]
    assert [(line["step"], "eval_length_mae" in line) for line in lines] == [(0, False), (2, True), (4, True)]
    assert f"| 0 | {lines[0]['eval_loss']:.4g} |" in " ".join((tmp_path / "README.md").read_text().split())


def _kill(*_: Any) -> None:
    raise KeyboardInterrupt
