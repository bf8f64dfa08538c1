"""The bench of a new process: it reports all stages. Times are not asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from impatience.bench import startup
from impatience.errors import OptionError
from support.gguf_models import new_pair


@pytest.mark.slow
def test_a_new_process_reports_the_time_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = startup.run_once("toy-llama", 3, "transformers")
    assert list(stages) == list(startup.STAGES)
    assert all(seconds > 0 for seconds in stages.values())
    monkeypatch.setattr(startup, "run_once", lambda model, words, backend: stages)
    report = startup.start("toy-llama", 3, repeats=2)
    assert report.first_text.median == pytest.approx(sum(stages.values()) - stages["rest"])
    assert json.loads(json.dumps(report.to_dict()))["seconds"]["model"] == [stages["model"]] * 2
    assert [row[0] for row in report.table().rows] == list(startup.STAGES.values())
    assert "toy-llama" in report.table().title
    assert "torch 2" in report.caption()
    assert "llama.cpp" not in report.caption()


@pytest.mark.slow
def test_a_process_with_llama_cpp_imports_no_torch(tmp_path: Path) -> None:
    report = startup.start(str(new_pair(tmp_path).file), 3, repeats=2)
    assert list(report.seconds) == [stage for stage in startup.STAGES if stage not in ("torch", "transformers")]
    assert report.table().rows[0][0] == "start Python and the command line"
    assert (report.environment["device"], report.environment["libraries"]) == ("cpu", ["llama.cpp"])
    assert "llama.cpp in xllamacpp" in report.caption()
    assert "torch" not in report.caption()


@pytest.mark.slow
def test_an_unknown_model_and_a_single_run_are_refused() -> None:
    with pytest.raises(OptionError, match="could not write a text"):
        startup.run_once("no such model", 3, "transformers")
    with pytest.raises(OptionError, match="at least 2 repeats"):
        startup.start("toy-llama", repeats=1)
    with pytest.raises(OptionError, match="export it with"):
        startup.start("toy-llama", backend="llama.cpp")
