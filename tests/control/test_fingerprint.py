"""Fingerprints change with every bit of the weights or of the files, and with nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from impatience import attach
from impatience.control.fingerprint import COLUMNS, files_fingerprint, fingerprint, weights_fingerprint
from impatience.control.loading import open_model
from impatience.errors import ModelFilesError
from impatience.sources.identity import check_fingerprint
from support.toys import byte_level_tokenizer, tiny_model


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    whole = 2 * COLUMNS  # two words of 8 bytes each are 2 float32
    layers = {"large": nn.Linear(whole, 3), "odd": nn.Linear(7, 3), "scale": nn.ParameterList([torch.ones(())])}
    return nn.ModuleDict(layers).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_changed_weight_is_noticed(dtype: torch.dtype) -> None:
    one, seen = model(dtype), {weights_fingerprint(model(dtype))}
    assert weights_fingerprint(one) in seen
    for weight in one.parameters():
        flat = weight.data.view(-1)
        for place in {0, len(flat) // 2, len(flat) - 1}:
            flat[place] *= 1.01
            seen.add(weights_fingerprint(one))
    assert len(seen) == 1 + sum(len({0, w.numel() // 2, w.numel() - 1}) for w in one.parameters())


def test_moved_weights_other_types_and_other_names_are_noticed() -> None:
    one, before = model(), weights_fingerprint(model())
    with torch.no_grad():
        rows = one["large"].weight  # type: ignore[index]
        rows.copy_(rows[[1, 0, 2]])
        assert weights_fingerprint(one) != before
        rows.copy_(rows[[1, 0, 2]])
        assert weights_fingerprint(one) == before
        rows[0, :2] = rows[0, [1, 0]]
        assert weights_fingerprint(one) != before
    assert weights_fingerprint(model(torch.bfloat16)) != before
    assert weights_fingerprint(nn.ModuleDict({"named": model()})) != before


def test_layout_in_memory_does_not_matter() -> None:
    one = model()
    for weight in one.parameters():
        if weight.dim() == 2:
            weight.data = weight.data.T.contiguous().T
        else:
            weight.data = torch.cat([torch.zeros(1), weight.data.view(-1)])[1:].view(weight.shape)
    assert weights_fingerprint(one) == weights_fingerprint(model())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved adapter, whose base model lies beside it."""
    tokenizer = byte_level_tokenizer()
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    attach(adapted, "glide", tokenizer=tokenizer).save_pretrained(tmp_path / "adapter")
    return tmp_path


def test_an_opened_model_has_the_fingerprint_of_its_files_whatever_became_of_them_in_memory(folder: Path) -> None:
    before = files_fingerprint(folder / "adapter")
    opened, _ = open_model(folder / "adapter", quiet=True)
    next(opened.parameters()).data.mul_(1 + 1e-6)  # as if another processor had merged it
    assert fingerprint(opened.to(torch.bfloat16)) == before
    check_fingerprint(fingerprint(opened), "mine", before)
    with pytest.raises(ModelFilesError, match="the model 'mine' has other weights"):
        check_fingerprint(fingerprint(opened), "mine", "another")
    in_memory = attach(tiny_model("llama"), "glide")
    assert fingerprint(in_memory) == weights_fingerprint(in_memory)


def test_every_changed_byte_of_the_weights_is_noticed_of_the_base_model_too(folder: Path) -> None:
    seen = {files_fingerprint(folder / "adapter")}
    files = [folder / "adapter" / "adapter_model.safetensors", folder / "base" / "model.safetensors"]
    for file in files:
        content = bytearray(file.read_bytes())
        places = {0, len(content) // 2, len(content) - 1}
        for place in places:
            content[place] ^= 1
            file.write_bytes(content)
            seen.add(files_fingerprint(folder / "adapter"))
    assert len(seen) == 1 + 3 * len(files)


def test_changed_settings_are_noticed_but_not_where_the_base_model_lies(folder: Path) -> None:
    settings, before = folder / "adapter" / "adapter_config.json", files_fingerprint(folder / "adapter")
    (folder / "base").rename(folder / "moved")
    moved = {**json.loads(settings.read_text()), "base_model_name_or_path": str(folder / "moved")}
    settings.write_text(json.dumps(moved))
    assert files_fingerprint(folder / "adapter") == before
    settings.write_text(json.dumps({**moved, "lora_alpha": 99}))
    assert files_fingerprint(folder / "adapter") != before


def test_a_changed_tokenizer_is_noticed_if_it_is_the_models(folder: Path) -> None:
    adapter, base = folder / "adapter", folder / "base"
    seen = [files_fingerprint(adapter)]
    shutil.copy(adapter / "tokenizer.json", base)
    shutil.copy(adapter / "tokenizer_config.json", base)
    assert files_fingerprint(adapter) == seen[0], "it is not the tokenizer of the adapter"
    for file, content in (("chat_template.jinja", b"{{ 1 }}"), ("tokenizer.json", b"{}"), ("merges.txt", b"a b")):
        (adapter / file).write_bytes(content)
        seen.append(files_fingerprint(adapter))
    assert len(set(seen)) == 3
    assert seen[-1] == seen[-2], "a whole tokenizer.json needs no merges"
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / file).unlink()
        seen.append(files_fingerprint(adapter))
    (base / "tokenizer.json").write_bytes(b"{}")
    seen.append(files_fingerprint(adapter))
    assert len(set(seen)) == 6


def test_where_a_tokenizer_lies_is_not_noticed(folder: Path) -> None:
    settings, before = folder / "adapter" / "tokenizer_config.json", files_fingerprint(folder / "adapter")
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "is_local": True, "name_or_path": "there"}))
    assert files_fingerprint(folder / "adapter") == before
