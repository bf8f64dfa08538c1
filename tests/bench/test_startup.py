"""The bench of a new process: it reports all stages. Times are not asserted."""

from __future__ import annotations

import json

import pytest

from impatience.bench import startup
from impatience.errors import OptionError


@pytest.mark.slow
def test_a_new_process_reports_the_time_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = startup.run_once("toy-llama", 3)
    assert len(stages) == len(startup.STAGES)
    assert all(seconds > 0 for seconds in stages)
    monkeypatch.setattr(startup, "run_once", lambda model, words: stages)
    report = startup.start("toy-llama", 3, repeats=2)
    assert report.first_text.median == pytest.approx(sum(stages[:-1]))
    assert json.loads(json.dumps(report.to_dict()))["seconds"]["model"] == [stages[4]] * 2
    assert [row[0] for row in report.table().rows] == list(startup.STAGES.values())
    assert "toy-llama" in report.table().title


@pytest.mark.slow
def test_an_unknown_model_and_a_single_run_are_refused() -> None:
    with pytest.raises(OptionError, match="could not write a text"):
        startup.run_once("no such model", 3)
    with pytest.raises(OptionError, match="at least 2 repeats"):
        startup.start("toy-llama", repeats=1)
