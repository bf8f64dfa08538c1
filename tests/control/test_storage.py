"""Saved models: what their files hold, what loads again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from impatience import LengthControlled, attach
from impatience.control import storage
from impatience.control.fingerprint import files_fingerprint
from impatience.control.loading import open_model
from impatience.control.storage import save_prompt
from impatience.errors import ModelFilesError, OptionError
from impatience.methods.base import EmbeddingMethod
from support.toys import byte_level_tokenizer, tiny_model

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def test_a_tokenizer_is_saved_and_loaded_with_the_model(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(tmp_path)
    again = LengthControlled.from_pretrained(tmp_path)
    _, reports = again.generate(**BATCH, target_words=[2, 7], landing="exact", return_report=True)
    assert [report.length for report in reports] == [2, 7]


def test_amplitude_is_saved_and_not_computed_again(tmp_path: Path) -> None:
    model = attach(tiny_model("llama"), "pre")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3)
    model.save_pretrained(tmp_path)
    assert LengthControlled.from_pretrained(tmp_path).amplitude == model.amplitude


@pytest.mark.parametrize("taught", [False, True])
def test_files_say_whether_the_model_was_trained(
    taught: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = attach(tiny_model("llama"), "pre").train(taught)
    model(**BATCH, labels=BATCH["input_ids"])
    model.save_pretrained(tmp_path)
    LengthControlled.from_pretrained(tmp_path).generate(**BATCH, target_tokens=3)
    assert ("has not been trained" in caplog.text) == (not taught)


@pytest.mark.parametrize(
    "option",
    [{"dtyp": "float32"}, {"dtype": "flaot32"}, {"device_map": "nowhere"}, {"attn_implementation": "sdpaa"}],
    ids=lambda option: next(iter(option)),
)
def test_a_wrong_argument_is_named_and_no_file_is_blamed(option: dict[str, Any], tmp_path: Path) -> None:
    attach(tiny_model("llama"), "pre").save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=next(iter(option))) as caught:
        LengthControlled.from_pretrained(tmp_path, **option)
    assert "damaged" not in str(caught.value)


def test_a_mistake_of_our_own_is_not_blamed_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(tiny_model("llama"), "pre").save_pretrained(tmp_path)
    monkeypatch.setattr(storage, "Saved", lambda **_: {}["ours"])
    for load in (LengthControlled.from_pretrained, open_model):
        with pytest.raises(KeyError, match="ours"):
            load(tmp_path)


def test_damaged_foreign_and_unsafe_files_are_refused(tmp_path: Path) -> None:
    attach(tiny_model("llama"), "pre").save_pretrained(tmp_path)
    settings = tmp_path / "impatience.json"
    good = settings.read_text()
    settings.write_text(good[:40])
    with pytest.raises(ModelFilesError, match="damaged"):
        LengthControlled.from_pretrained(tmp_path)
    settings.write_text(json.dumps(json.loads(good) | {"format": 9}))
    with pytest.raises(ModelFilesError, match="format 9"):
        LengthControlled.from_pretrained(tmp_path)
    settings.write_text(good)
    with pytest.raises(OptionError, match="trust_remote_code"):
        LengthControlled.from_pretrained(tmp_path, trust_remote_code=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        LengthControlled.from_pretrained(tmp_path)


def test_a_custom_method_works_but_needs_a_name_to_be_saved(tmp_path: Path) -> None:
    class Own(EmbeddingMethod):
        def embedding(self, progress: Any, target: Any, width: int) -> Any:
            return (progress / target)[..., None].expand(-1, -1, width)

    model = attach(tiny_model("llama"), Own())
    assert model.generate(**BATCH, target_tokens=5, landing="exact").shape[1] == 10
    with pytest.raises(OptionError, match="Register it"):
        model.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="has its options already"):
        attach(tiny_model("llama"), Own(), strength=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"use_rslora": True}, {"init_lora_weights": "pissa"}, {"init_lora_weights": "olora"}],
    ids=["plain", "rslora", "pissa", "olora"],
)
def test_a_merged_adapter_writes_what_peft_writes_unmerged(changes: dict[str, Any], tmp_path: Path) -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **changes)
    model = attach(get_peft_model(tiny_model("llama"), config), "pre").eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            noise = torch.empty_like(parameter).normal_(std=0.2, generator=torch.Generator().manual_seed(3))
            parameter.data.add_(noise)  # as if it had been trained
    logits, written = model(**BATCH, labels=IDS).logits, model.generate(**BATCH, target_tokens=[4, 9], landing="exact")
    model.save_pretrained(tmp_path)
    name = "base_model.model.model.embed_tokens.weight"  # PEFT saves it beside the adapter where it was resized
    tensors = load_file(tmp_path / "adapter_model.safetensors") | {name: model.get_input_embeddings().weight.detach()}
    save_file(tensors, tmp_path / "adapter_model.safetensors", {"format": "pt"})
    settings = json.loads((tmp_path / "impatience.json").read_text())
    (tmp_path / "impatience.json").write_text(json.dumps(settings | {"crc32": {}}))
    unmerged = LengthControlled.from_pretrained(tmp_path, base_model=tiny_model("llama"))
    assert torch.allclose(unmerged(**BATCH, labels=IDS).logits, logits, atol=1e-4)
    merged = LengthControlled.from_pretrained(tmp_path, base_model=tiny_model("llama"), merge=True)
    assert type(merged.base).__name__ == "LlamaForCausalLM"
    assert torch.allclose(merged(**BATCH, labels=IDS).logits, logits, atol=1e-4)
    assert torch.equal(merged.generate(**BATCH, target_tokens=[4, 9], landing="exact"), written)


def adapted(names: tuple[str, ...] = ("default",)) -> Any:
    config = LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    base: Any = get_peft_model(tiny_model("llama"), config, adapter_name=names[0])
    for name in names[1:]:
        base.add_adapter(name, config)
    return base


@pytest.mark.parametrize("names", [("mine",), ("default", "two")])
def test_adapters_that_would_be_loaded_otherwise_are_not_saved(tmp_path: Path, names: tuple[str, ...]) -> None:
    model = attach(adapted(names))
    with pytest.raises(OptionError, match="Only one adapter"):
        model.save_pretrained(tmp_path)


def test_adapters_put_in_after_attach_or_merged_are_not_saved(tmp_path: Path) -> None:
    model = attach(tiny_model("llama"))
    get_peft_model(model.base, LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(OptionError, match="after attach"):
        model.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="after attach"):
        model.train()(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[-100, 6, 7]]))
    merged = attach(adapted())
    merged.base.merge_and_unload()
    with pytest.raises(OptionError, match="was merged"):
        merged.save_pretrained(tmp_path)


def test_a_model_saved_over_another_is_loaded_as_itself(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    base = tiny_model("llama")
    base.save_pretrained(tmp_path / "base")
    adapter = adapted()
    adapter.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    attach(adapter, "glide").save_pretrained(tmp_path / "model")
    for method in ("none", "pre"):
        attach(base, method).save_pretrained(tmp_path / "model")
        loaded = LengthControlled.from_pretrained(tmp_path / "model")
        assert torch.equal(loaded.base(ids).logits, base(ids).logits)


def test_a_prompt_is_that_of_the_model_that_was_saved_with_it(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(tmp_path)
    prompt = {"template": "title", "prefix": "", "max_source_tokens": 9}
    (tmp_path / "prompt.json").write_text(json.dumps(prompt))
    same, known = open_model(tmp_path)
    same.save_pretrained(tmp_path)
    assert open_model(tmp_path)[1] == known == prompt
    LengthControlled.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert open_model(tmp_path)[1] == {}


def test_a_prompt_that_was_lost_is_noticed_but_may_be_changed(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(tmp_path)
    save_prompt(tmp_path, {"template": "title", "prefix": "", "max_source_tokens": 9})
    file, settings = tmp_path / "prompt.json", tmp_path / "impatience.json"
    open_model(tmp_path)[0].save_pretrained(tmp_path)
    file.write_text(file.read_text().replace("title", "summarize"))
    assert open_model(tmp_path)[1]["template"] == "summarize"
    file.write_text('{"prefix": "", "max_source_tokens": 9}')
    with pytest.raises(ModelFilesError, match=r"prompt.json of .* has lost template: the model would be asked"):
        open_model(tmp_path)
    file.unlink()
    with pytest.raises(ModelFilesError, match=r"is lost, with max_source_tokens, prefix, template: .* remove"):
        open_model(tmp_path)
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "prompt"}))
    assert open_model(tmp_path)[1] == {}


def test_an_adapter_without_its_added_embeddings_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "base")
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tokenizer.add_tokens(["<new>"])
    base.resize_token_embeddings(len(tokenizer))
    adapted = get_peft_model(base, LoraConfig(target_modules=["q_proj"], r=2))
    attach(adapted, tokenizer=tokenizer).save_pretrained(tmp_path / "model")
    with pytest.raises(ModelFilesError, match="embeddings that were added"):
        LengthControlled.from_pretrained(tmp_path / "model")


def test_shards_replace_a_single_file(tmp_path: Path) -> None:
    first, second = tiny_model("llama"), tiny_model("llama")
    with torch.no_grad():
        second.lm_head.weight.add_(1)
    attach(first, "none").save_pretrained(tmp_path)
    attach(second, "none").save_pretrained(tmp_path, max_shard_size="20KB")
    assert torch.equal(LengthControlled.from_pretrained(tmp_path).base(IDS).logits, second(IDS).logits)


def test_an_adapter_whose_state_is_not_saved_is_refused(tmp_path: Path) -> None:
    model = attach(adapted())
    model.base.base_model.disable_adapter_layers()
    with pytest.raises(OptionError, match="disabled"):
        model.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="disabled"):
        model.state_dict()
    model.base.base_model.enable_adapter_layers()
    model.base.merge_adapter()
    with pytest.raises(OptionError, match="merged"):
        model.state_dict()
    random = get_peft_model(
        tiny_model("llama"), LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa_niter_4")
    )
    with pytest.raises(OptionError, match="pissa_niter"):
        attach(random).save_pretrained(tmp_path)


def test_a_folder_of_two_models_is_refused(tmp_path: Path) -> None:
    attach(adapted()).save_pretrained(tmp_path)
    save_file(
        {name: tensor.clone() for name, tensor in attach(adapted()).state_dict().items()},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelFilesError, match="two models"):
        LengthControlled.from_pretrained(tmp_path)


def test_saving_leaves_what_is_not_of_the_model(tmp_path: Path) -> None:
    base, tokenizer = tiny_model("llama"), byte_level_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    base.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    adapter = adapted()
    adapter.peft_config["default"].base_model_name_or_path = str(tmp_path)
    model = attach(adapter)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "chat_template.jinja").is_file()


@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings", "ignore:`lora_bias=True` was passed", "ignore:Adapter 'default'"
)
@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["q_proj"], "layer_replication": [(0, 2), (1, 2)]},
        {"target_modules": ["q_proj"], "lora_bias": True},
    ],
    ids=["embeddings", "head", "replicated layers", "biases that layers lack"],
)
def test_an_adapter_stays_beside_weights_that_it_cannot_be_merged_into(changes: dict[str, Any], tmp_path: Path) -> None:
    def base() -> Any:
        return tiny_model("llama", tie_word_embeddings=True)

    torch.manual_seed(0)
    model = attach(get_peft_model(base(), LoraConfig(r=4, init_lora_weights=False, **changes)), "pre").eval()
    logits = model(**BATCH, labels=IDS).logits
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "trained").mkdir()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_file(weights, tmp_path / "trained" / "model.safetensors")
    for folder in ("saved", "trained"):
        given = {"base_model": base()} if folder == "saved" else {}
        loaded = LengthControlled.from_pretrained(tmp_path / folder, merge=True, **given)
        torch.testing.assert_close(loaded(**BATCH, labels=IDS).logits, logits)


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
@pytest.mark.parametrize("init", [True, "pissa", "olora"])
def test_an_adapter_beside_its_base_is_loaded_once_or_refused(init: Any, tmp_path: Path) -> None:
    base = tiny_model("llama")
    base.save_pretrained(tmp_path)
    base.name_or_path = str(tmp_path)
    torch.manual_seed(0)
    model = attach(get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=init)), "pre").eval()
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data.add_(torch.randn_like(weight))
    model.save_pretrained(tmp_path)
    if init is True:
        loaded = LengthControlled.from_pretrained(tmp_path)
        torch.testing.assert_close(loaded(**BATCH, labels=IDS).logits, model(**BATCH, labels=IDS).logits)
    else:
        with pytest.raises(ModelFilesError, match="change twice"):
            LengthControlled.from_pretrained(tmp_path)


def test_a_base_with_an_adapter_of_its_own_is_refused(tmp_path: Path) -> None:
    base = tiny_model("llama")
    base.save_pretrained(tmp_path / "base")
    for target, folder in (("q_proj", "model"), ("v_proj", "base")):
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        config = LoraConfig(target_modules=[target], init_lora_weights=False)
        attach(get_peft_model(base, config), "pre").save_pretrained(tmp_path / folder)
    with pytest.raises(ModelFilesError, match="another adapter"):
        LengthControlled.from_pretrained(tmp_path / "model")


def signal_only(folder: Path) -> LengthControlled:
    """A model with a signal on a base that was not changed, and lies in a folder."""
    tokenizer = byte_level_tokenizer()
    base = tiny_model("llama", vocab_size=len(tokenizer))
    base.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = attach(base, "glide", tokenizer=tokenizer)
    generator = torch.Generator().manual_seed(5)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    model.taught, model.base_name = True, str(folder)
    model.base.requires_grad_(False)
    return model.eval()


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_of_an_unchanged_base_only_the_name_is_saved(tmp_path: Path) -> None:
    model, folder = signal_only(tmp_path / "base"), tmp_path / "model"
    model.save_pretrained(folder)
    assert files_in(folder) == ["impatience.json", "impatience.safetensors"]
    assert json.loads((folder / "impatience.json").read_text())["base"] == str(tmp_path / "base")
    loaded, prompt = open_model(folder)
    assert prompt == {}
    assert loaded.taught
    assert not any(weight.requires_grad for weight in loaded.base.parameters())
    assert all(weight.requires_grad for weight in loaded.signal_parameters())
    logits = model(**BATCH, labels=IDS).logits
    assert torch.equal(loaded(**BATCH, labels=IDS).logits, logits)
    assert not torch.equal(model.base(**BATCH).logits, logits), "the signal changes them"
    _, reports = loaded.generate(**BATCH, target_words=[2, 7], landing="exact", return_report=True)
    assert [report.length for report in reports] == [2, 7], "it has the tokenizer of its base"
    save_prompt(folder, {"template": "title", "prefix": "", "max_source_tokens": 9})
    again, known = open_model(folder)
    again.save_pretrained(folder)
    loaded.save_pretrained(tmp_path / "copy")
    assert open_model(folder)[1] == known == {"template": "title", "prefix": "", "max_source_tokens": 9}
    assert files_in(tmp_path / "copy") == ["impatience.json", "impatience.safetensors"]
    assert torch.equal(LengthControlled.from_pretrained(tmp_path / "copy")(**BATCH, labels=IDS).logits, logits)


def test_a_base_that_may_have_been_changed_is_not_replaced_by_its_name(tmp_path: Path) -> None:
    model = signal_only(tmp_path / "base")
    next(model.base.parameters()).requires_grad_(True)
    with pytest.raises(OptionError, match=r"weights of the base can be trained\. Freeze them before training"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    model.base_name = ""
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()
    adapter = attach(adapted(), "glide")
    adapter.base_name = str(tmp_path / "base")
    adapter.base.requires_grad_(False)
    with pytest.raises(OptionError, match="adapter"):
        adapter.save_pretrained(tmp_path / "adapter")


def test_a_base_of_the_caller_stays_as_it_is_and_is_saved_whole(tmp_path: Path) -> None:
    signal_only(tmp_path / "base").save_pretrained(tmp_path / "model")
    own = tiny_model("llama", vocab_size=len(byte_level_tokenizer()))
    loaded = LengthControlled.from_pretrained(tmp_path / "model", base_model=own)
    assert all(weight.requires_grad for weight in own.parameters())
    loaded.save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_a_signal_is_not_saved_over_a_plain_model(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "other")
    before = files_in(tmp_path / "other")
    with pytest.raises(OptionError, match="holds a model, maybe the base"):
        signal_only(tmp_path / "base").save_pretrained(tmp_path / "other")
    assert files_in(tmp_path / "other") == before


def test_a_signal_is_not_saved_over_its_base(tmp_path: Path) -> None:
    model = signal_only(tmp_path)
    before = files_in(tmp_path)
    with pytest.raises(OptionError, match="base"):
        model.save_pretrained(tmp_path)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["one file", "shards"])
def test_a_signal_saved_over_a_whole_model_is_loaded_as_itself(options: dict[str, Any], tmp_path: Path) -> None:
    model, tokenizer = signal_only(tmp_path / "base"), byte_level_tokenizer()
    whole = attach(tiny_model("llama", vocab_size=len(tokenizer), seed=9), "glide", tokenizer=tokenizer)
    whole.save_pretrained(tmp_path / "model", **options)
    for folder in ("model", "fresh"):
        model.save_pretrained(tmp_path / folder)
    assert [file.name for file in (tmp_path / "model").glob("*.safetensors*")] == ["impatience.safetensors"]
    loaded = LengthControlled.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(**BATCH, labels=IDS).logits, model(**BATCH, labels=IDS).logits)
    assert files_fingerprint(tmp_path / "model") == files_fingerprint(tmp_path / "fresh")


def test_a_signal_beside_an_adapter_or_without_its_base_is_refused(tmp_path: Path) -> None:
    signal_only(tmp_path / "base").save_pretrained(tmp_path / "model")
    settings = tmp_path / "model" / "adapter_config.json"
    settings.write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base"), "peft_type": "LORA"}))
    with pytest.raises(ModelFilesError, match="two models, a signal alone and an adapter"):
        LengthControlled.from_pretrained(tmp_path / "model")
    settings.unlink()
    (tmp_path / "base").rename(tmp_path / "moved")
    for load in (LengthControlled.from_pretrained, open_model):
        with pytest.raises(ModelFilesError, match=r"No model folder at '.*base'"):
            load(tmp_path / "model")


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_base_changes_the_fingerprint_of_a_signal(file: str, tmp_path: Path) -> None:
    signal_only(tmp_path / "base").save_pretrained(tmp_path / "model")
    before, changed = files_fingerprint(tmp_path / "model"), tmp_path / "base" / file
    content = bytearray(changed.read_bytes())
    if file == "config.json":
        content = bytearray(json.dumps(json.loads(content) | {"rms_norm_eps": 0.25}).encode())
    else:
        content[-5] ^= 1
    changed.write_bytes(content)
    assert files_fingerprint(tmp_path / "model") != before


def test_a_changed_signal_changes_the_fingerprint_and_is_noticed(tmp_path: Path) -> None:
    model = signal_only(tmp_path / "base")
    model.save_pretrained(tmp_path / "model")
    seen = {files_fingerprint(tmp_path / "model")}
    weights = tmp_path / "model" / "impatience.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    seen.add(files_fingerprint(tmp_path / "model"))
    with pytest.raises(ModelFilesError, match="its bytes are not those that were saved"):
        LengthControlled.from_pretrained(tmp_path / "model")
    model.steering.amplitude = 0.5
    model.save_pretrained(tmp_path / "model")
    seen.add(files_fingerprint(tmp_path / "model"))
    assert len(seen) == 3
