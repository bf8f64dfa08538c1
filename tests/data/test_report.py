"""Samples, statistics and figures of data."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from impatience.data import length_stats, load, show_examples
from impatience.errors import OptionError
from support.data_files import as_jsonl, write
from support.toys import byte_level_tokenizer


def printed(renderable: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_stats_count_every_unit_by_part(built: Path) -> None:
    tokenizer = byte_level_tokenizer()
    found = length_stats("elife:all", "test", built, tokenizer)
    assert list(found.lengths) == ["all", "title", "impact", "assessment", "abstract"]
    assert found.units == ["words", "characters", "sentences", "tokens"]
    source = found.spread("source", "words", "assessment")
    assert (source.count, source.min, source.p50, source.max) == (1, 4, 4, 4)
    everything = found.spread("target", "characters")
    lengths = [len(e.target) for e in load("elife", "test", data_dir=built)]
    assert (everything.count, everything.min, everything.max) == (6, min(lengths), max(lengths))
    assert everything.mean == pytest.approx(sum(lengths) / 6)
    tokens = found.lengths["impact"]["target"]["tokens"]
    assert tokens == [len(tokenizer(text)["input_ids"]) for text in ("Impact.", "I.")]
    json.dumps(found.to_dict())
    assert "assessment" in printed(found.render())


def test_examples_are_shown_without_markup(tmp_path: Path) -> None:
    source = "[bold]text[/bold] " * 60
    row = {"source": source, "target": "[red]", "note": "§ " * 700}
    text = printed(show_examples(write(tmp_path, "a.jsonl", as_jsonl([row])), n=1))
    assert text.count("§") == 300
    assert all(piece in text for piece in ("[bold]text[/bold]", "[red]", "479 characters more"))


@pytest.mark.parametrize("lengths", [[3, 4, 4, 9], [1, 2, 50, 900], [5]])
def test_figure_has_a_panel_for_each_unit(lengths: list[int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"source": "s", "target": "word " * length} for length in lengths]
    figure = length_stats(write(tmp_path, "a.jsonl", as_jsonl(rows))).figure()
    assert [axes.get_label() for axes in figure.axes] == ["words", "characters", "sentences"]
    figure.savefig(io.BytesIO(), format="png")
    bars = figure.axes[0].patches[0].get_path().vertices
    assert bars[:, 0].min() <= min(lengths) <= max(lengths) <= bars[:, 0].max()


def test_figure_needs_matplotlib(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = length_stats("elife", "test", built)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r'needs the package matplotlib: pip install -e "\.\[eval\]"'):
        found.figure()
