"""Folders that transformers' plain Trainer writes: they load, and they resume."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, RandLoraConfig, VeraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from impatience import LengthControlled, attach, load
from impatience.control.extra_state import check_state, decode_state
from impatience.control.loading import open_model
from impatience.errors import ModelFilesError, OptionError
from impatience.families import FAMILIES, unwrap
from support.toys import byte_level_tokenizer, tiny_model

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
LABELS = IDS.masked_fill(torch.arange(6) < 2, -100)
TYPES = [family.model_types[0] for family in FAMILIES.values()]


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": IDS[0] + row, "attention_mask": torch.ones_like(IDS[0]), "labels": LABELS[0]}


def model_for(kind: str = "llama", lora: bool = False, **options: Any) -> LengthControlled:
    base: Any = tiny_model(kind, **options)
    if lora:
        base = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0))
    model = attach(base, "glide", noise=0)
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        if "lora_" in name or "steering" in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model


def trainer_for(model: LengthControlled, folder: Path, **options: Any) -> Trainer:
    given = {"max_steps": 2, "report_to": [], "save_strategy": "no", "use_cpu": True, "learning_rate": 1e-3}
    settings = TrainingArguments(str(folder), disable_tqdm=True, per_device_train_batch_size=2, **(given | options))
    return Trainer(model, settings, train_dataset=Rows())


def logits(model: LengthControlled) -> torch.Tensor:
    return model.eval()(IDS, labels=LABELS).logits.detach()


@pytest.mark.parametrize("adapter", [VeraConfig, RandLoraConfig], ids=["vera", "randlora"])
def test_an_adapter_whose_layers_share_tensors_is_saved_by_the_plain_trainer(adapter: Any, tmp_path: Path) -> None:
    config = adapter(r=4, target_modules=["q_proj"], init_weights=False)
    model = attach(get_peft_model(tiny_model("llama"), config), "glide", noise=0)
    trainer_for(model, tmp_path).save_model(str(tmp_path / "m"))
    for merge in (False, True):
        again = LengthControlled.from_pretrained(tmp_path / "m", merge=merge)
        torch.testing.assert_close(logits(again), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("llama", {"tie_word_embeddings": True}), ("llama", {"lora": True}), *((kind, {}) for kind in TYPES)],
)
def test_a_folder_of_the_plain_trainer_is_loaded_whole(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = model_for(kind, **options)
    trainer = trainer_for(model, tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "m"))
    assert not (tmp_path / "m" / "impatience.json").exists()
    expected = logits(model)
    for merge in (False, True):
        again = LengthControlled.from_pretrained(tmp_path / "m", merge=merge)
        torch.testing.assert_close(logits(again), expected, rtol=1e-4, atol=1e-4)
        assert again.taught
        assert again.amplitude == model.amplitude
    opened, prompt = open_model(tmp_path / "m", quiet=True)
    assert opened.steers
    assert prompt == {}
    assert str(opened.generation_config.to_dict()) == str(model.generation_config.to_dict())


def test_the_tokenizer_of_the_trainer_is_loaded_with_its_folder(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    trainer = trainer_for(model_for(vocab_size=len(tokenizer)), tmp_path)
    trainer.processing_class = tokenizer
    trainer.save_model(str(tmp_path))
    assert load(str(tmp_path)).write("The ferry leaves at seven.", words=3, landing="exact").length == 3


@pytest.mark.parametrize("lora", [False, True])
def test_training_that_is_resumed_by_the_plain_trainer_ends_where_it_would_have(lora: bool, tmp_path: Path) -> None:
    whole = model_for(lora=lora)
    trainer_for(whole, tmp_path / "a", max_steps=4).train()
    trainer_for(model_for(lora=lora), tmp_path / "b", max_steps=4, save_strategy="steps", save_steps=2).train()
    resumed = model_for(lora=lora)
    trainer_for(resumed, tmp_path / "b", max_steps=4).train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-2"))
    torch.testing.assert_close(logits(resumed), logits(whole))
    again = LengthControlled.from_pretrained(tmp_path / "b" / "checkpoint-4")
    torch.testing.assert_close(logits(again), logits(whole))


def test_state_dicts_go_from_model_to_model() -> None:
    one, other = model_for(tie_word_embeddings=True).train(), attach(tiny_model("llama", seed=5), "glide", noise=0)
    other.base.tie_weights()
    untied = model_for()
    untied(IDS, labels=LABELS)
    other = attach(tiny_model("llama", seed=5), "glide", noise=0)
    assert other.amplitude != untied.amplitude
    other.load_state_dict(untied.state_dict())
    assert torch.equal(logits(other), logits(untied))
    assert other.amplitude == untied.amplitude
    assert copy.deepcopy(other).amplitude == untied.amplitude
    older = {name: value for name, value in one.state_dict().items() if name != "_extra_state"}
    assert one.load_state_dict(older).missing_keys == []
    strong = attach(tiny_model("llama"), "glide", strength=3, noise=0)
    amplitude = strong.amplitude
    strong.load_state_dict(untied.state_dict())  # of another strength, which is the model's own choice
    assert strong.amplitude == amplitude


def test_a_model_that_waits_to_be_sharded_has_weights_alone_in_its_state_dict() -> None:
    assert "_extra_state" in model_for().state_dict()
    assert "_extra_state" not in model_for().to("meta").state_dict()


@pytest.mark.parametrize("over", [0, 1])  # bytes by which the description passes the end of a block
def test_the_description_has_the_same_size_before_and_after_training(over: int) -> None:
    model = model_for()
    before = model.state_dict()["_extra_state"]
    model.base.config.filler = "x" * (len(before) - len(bytes(before.tolist()).rstrip()) - len(', "filler": ""') + over)
    before = model.state_dict()["_extra_state"]
    model.train()(IDS, labels=LABELS)
    after = model.state_dict()["_extra_state"]
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    again = model_for()
    again.load_state_dict(model.state_dict())
    assert again.taught is True


@pytest.mark.parametrize("lora", [False, True])
def test_a_trainers_folder_is_loaded_into_the_base_model_that_is_given(lora: bool, tmp_path: Path) -> None:
    model = model_for(lora=lora)
    trainer_for(model, tmp_path).save_model(str(tmp_path))
    base = tiny_model("llama", seed=5)
    again = LengthControlled.from_pretrained(tmp_path, base_model=base)
    assert unwrap(again.base) is base
    torch.testing.assert_close(logits(again), logits(model))
    with pytest.raises(OptionError, match="a gpt2, but"):
        LengthControlled.from_pretrained(tmp_path, base_model=tiny_model("gpt2"))


def test_what_a_trainers_folder_cannot_give_is_refused(tmp_path: Path) -> None:
    trainer_for(model_for(), tmp_path).save_model(str(tmp_path))
    with pytest.raises(OptionError, match="device_map"):
        LengthControlled.from_pretrained(tmp_path, device_map="cpu")
    assert LengthControlled.from_pretrained(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelFilesError, match="could not be loaded"):
        LengthControlled.from_pretrained(tmp_path)


@pytest.mark.parametrize("lora", [False, True])
def test_changed_bytes_in_the_folder_of_a_trainer_are_noticed(lora: bool, tmp_path: Path) -> None:
    trainer = trainer_for(model_for(lora=lora), tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path))
    file = tmp_path / "model.safetensors"
    whole, tensors = file.read_bytes(), {name: tensor.clone() for name, tensor in load_file(file).items()}
    chance, header = random.Random(4), 8 + int.from_bytes(whole[:8], "little")
    places = [chance.randrange(header, len(whole)) for _ in range(40)]
    amplitude = whole.index(b'"amplitude": ') + len(b'"amplitude": ') + 3
    for place in (*places, amplitude):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(7)
        file.write_bytes(damaged)
        with pytest.raises(ModelFilesError):
            LengthControlled.from_pretrained(tmp_path)
    name, other = [name for name, tensor in tensors.items() if tensor.shape == (32, 32)][:2]
    save_file(tensors | {name: tensors[other], other: tensors[name]}, file)
    with pytest.raises(ModelFilesError, match="its values are not those that were saved"):
        LengthControlled.from_pretrained(tmp_path)
    changed = model_for(lora=lora)
    changed.load_state_dict(load_file(file))
    trainer_for(changed, tmp_path).save_model(str(tmp_path))
    torch.testing.assert_close(logits(LengthControlled.from_pretrained(tmp_path)), logits(changed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_saved_is_what_was_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_for(tie_word_embeddings=True).to(dtype)
    model.base.register_buffer("odd", torch.ones(9, dtype=torch.bool)[1:])
    state = model.state_dict()
    assert torch.equal(state["_extra_state"], model.state_dict(keep_vars=True)["_extra_state"])
    before = {name: tensor for name, tensor in state.items() if "odd" not in name}
    with pytest.raises(ModelFilesError, match="values are not"):
        check_state(tmp_path, decode_state(state["_extra_state"]), before)
    check_state(tmp_path, decode_state(state["_extra_state"]), state)
    inside = torch.nn.ModuleDict({"model": model}).state_dict()
    assert torch.equal(inside["model._extra_state"], state["_extra_state"])


def test_a_folder_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    model = model_for()
    state = model.state_dict()
    for checksum in (None, "0" * 8):
        content = {**decode_state(state["_extra_state"]), "checksum": checksum}
        if checksum is None:
            del content["checksum"]
        written = torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)
        save_file({**state, "_extra_state": written}, tmp_path / "model.safetensors")
        torch.testing.assert_close(logits(LengthControlled.from_pretrained(tmp_path)), logits(model))


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_adapter_that_changes_the_base_can_be_saved_again(init: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "base")
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = attach(get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=init)), noise=0)
    trainer = trainer_for(model, tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))
    LengthControlled.from_pretrained(tmp_path / "trained").save_pretrained(tmp_path / "again")
    again = LengthControlled.from_pretrained(tmp_path / "again")
    assert torch.allclose(logits(again), logits(model), atol=1e-4)


@pytest.mark.parametrize("active", [["two"], ["default", "two"]])
def test_active_adapters_stay_active(active: list[str], tmp_path: Path) -> None:
    model = model_for(lora=True)
    model.base.add_adapter("two", LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    model.base.base_model.set_adapter(active)
    trainer_for(model, tmp_path / "run").save_model(str(tmp_path / "saved"))
    assert torch.allclose(logits(LengthControlled.from_pretrained(tmp_path / "saved")), logits(model), atol=1e-5)
