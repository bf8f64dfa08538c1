"""TRL's trainers on their defaults: every pass of the policy and of its reference has the signal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from impatience import LengthControlled, attach
from impatience.errors import OptionError
from impatience.families import unwrap
from support.toys import CORPUS, byte_level_tokenizer, tiny_model

COMMON = {"max_steps": 2, "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "disable_tqdm": True}
COMMON |= {"per_device_train_batch_size": 2, "learning_rate": 1e-3, "logging_steps": 1}


def model_for(method: str = "glide", lora: bool = False) -> LengthControlled:
    tokenizer = byte_level_tokenizer()
    base: Any = tiny_model("llama", vocab_size=len(tokenizer))
    if lora:
        base = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    return attach(base, method, tokenizer=tokenizer, noise=0)


def signals_of(model: LengthControlled) -> list[Any]:
    """Note the signal that each pass of the decoder gets."""
    seen: list[Any] = []
    decoder = model.family.decoder_of(unwrap(model.base))
    decoder.register_forward_pre_hook(lambda *_: seen.append(model.steering.thread.signal))
    return seen


def assert_signal(seen: list[Any]) -> None:
    assert seen
    assert all(one is not None and (one.embedding is not None or one.projected is not None) for one in seen)


TEXTS = Dataset.from_list([{"text": text} for text in CORPUS[:8]])
PAIRS = Dataset.from_list([{"prompt": text[:20], "completion": text[20:]} for text in CORPUS[:8]])
CHOICES = Dataset.from_list([{"prompt": one[:20], "chosen": one[20:], "rejected": one[20:50]} for one in CORPUS[:8]])


def train(trainer: Any, model: LengthControlled) -> None:
    before = [weight.detach().clone() for weight in model.signal_parameters()]
    trainer.train()
    assert all(not torch.equal(weight, old) for weight, old in zip(model.signal_parameters(), before, strict=True))


@pytest.mark.parametrize("data", [TEXTS, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packing": True, "max_length": 64},
        {"padding_free": True, "max_length": None},
        {"loss_type": "dft"},
        {"lora": True},
    ],
    ids=str,
)
def test_sft_trains_with_the_signal(options: dict[str, Any], data: Dataset, tmp_path: Path) -> None:
    options = dict(options)
    model = model_for(lora=options.pop("lora", False))
    seen = signals_of(model)
    settings = SFTConfig(str(tmp_path), **COMMON, **options)
    trainer = SFTTrainer(model, settings, train_dataset=data, processing_class=model.tokenizer)
    train(trainer, model)
    assert_signal(seen)
    trainer.save_model(str(tmp_path / "m"))
    again = LengthControlled.from_pretrained(tmp_path / "m")
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(
        again(ids, labels=ids).logits, model.eval()(ids, labels=ids).logits, rtol=1e-4, atol=1e-4
    )


def test_adapters_that_a_trainer_puts_on_the_whole_model_are_refused(tmp_path: Path) -> None:
    model, settings = model_for(), SFTConfig(str(tmp_path), **COMMON)
    lora = LoraConfig(r=4, target_modules=["q_proj"])
    trainer = SFTTrainer(model, settings, train_dataset=PAIRS, processing_class=model.tokenizer, peft_config=lora)
    with pytest.raises(OptionError, match=r"attach\(get_peft_model"):
        trainer.train()


@pytest.mark.parametrize("reference", ["copy", "precomputed", "base"])
def test_dpo_trains_with_the_signal(reference: str, tmp_path: Path) -> None:
    model = model_for()
    options: dict[str, Any] = {"precompute_ref_log_probs": True} if reference == "precomputed" else {}
    twin = None
    if reference == "copy":
        twin = copy.deepcopy(model)
        noted = signals_of(twin)
    if reference == "base":
        model.base.save_pretrained(tmp_path / "base")
        model.config._name_or_path = str(tmp_path / "base")
    seen = signals_of(model)
    settings = DPOConfig(str(tmp_path), **COMMON, **options)
    trainer = DPOTrainer(model, twin, settings, train_dataset=CHOICES, processing_class=model.tokenizer)
    train(trainer, model)
    assert_signal(seen)
    first = trainer.state.log_history[0]
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)  # policy and reference are the same before training
    if twin is not None:
        assert_signal(noted)


def test_kto_trains_with_the_signal(tmp_path: Path) -> None:
    model = model_for()
    twin = copy.deepcopy(model)
    seen, noted = signals_of(model), signals_of(twin)
    data = PAIRS.add_column("label", [True, False] * 4)
    settings = KTOConfig(str(tmp_path), **COMMON)
    train(KTOTrainer(model, twin, settings, train_dataset=data, processing_class=model.tokenizer), model)
    assert_signal(seen)
    assert_signal(noted)


@pytest.mark.parametrize(
    ("method", "config", "beta"),
    [(GRPOTrainer, GRPOConfig, 0.0), (GRPOTrainer, GRPOConfig, 0.1), (RLOOTrainer, RLOOConfig, 0.1)],
    ids=["grpo", "grpo with a reference", "rloo"],
)
def test_reinforcement_learning_trains_with_a_default_target(
    method: Any, config: Any, beta: float, tmp_path: Path
) -> None:
    model = model_for()
    model.set_default_target(target_tokens=6)
    model.base.save_pretrained(tmp_path / "base")
    model.config._name_or_path = str(tmp_path / "base")
    seen = signals_of(model)
    settings = config(str(tmp_path), **COMMON | {"max_steps": 1}, num_generations=2, max_completion_length=8, beta=beta)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(completion)) + number for number, completion in enumerate(completions)]

    trainer = method(model, reward, settings, train_dataset=PAIRS, processing_class=model.tokenizer)
    train(trainer, model)
    assert_signal(seen)
