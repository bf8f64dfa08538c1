"""What is opened by llama.cpp, what is refused, and adapters of PEFT on a GGUF base."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from impatience import LengthControlled, Request, Unit, Writer, attach, load
from impatience.backends import choose_backend
from impatience.backends.llama_cpp import library
from impatience.backends.llama_cpp.export import export, export_model
from impatience.backends.llama_cpp.files import control_file
from impatience.backends.llama_cpp.model import GgufModel
from impatience.backends.llama_cpp.safetensors_files import read_tensors
from impatience.backends.llama_cpp.tokenizer import GgufTokenizer
from impatience.errors import ModelFilesError, OptionError, UnsupportedModelError
from impatience.lengths import Landing
from impatience.sources import PACKAGED, PackagedModel, gguf_decoder
from impatience.sources.packaged import file_path
from impatience.sources.whole_file import WholeFile
from support.gguf_models import LAYERS, PROMPT, Pair, new_pair, tiny_steered
from support.toys import CORPUS, byte_level_tokenizer, sentencepiece_tokenizer, tiny_model


def requests() -> list[Request]:
    return [Request(f"{n}", CORPUS[n], 5 + n, Unit.WORDS, landing) for n, landing in enumerate(Landing)]


def texts(writer: Writer) -> list[str]:
    return [result.text for result in writer.write_many(requests())]


def test_a_gguf_file_goes_to_llama_cpp_and_a_folder_to_transformers(llama: Pair, toy_folder: Path) -> None:
    assert choose_backend(llama.file).title == "llama.cpp"
    assert choose_backend(str(toy_folder)).title == "transformers"
    with pytest.raises(OptionError, match=r"was exported for llama\.cpp"):
        choose_backend(llama.file, "transformers")
    with pytest.raises(OptionError, match="export it with `impatience export`"):
        choose_backend(toy_folder, "llama.cpp")
    with pytest.raises(OptionError, match=r"Did you mean 'llama\.cpp'"):
        choose_backend(llama.file, "llama.cp")
    with pytest.raises(OptionError, match=r"no file 'nowhere\.gguf'"):
        choose_backend("nowhere.gguf", "llama.cpp")


def test_a_missing_library_says_what_to_install(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    find = library.library.__wrapped__
    monkeypatch.setattr(library, "PACKAGE", "no_such_package")
    with pytest.raises(OptionError, match="needs the package"):
        find()
    monkeypatch.setattr(library, "library", find)
    with pytest.raises(OptionError, match="needs the package"):
        choose_backend(llama.file, "llama.cpp")
    monkeypatch.setenv(library.VARIABLE, str(llama.file))
    with pytest.raises(OptionError, match=r"is no llama\.cpp library"):
        find()


def test_a_library_of_another_layout_is_refused(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library.library().path
    with monkeypatch.context() as changed:
        changed.setattr(library, "_CONTEXT_DEFAULTS", (1, 2, 3, 4))
        with pytest.raises(OptionError, match="lays out the parameters"):
            library.Library(path)
    gc.collect()
    assert GgufModel(llama.file).layers == LAYERS, "it still has a function to log with"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "is no GGUF file"),
        (lambda content: b"a text", "is no GGUF file"),
        (lambda content: content[: len(content) // 2], "damaged, not complete"),
        (lambda content: content[:40], "damaged, not complete"),
        (lambda content: content.replace(b"llama", b"lxama"), "does not know"),
    ],
)
def test_a_damaged_file_is_refused(llama: Pair, tmp_path: Path, damage: Any, message: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(damage(llama.file.read_bytes()))
    with pytest.raises(ModelFilesError, match=message):
        load(file)


def test_signal_and_weights_belong_together(llama: Pair, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    shutil.copy(llama.file, file)
    with pytest.raises(ModelFilesError, match="is not beside it"):
        load(file)
    beside = tmp_path / "m.impatience.safetensors"
    beside.write_bytes(b"nothing")
    with pytest.raises(ModelFilesError, match="damaged"):
        load(file)
    other = tmp_path / "other"
    other.mkdir()
    model = tiny_steered()
    export_model(attach(model.detach(), "none", tokenizer=model.tokenizer), {}, other / "m.gguf")
    shutil.copy(control_file(llama.file), other / "m.impatience.safetensors")
    with pytest.raises(ModelFilesError, match="belongs to another GGUF file"):
        load(other / "m.gguf")
    wide = new_pair(tmp_path / "wide", hidden_size=64)
    shutil.copy(control_file(llama.file), wide.file.with_suffix(".impatience.safetensors"))
    with pytest.raises(ModelFilesError, match="belongs to another GGUF file"):
        load(wide.file)
    export_model(tiny_steered(), PROMPT | {"max_source_tokens": 99}, tmp_path / "second.gguf")
    shutil.copy(control_file(llama.file), control_file(tmp_path / "second.gguf"))
    with pytest.raises(ModelFilesError, match="or has changed"):
        load(tmp_path / "second.gguf")


def test_what_llama_cpp_cannot_run_is_not_exported(tmp_path: Path, toy_folder: Path) -> None:
    out, tokenizer = tmp_path / "m.gguf", byte_level_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": LAYERS}

    def refused(kind: str, message: str, method: str = "glide", **options: Any) -> None:
        model = attach(tiny_model(kind, **sizes), method, tokenizer=options.pop("tokenizer", tokenizer), **options)
        with pytest.raises((UnsupportedModelError, OptionError), match=message):
            export_model(model, {}, out)

    refused("gpt2", "type 'gpt2' cannot be exported")
    refused("llama", "enters at layer 0", layers="all")
    refused("llama", "enters at the decoder's input", layers=None)
    refused("llama", "--base", layers=[2], tokenizer=sentencepiece_tokenizer())
    with pytest.raises(OptionError, match=r"ends in \.gguf"):
        export(toy_folder, tmp_path / "m.bin")
    with pytest.raises(OptionError, match="give one of f32"):
        export(toy_folder, out, kind="q2")
    out.write_bytes(b"mine")
    with pytest.raises(OptionError, match="exists"):
        export(toy_folder, out)
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_a_full_disk_leaves_no_half_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("impatience.backends.llama_cpp.export._write_control", fail)
    with pytest.raises(ModelFilesError, match="No space left"):
        export_model(tiny_steered(), PROMPT, tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_can_come_from_another_file(llama: Pair, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    export_model(llama.torch_model, PROMPT, out, kind="f32", base=llama.file)
    assert texts(load(out)) == texts(llama.writer)


def test_texts_get_the_ids_of_transformers(llama: Pair) -> None:
    ours, theirs = llama.writer.tokenizer, llama.torch_model.tokenizer
    for text in (*CORPUS, "", " ", "a\nb", "<|end|> <|begin|>", "x" * 500):
        for split in (True, False):
            options = {"add_special_tokens": False, "split_special_tokens": split}
            ids = theirs(text, **options)["input_ids"]
            assert ours(text, **options)["input_ids"] == ids
            assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
    chats = [[{"role": "user", "content": text}] for text in CORPUS[:3]]
    written = theirs.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(chats) == written
    assert llama.writer.model.vocabulary.special_ids == llama.torch_model.vocabulary.special_ids
    assert llama.writer.model.vocabulary.pieces == llama.torch_model.vocabulary.pieces


def test_a_chat_template_runs_in_a_sandbox(llama: Pair) -> None:
    tokenizer = GgufTokenizer(GgufModel(llama.file))
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(Exception, match="unsafe"):
        tokenizer.apply_chat_template([[{"role": "user", "content": "x"}]])


@pytest.fixture
def tiny_base(llama: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file without a signal, which is the packaged model tiny-base, too; it cannot be converted."""

    def convert(*_: Any, **__: Any) -> None:
        raise AssertionError("it was converted")

    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    file = new_pair(tmp_path / "base", method="none").file
    content = file.read_bytes()
    whole = WholeFile(hashlib.sha256(content).hexdigest(), len(content), "org/tiny", "tiny.gguf")
    packaged = PackagedModel("tiny-base", (), {}, convert, "MIT", 1, 1, whole=whole)
    monkeypatch.setitem(PACKAGED, "tiny-base", packaged)
    monkeypatch.setattr(gguf_decoder, "convert", convert)
    file_path(packaged).parent.mkdir(parents=True)
    file_path(packaged).write_bytes(content)
    return file


