"""The progress bar counts always, and is shown only on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from impatience.cli.progress_bar import ProgressBar


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_counts_always_and_is_shown_only_on_a_terminal(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for terminal in (True, False):
        monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
        with ProgressBar(40, quiet=quiet) as bar:
            bar.count(25)
            bar.set(31, 40, "MAE 0.25")
        assert bar.done == 31
        shown = capsys.readouterr().err
        assert ("31/40" in shown and "MAE 0.25" in shown) == (terminal and not quiet), shown
