"""Specs, and the registry of data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from impatience.data import DATASETS, Spec, load
from impatience.errors import DataError, OptionError, UnknownNameError
from support.data_files import write

GOOD = '{"source": "s", "target": "t"}\n'


def test_specs_are_parsed() -> None:
    assert Spec.parse("elife:impact") == Spec("elife", part="impact")
    assert Spec.parse("data/A.CSV.GZ?id=url") == Spec("files", path=Path("data/A.CSV.GZ"), options={"id": "url"})
    assert Spec.parse("files:C:/x.jsonl").path == Path("C:/x.jsonl")
    assert Spec.parse("squad_qg?template=question&limit=3") == Spec("squad_qg", template="question", limit=3)
    assert Spec.parse("elife").has_split("test")
    assert not Spec.parse("squad").has_split("test")
    assert Spec.parse("a.{split}.csv").has_split("test")
    assert not Spec.parse("a.csv").has_split("train")
    named = {
        "compression",
        "lifebench_lite",
        "cnn_dailymail",
        "elife",
        "fairytale_qg",
        "files",
        "msdocs",
        "scitldr",
        "squad",
        "squad_qg",
        "xsum",
    }
    assert named <= set(DATASETS)
    assert all(dataset.summary and dataset.licence for dataset in DATASETS.values())


def test_spec_may_limit_its_examples() -> None:
    assert [example.id for example in load("toy?limit=3")] == [example.id for example in load("toy", limit=3)]
    assert len(load("toy?limit=3", limit=2)) == 2


@pytest.mark.parametrize("limit", ["0", "-1", "x", ""])
def test_bad_limit_is_refused(limit: str) -> None:
    with pytest.raises(OptionError, match="give 1 or more"):
        Spec.parse(f"toy?limit={limit}")


def test_bad_spec_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'elife'"):
        load("elive")
    with pytest.raises(OptionError, match=r"no part 'impct'\. Did you mean 'impact'"):
        load("elife:impct")
    with pytest.raises(OptionError, match=r"no split 'valid'\. Did you mean 'validation'"):
        load("scitldr", "valid")
    with pytest.raises(OptionError, match="has no parts"):
        load("scitldr:impact")
    with pytest.raises(OptionError, match=r"no option 'sauce'\. Did you mean 'source'"):
        load(write(tmp_path, "a.jsonl", GOOD) + "?sauce=x")
    wrong = {"": "names no data", "files:": "names no data", "a.csv?x": "name=value", "elife:": "after ':'"}
    for spec, message in wrong.items():
        with pytest.raises(OptionError, match=message):
            load(spec)
    for spec in ("folder/train.txt", "files:train", "files:a.jsonl.bz2"):
        with pytest.raises(DataError, match=r"ends in \.jsonl"):
            load(spec)
    with pytest.raises(DataError, match="There is no file"):
        load(f"{tmp_path}/none.jsonl.zst")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        load(f"{tmp_path}/folder.jsonl")
    with pytest.raises(DataError, match=r"no usable example.*The first problem.*row 1"):
        load(write(tmp_path, "b.jsonl", "{}"), skip_bad=True)


def test_import_loads_no_heavy_library() -> None:
    code = "import sys, impatience.data as d; list(d.DATASETS.values())\n"
    code += "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'matplotlib') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