def save_taught(model: LengthControlled, folder: Path) -> LengthControlled:
    """Save a model with a random signal, and the settings of its prompts."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    model.taught = True
    model.eval().save_pretrained(folder)
    (folder / "prompt.json").write_text(json.dumps(PROMPT))
    return model


@pytest.fixture
def adapted(tiny_base: Path) -> Any:
    """Return a function that trains nothing, but saves a model with a random LoRA adapter on a packaged GGUF file."""

    def save(folder: Path, layers: Any = (2, 3), **options: Any) -> Any:
        plain = tiny_steered(method="none")
        config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", init_lora_weights=False, **options)
        base = get_peft_model(plain.detach(), config)
        base.peft_config["default"].base_model_name_or_path = "tiny-base"
        base.peft_config["default"].init_lora_weights = True  # as after training
        model = attach(base, "glide", tokenizer=plain.tokenizer, layers=list(layers), rank=8)
        return save_taught(model, folder)

    return save


def save_signal(folder: Path, base_name: str, layers: Any = (2, 3)) -> LengthControlled:
    """Save a random signal alone, on a base that is named."""
    plain = tiny_steered(method="none")
    model = attach(plain.detach(), "glide", tokenizer=plain.tokenizer, layers=list(layers), rank=8)
    model.base.requires_grad_(False)
    model.base_name = base_name
    return save_taught(model, folder)


@pytest.mark.parametrize("packaged", [True, False], ids=["packaged", "file"])
def test_a_signal_alone_on_a_gguf_base_needs_no_conversion(packaged: bool, tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    model = save_signal(folder, "tiny-base" if packaged else str(tiny_base))
    assert sorted(file.name for file in folder.iterdir()) == [
        "impatience.json", "impatience.safetensors", "prompt.json",
    ]  # fmt: skip
    assert choose_backend(folder).title == "llama.cpp"
    writer = load(folder)
    assert writer.model.backend == "llama_cpp"
    assert texts(writer) == texts(Writer(model, PROMPT))
    assert texts(writer) != texts(Writer(tiny_steered(method="none"), PROMPT))
    seen = {writer.generator.fingerprint()}
    for name, change in (("prompt.json", {"max_source_tokens": 299}), ("impatience.json", {"amplitude": 0.5})):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | change))
        seen.add(load(folder).generator.fingerprint())
    assert len(seen) == 3


def test_a_signal_alone_whose_bytes_changed_is_noticed(tiny_base: Path, tmp_path: Path) -> None:
    save_signal(tmp_path / "mine", str(tiny_base))
    file = tmp_path / "mine" / "impatience.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 64
    file.write_bytes(content)
    with pytest.raises(ModelFilesError, match="its bytes are not those that were saved"):
        load(tmp_path / "mine")
    file.unlink()
    with pytest.raises(ModelFilesError, match=r"for the layers \[\]"):
        load(tmp_path / "mine")


def test_a_signal_alone_that_llama_cpp_cannot_run_goes_to_transformers_or_is_refused(
    tiny_base: Path, tmp_path: Path, toy_folder: Path
) -> None:
    folder = tmp_path / "mine"
    save_signal(folder, str(toy_folder))
    assert choose_backend(folder).title == "transformers"
    with pytest.raises(OptionError, match="which comes in no GGUF file: export the model"):
        choose_backend(folder, "llama.cpp")
    save_signal(folder, "tiny-base", layers=(0, 2))
    assert choose_backend(folder).title == "transformers"
    with pytest.raises(OptionError, match="enters before layer 2"):
        choose_backend(folder, "llama.cpp")
    save_signal(folder, str(tiny_base))
    tiny_base.rename(moved := tiny_base.with_name("moved.gguf"))
    with pytest.raises(OptionError, match=r"no file '.*llama-none\.gguf'.*The model in .*mine is on it"):
        choose_backend(folder, "llama.cpp")
    with pytest.raises(ModelFilesError, match=r"no file '.*llama-none\.gguf'"):
        load(folder)
    moved.rename(tiny_base)
    settings = {"base_model_name_or_path": "tiny-base", "peft_type": "LORA", "init_lora_weights": True}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelFilesError, match="two models, a signal alone and an adapter"):
        load(folder)


def test_an_adapter_on_a_gguf_base_needs_no_export(adapted: Any, tmp_path: Path) -> None:
    model = adapted(tmp_path / "mine")
    assert choose_backend(tmp_path / "mine").title == "llama.cpp"
    writer = load(tmp_path / "mine")
    assert texts(writer) == texts(Writer(model, PROMPT))
    assert texts(writer) != texts(Writer(tiny_steered(method="none"), PROMPT))
    assert texts(load(tmp_path / "mine")) == texts(writer), "the converted adapter is kept"
    print_before = writer.generator.fingerprint()
    adapted(tmp_path / "mine", lora_dropout=0.0)
    assert load(tmp_path / "mine").generator.fingerprint() != "" != print_before


def test_changed_bytes_of_an_adapter_are_noticed(adapted: Any, tmp_path: Path) -> None:
    adapted(tmp_path / "mine")
    for name in ("adapter_model.safetensors", "impatience.safetensors"):
        file = tmp_path / "mine" / name
        content = bytearray(before := file.read_bytes())
        content[-5] ^= 64
        file.write_bytes(content)
        with pytest.raises(ModelFilesError, match="its bytes are not those that were saved"):
            load(tmp_path / "mine")
        file.write_bytes(before)


def test_a_signal_that_is_lost_or_not_whole_is_noticed(adapted: Any, tmp_path: Path) -> None:
    adapted(tmp_path / "mine")
    settings = json.loads((tmp_path / "mine" / "impatience.json").read_text())
    (tmp_path / "mine" / "impatience.json").write_text(json.dumps(settings | {"crc32": {}}))
    weights = load_file(tmp_path / "mine" / "impatience.safetensors")
    save_file({name: weights[name] for name in weights if ".2." in name}, tmp_path / "mine" / "impatience.safetensors")
    with pytest.raises(ModelFilesError, match=r"for the layers \[2\], and its settings name \[2, 3\]"):
        load(tmp_path / "mine")
    (tmp_path / "mine" / "impatience.safetensors").unlink()
    with pytest.raises(ModelFilesError, match=r"for the layers \[\]"):
        load(tmp_path / "mine")


def test_a_folder_that_lacks_a_file_is_refused(adapted: Any, tmp_path: Path) -> None:
    adapted(tmp_path / "mine")
    control, prompt = tmp_path / "mine" / "impatience.json", tmp_path / "mine" / "prompt.json"
    settings = json.loads(control.read_text())
    for change, message in (
        ({"format": 2}, "format is 2"),
        ({"conventions": "authors"}, "conventions is 'authors'"),
        ({"prompt": sorted([*PROMPT, "tasks"])}, "has lost tasks"),
    ):
        control.write_text(json.dumps(settings | change))
        with pytest.raises(ModelFilesError, match=message):
            load(tmp_path / "mine")
    control.write_text(json.dumps(settings | {"prompt": sorted(PROMPT)}))
    load(tmp_path / "mine")
    prompt.unlink()
    with pytest.raises(ModelFilesError, match="has lost max_source_tokens"):
        load(tmp_path / "mine")
    control.unlink()
    with pytest.raises(ModelFilesError, match=r"impatience\.json is missing"):
        load(tmp_path / "mine")


@pytest.mark.parametrize("file", ["adapter_config.json", "impatience.json", "prompt.json"])
def test_changed_settings_change_the_fingerprint(file: str, adapted: Any, tmp_path: Path) -> None:
    adapted(tmp_path / "mine")
    before = load(tmp_path / "mine").generator.fingerprint()
    changes = {"adapter_config.json": {"lora_alpha": 13}, "impatience.json": {"amplitude": 0.5}, "prompt.json": {}}
    content = json.loads((tmp_path / "mine" / file).read_text())
    (tmp_path / "mine" / file).write_text(json.dumps(content | changes[file], indent=1))
    assert load(tmp_path / "mine").generator.fingerprint() != before


def test_an_adapter_that_llama_cpp_cannot_run_goes_to_transformers(adapted: Any, tmp_path: Path) -> None:
    for name, options in {"dora": {"use_dora": True}, "early": {"layers": (0, 2)}}.items():
        adapted(tmp_path / name, **options)
        assert choose_backend(tmp_path / name).title == "transformers"
    with pytest.raises(OptionError, match="enters before layer 2"):
        choose_backend(tmp_path / "early", "llama.cpp")
    with pytest.raises(OptionError, match="use_dora"):
        choose_backend(tmp_path / "dora", "llama.cpp")


def test_adapters_of_other_weights_go_to_transformers(adapted: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    adapted(folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    others = {
        "base_model.model.lm_head.lora_A.weight": tensors[name],
        "base_model.model.model.embed_tokens.weight": tensors[name],
        "base_model.model.model.layers.0.input_layernorm.lora_A.weight": tensors[name],
        name: tensors[name].to(torch.float8_e4m3fn),
    }
    for other, weight in others.items():
        save_file(tensors | {other: weight.clone()}, file)
        assert choose_backend(folder).title == "transformers"
        with pytest.raises(OptionError, match=r"no place for the weight|no weights of the type F8_E4M3"):
            choose_backend(folder, "llama.cpp")
    file.write_bytes(b"nothing")
    with pytest.raises(ModelFilesError, match="is damaged"):
        load(folder)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_adapters_of_any_precision_run(adapted: Any, tmp_path: Path, kind: torch.dtype) -> None:
    folder = tmp_path / "mine"
    model = adapted(folder)
    parameters = {name: weight for name, weight in model.named_parameters() if "lora_" in name}
    for weight in parameters.values():
        weight.data = weight.data.to(kind).to(weight.dtype)
    model.save_pretrained(folder)
    (folder / "prompt.json").write_text(json.dumps(PROMPT))
    before = texts(load(folder))
    assert before == texts(Writer(model, PROMPT))
    file = folder / "adapter_model.safetensors"
    save_file({name: weight.to(kind) for name, weight in load_file(file).items()}, file)
    settings = json.loads((folder / "impatience.json").read_text())
    del settings["crc32"]
    (folder / "impatience.json").write_text(json.dumps(settings))
    assert choose_backend(folder).title == "llama.cpp"
    assert texts(load(folder)) == before


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    whole = {"a": values, "empty": torch.zeros(0, 4, dtype=torch.bfloat16), "b": values.double()}
    save_file(whole, tmp_path / "w.safetensors", {"made": "here"})
    tensors, metadata = read_tensors(tmp_path / "w.safetensors")
    assert metadata == {"made": "here"}
    assert {name: (str(array.dtype), array.shape) for name, array in tensors.items()} == {
        "a": ("float32", (3, 5)),
        "b": ("float64", (3, 5)),
        "empty": ("float32", (0, 4)),
    }
    assert tensors["a"].tolist() == values.tolist()


def test_writing_needs_no_torch(llama: Pair, tmp_path: Path) -> None:
    article = tmp_path / "article.txt"
    article.write_text(" ".join(CORPUS[:3]))
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'peft'): sys.modules[name] = None\n"
        "from impatience.cli import main\n"
        "main()\n"
    )
    command = ["write", str(article), "--words", "9", "--exact", "--json", "--model", str(llama.file)]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert (written["length"], written["backend"]) == (9, "llama.cpp")
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"id": str(n), "text": CORPUS[n]}) + "\n" for n in range(4)))
    command = ["batch", str(rows), str(out), "--words", "5", "--model", str(llama.file), "--quiet"]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 4


def test_a_request_that_is_too_long_is_refused(llama: Pair) -> None:
    from impatience.errors import TargetError

    with pytest.raises(TargetError, match="more than this model can write"):
        llama.writer.write_many([replace(requests()[0], target=5000)])
    long = llama.writer.write_many([Request("long", " ".join(CORPUS), 6, Unit.WORDS, Landing.EXACT)])[0]
    assert long.length == 6
    assert long.parts > 1


def test_a_model_is_freed_after_its_contexts_also_in_a_cycle_of_references(
    llama: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    for name in ("llama_free", "llama_model_free"):
        monkeypatch.setitem(library.library()._functions, name, lambda _, name=name: freed.append(name))
    for order in range(2):
        model: Any = GgufModel(llama.file)
        model.contexts = [model.new_context(8, steered=False) for _ in range(2)]
        if order:  # the collector takes what it has not moved yet first
            gc.collect()
        freed.clear()
        model = None
        gc.collect()
        assert freed == ["llama_free", "llama_free", "llama_model_free"]


def test_a_gpu_takes_models_that_transformers_can_run(monkeypatch: pytest.MonkeyPatch, llama: Pair) -> None:
    name = "qwen2.5-coder-0.5b-instruct"
    assert choose_backend(name).title == "llama.cpp"
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    assert choose_backend(name).title == "transformers"
    assert choose_backend(llama.file).title == "llama.cpp"
