"""Models that cannot be right are refused at load, with the name of the file or tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from impatience import LengthControlled, attach
from impatience.control.loading import open_model
from impatience.errors import ImpatienceError, ModelFilesError
from support.toys import byte_level_tokenizer, tiny_model

Change = Callable[[dict[str, Any]], Any]


def save(folder: Path, kind: str) -> Path:
    """Save a model with its tokenizer: whole, as an adapter, or without length control."""
    tokenizer = byte_level_tokenizer()
    base: Any = tiny_model("llama", vocab_size=len(tokenizer))
    base.save_pretrained(folder / "base")
    if kind == "plain":
        tokenizer.save_pretrained(folder / "base")
        return folder / "base"
    if kind == "adapter":
        base.name_or_path = base.config._name_or_path = str(folder / "base")
        base = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    attach(base, "glide", tokenizer=tokenizer).save_pretrained(folder / "m")
    return folder / "m"


def refused(folder: Path, match: str, *, whole: bool = True) -> None:
    with pytest.raises(ModelFilesError, match=match):
        open_model(folder, quiet=True)
    if whole:
        with pytest.raises(ModelFilesError, match=match):
            LengthControlled.from_pretrained(folder)


def forget_checksums(folder: Path) -> None:
    """Make a saved model one of an earlier version, which had no checksums."""
    file = folder / "impatience.json"
    if file.exists():
        settings = json.loads(file.read_text())
        del settings["crc32"]
        file.write_text(json.dumps(settings))


def change_tensors(file: Path, change: Change) -> None:
    forget_checksums(file.parent)
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


BASE, ADAPTER, SIGNAL = "model.safetensors", "adapter_model.safetensors", "impatience.safetensors"
LAYER = "model.layers.0.mlp.up_proj.weight"
QUERY = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
FILES = [("whole", BASE, LAYER), ("plain", BASE, LAYER), ("adapter", ADAPTER, QUERY), ("whole", SIGNAL, "0.weight")]


def tensor_name(folder: Path, file: str, name: str) -> str:
    return next(key for key in load_file(folder / file) if key.endswith(name))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "file", "name"), FILES)
def test_weights_that_are_not_finite_are_refused(kind: str, file: str, name: str, value: float, tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    name = tensor_name(folder, file, name)
    change_tensors(folder / file, lambda tensors: tensors[name].view(-1)[3:4].fill_(value))
    refused(folder, r"values of .* are NaN or infinite", whole=kind != "plain")


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")  # as PEFT says
@pytest.mark.parametrize(("kind", "file", "name"), FILES)
def test_missing_weights_are_refused(kind: str, file: str, name: str, tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    name = tensor_name(folder, file, name)
    change_tensors(folder / file, lambda tensors: tensors.pop(name))
    refused(folder, name.replace(".", r"\.") + " is missing", whole=kind != "plain")


@pytest.mark.parametrize(("kind", "file", "name"), FILES)
def test_weights_of_another_shape_are_refused(kind: str, file: str, name: str, tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    name = tensor_name(folder, file, name)
    change_tensors(folder / file, lambda tensors: tensors.update({name: tensors[name][:, 1:].contiguous()}))
    refused(folder, name.removesuffix(".weight").replace(".", r"\."), whole=kind != "plain")


@pytest.mark.parametrize(("kind", "file", "name"), [one for one in FILES if one[0] != "plain"])
def test_weights_without_a_place_in_the_model_are_refused(kind: str, file: str, name: str, tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    name = tensor_name(folder, file, name)
    other = name.replace("layers.0", "layers.7").replace("layers.1", "layers.7") if "layers" in name else "7.weight"
    change_tensors(folder / file, lambda tensors: tensors.update({other: tensors[name].clone()}))
    refused(folder, "has no place in the model")


@pytest.mark.parametrize("kind", ["whole", "adapter", "shards"])
def test_flipped_bits_of_weights_are_noticed(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path, "adapter" if kind == "adapter" else "whole")
    if kind == "shards":
        LengthControlled.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2 if kind == "shards" else len(files) == 2
    open_model(folder, quiet=True)
    for file in files:
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        refused(folder, rf"{file.name} is damaged: its bytes are not those that were saved.*from \"crc32\"")
        content[-3] ^= 1
        file.write_bytes(content)
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")
    forget_checksums(folder)
    open_model(folder, quiet=True)


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_file_of_a_tokenizer_is_refused_until_it_is_accepted(file: str, tmp_path: Path) -> None:
    folder = save(tmp_path, "whole")
    path, settings = folder / file, folder / "impatience.json"
    path.write_bytes(path.read_bytes() + b"\n")
    refused(
        folder, rf'{file} is damaged: .*if you changed the file yourself, remove "{file}" from "crc32" in impatience'
    )
    content = json.loads(settings.read_text())
    del content["crc32"][file]
    settings.write_text(json.dumps(content))
    LengthControlled.from_pretrained(folder)
    open_model(folder, quiet=True)


def test_weights_of_a_base_beside_an_adapter_are_not_of_the_model(tmp_path: Path) -> None:
    save(tmp_path, "adapter")
    model = LengthControlled.from_pretrained(tmp_path / "m")
    model.save_pretrained(tmp_path / "base")
    assert set(json.loads((tmp_path / "base" / "impatience.json").read_text())["crc32"]) >= {ADAPTER, SIGNAL}
    assert BASE not in json.loads((tmp_path / "base" / "impatience.json").read_text())["crc32"]


@pytest.mark.parametrize("amplitude", [float("nan"), float("inf"), -1.0, 0.0, 0])
def test_an_amplitude_that_no_model_has_is_refused(amplitude: float, tmp_path: Path) -> None:
    folder = save(tmp_path, "whole")
    settings = json.loads((folder / "impatience.json").read_text())
    (folder / "impatience.json").write_text(json.dumps(settings | {"amplitude": amplitude}))
    refused(folder, "amplitude is")


def test_a_model_of_strength_zero_is_loaded(tmp_path: Path) -> None:
    attach(tiny_model("llama"), "pre", strength=0).save_pretrained(tmp_path)
    assert not LengthControlled.from_pretrained(tmp_path).steers


def test_attach_refuses_embeddings_that_are_not_finite() -> None:
    base = tiny_model("llama")
    base.get_input_embeddings().weight.data[5, 5] = float("nan")
    with pytest.raises(ModelFilesError, match="embeddings are damaged"):
        attach(base, "glide")


def test_low_precision_weights_with_a_large_sum_are_not_refused(tmp_path: Path) -> None:
    base = tiny_model("llama").half()
    base.model.layers[0].mlp.up_proj.weight.data.fill_(60000.0)
    attach(base, "glide").save_pretrained(tmp_path)
    assert LengthControlled.from_pretrained(tmp_path).dtype == torch.float16


# Files that are no JSON, or hold something else

SETTINGS = [
    (lambda settings: settings.pop("method"), "'method' is missing"),
    (lambda settings: settings.pop("format"), "'format' is missing"),
    (lambda settings: settings.update(method=3), "method is 3"),
    (lambda settings: settings.update(method="glode"), "No method is called 'glode'"),
    (lambda settings: settings.update(options=[1]), r"options is \[1\]"),
    (lambda settings: settings["options"].update(speed=1), "no option 'speed'"),
    (lambda settings: settings["options"].update(countdown="soon"), "could not be loaded"),
    (lambda settings: settings["options"].update(layers=[99]), "layers has 99"),
    (lambda settings: settings.update(amplitude="loud"), "amplitude is 'loud'"),
    (lambda settings: settings.update(amplitude=True), "amplitude is True"),
    (lambda settings: settings.update(conventions="ours"), "conventions='ours'"),
    (lambda settings: settings.update(tokenizer="yes"), "tokenizer is 'yes'"),
    (lambda settings: settings.update(taught=2), "taught is 2"),
    (lambda settings: settings.update(format=2), "format 2"),
    (lambda settings: settings.update(crc32=[1]), r"crc32 is \[1\]"),
    (lambda settings: settings.update(format="new"), "format is 'new'"),
]


@pytest.mark.parametrize(("change", "match"), SETTINGS, ids=[match for _, match in SETTINGS])
def test_settings_that_do_not_fit_say_why(change: Change, match: str, tmp_path: Path) -> None:
    folder = save(tmp_path, "whole")
    settings = json.loads((folder / "impatience.json").read_text())
    change(settings)
    (folder / "impatience.json").write_text(json.dumps(settings))
    with pytest.raises(ImpatienceError, match=match):
        LengthControlled.from_pretrained(folder)
    with pytest.raises(ImpatienceError, match=match):
        open_model(folder, quiet=True)


JSON_FILES = ["impatience.json", "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
JSON_FILES += ["prompt.json"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{", b"", b"null"])
@pytest.mark.parametrize(
    ("kind", "file"),
    [*(("whole", file) for file in JSON_FILES), ("adapter", "adapter_config.json")],
)
def test_a_file_that_is_not_a_json_object_is_one_clear_error(
    kind: str, file: str, content: bytes, tmp_path: Path
) -> None:
    folder = save(tmp_path, kind)
    (folder / file).write_bytes(content)
    refused(folder, "is damaged|could not be loaded", whole=file != "prompt.json")


@pytest.mark.parametrize(("kind", "file"), [("whole", BASE), ("plain", BASE), ("adapter", ADAPTER), ("whole", SIGNAL)])
@pytest.mark.parametrize("size", [0, 100, -50])
def test_weights_that_are_cut_short_are_one_clear_error(kind: str, file: str, size: int, tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:size])
    forget_checksums(folder)
    refused(folder, "could not be loaded", whole=kind != "plain")


@pytest.mark.parametrize("name", [None, 5, ""])
def test_an_adapter_that_does_not_name_its_base_says_so(name: Any, tmp_path: Path) -> None:
    folder = save(tmp_path, "adapter")
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = name
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    refused(folder, "does not name the adapter's base model")
    del settings["base_model_name_or_path"]
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    refused(folder, "does not name the adapter's base model")


@pytest.mark.parametrize(
    "prompt", [{"template": 5}, {"prefix": None}, {"max_source_tokens": "9"}, {"max_source_tokens": 0}, {"tasks": [1]},
               {"no_loops": -1}, {"no_loops": True}, {"prefix": "\ud800"}, {"tasks": ["\ud800"]}]
)  # fmt: skip
def test_prompt_settings_of_another_kind_are_refused(prompt: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path, "whole")
    (folder / "prompt.json").write_text(json.dumps(prompt))
    refused(folder, "must be a", whole=False)


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 0}, {"num_beams": -1}, {"num_beams": "x"}, {"num_beams": True}, {"eos_token_id": True},
     {"eos_token_id": 2.5}, {"eos_token_id": [2, "x"]}, {"eos_token_id": -1}, {"pad_token_id": float("nan")},
     {"pad_token_id": "x"}, {"decoder_start_token_id": [2]}, {"forced_bos_token_id": False}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["whole", "plain"])
def test_generation_settings_of_another_kind_are_refused(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path, kind)
    file = folder / "generation_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | settings))
    (name,) = settings
    refused(folder, rf"generation_config\.json is damaged: {name} is .*, but must be", whole=kind == "whole")
    unset = {"num_beams": None, "eos_token_id": [2, 3], "pad_token_id": -1, "forced_bos_token_id": None}
    file.write_text(json.dumps(content | unset))
    open_model(folder, quiet=True)
