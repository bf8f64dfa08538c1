"""Samples of data, and the lengths of its texts in every unit, as a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from impatience.data.base import Example, Spec, load
from impatience.registry import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CHARACTERS = 600
ALL = "all"
SIDES = ("source", "target")
_INK, _SOFT, _FAINT = "#1f2933", "#616e7c", "#d5dbe1"
_COLORS = ("#2c6e9b", "#4aa3a2", "#e0a030", "#dd6b3d", "#c0324a", "#6b5b95", "#8a9a5b")


def show_examples(spec: str, split: str = "train", n: int = 3, data_dir: Path | None = None) -> Group:
    """Return the first ``n`` examples for the terminal, with long sources cut."""
    return Group(*(_panel(example) for example in load(spec, split, data_dir=data_dir, limit=n)))


def _panel(example: Example) -> Panel:
    source = Text(example.source[:SHOWN_CHARACTERS])
    if (hidden := len(example.source) - SHOWN_CHARACTERS) > 0:
        source.append(f" … {hidden:,} characters more", style="dim")
    meta = ", ".join(f"{name}: {str(value)[:SHOWN_CHARACTERS]}" for name, value in example.meta.items())
    parts = [("source", source), ("target", Text(example.target, style="bold")), ("meta", Text(meta, style="dim"))]
    grid = Table.grid(padding=(0, 2))
    for name, text in parts:
        if text.plain:
            grid.add_row(Text(name, style="cyan"), text)
    return Panel(grid, title=Text(example.id), title_align="left")


@dataclass(frozen=True)
class Spread:
    """Summary of the lengths of some texts."""

    count: int
    mean: float
    min: int
    p5: float
    p50: float
    p95: float
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Spread:
        """Summarize lengths; there must be at least one."""
        import numpy as np

        p5, p50, p95 = (float(value) for value in np.percentile(lengths, [5, 50, 95]))
        return cls(len(lengths), float(np.mean(lengths)), min(lengths), p5, p50, p95, max(lengths))


@dataclass(frozen=True)
class DataStats:
    """Lengths of the texts of a data set."""

    spec: str
    split: str
    lengths: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]  # of each example, by part, side and unit

    @property
    def units(self) -> list[str]:
        """The counted units."""
        return list(self.lengths[ALL]["target"])

    def spread(self, side: str, unit: str, part: str = ALL) -> Spread:
        """Return the summary of one side in one unit."""
        return Spread.of(self.lengths[part][side][unit])

    def to_dict(self) -> dict[str, Any]:
        """Return every summary, for JSON."""
        spreads = {
            part: {side: {unit: asdict(self.spread(side, unit, part)) for unit in self.units} for side in SIDES}
            for part in self.lengths
        }
        return {"spec": self.spec, "split": self.split, "lengths": spreads}

    def render(self) -> Table:
        """Return a table for the terminal."""
        table = Table(title=f"{self.spec}, {self.split}: length of its texts")
        for heading in ("part", "text", "unit"):
            table.add_column(heading)
        for heading in ("examples", "min", "p5", "p50", "p95", "max", "mean"):
            table.add_column(heading, justify="right")
        for part in self.lengths:
            for side in SIDES:
                for unit in self.units:
                    spread = self.spread(side, unit, part)
                    numbers = (spread.min, spread.p5, spread.p50, spread.p95, spread.max)
                    table.add_row(
                        part,
                        side,
                        unit,
                        f"{spread.count:,}",
                        *(f"{n:,.0f}" for n in numbers),
                        f"{spread.mean:,.1f}",
                        end_section=unit == self.units[-1] and side == SIDES[-1],
                    )
        return table

    def figure(self) -> Figure:
        """Draw the lengths of the targets: one histogram for each unit, one line for each part."""
        require("matplotlib", "A figure")
        from matplotlib.figure import Figure

        width, height = 0.5 + 3.6 * len(self.units), 4.0
        figure = Figure(figsize=(width, height), facecolor="white")
        title = f"How long are the targets of {self.spec}?"
        count = len(self.lengths[ALL]["target"][self.units[0]])
        caption = f"{self.split}, {count:,} examples; the mark is the median"
        figure.text(0.25 / width, 1 - 0.37 / height, title, size=17, weight="bold", color=_INK)
        figure.text(0.25 / width, 1 - 0.66 / height, caption, size=11.5, color=_SOFT)
        grid = figure.add_gridspec(
            1, len(self.units), left=0.3 / width, right=1 - 0.3 / width, top=1 - 1.25 / height, bottom=0.45 / height
        )
        for number, unit in enumerate(self.units):
            self._draw(figure.add_subplot(grid[number], label=unit), unit)
        if len(self.lengths) > 1:
            figure.axes[0].legend(frameon=False, fontsize=9.5, labelcolor=_INK)
        return figure

    def _draw(self, axes: Any, unit: str) -> None:
        """Draw one histogram, on a logarithmic scale if long targets are many times as long as short ones."""
        import numpy as np

        spread = self.spread("target", unit)
        wide = spread.p95 > 8 * max(1.0, spread.p5)
        ends = (max(1, spread.min), spread.max + 1)
        # Lengths are whole numbers: each must lie inside a bar, and no bar between two of them.
        steps = np.geomspace(*ends, 50) if wide else np.arange(*ends, max(1, (ends[1] - ends[0]) // 50))
        edges = np.append(np.unique(steps.round()), ends[1]) - 0.5
        parts = [part for part in self.lengths if part != ALL] or [ALL]
        for part, color in zip(parts, cycle(_COLORS), strict=False):
            lengths = self.lengths[part]["target"][unit]
            axes.hist(lengths, edges, histtype="stepfilled", alpha=0.35, color=color, label=part)
            axes.hist(lengths, edges, histtype="step", color=color, linewidth=1.2)
            axes.plot(np.median(lengths), 0, marker="^", color=color, markersize=8, clip_on=False, zorder=5)
        if wide:
            axes.set_xscale("log")
            axes.minorticks_off()
            ticks = [step * 10**power for power in range(6) for step in (1, 3)]
            axes.set_xticks([tick for tick in ticks if edges[0] <= tick <= edges[-1]])
        else:
            axes.locator_params(axis="x", nbins=6, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_title(unit, size=12, color=_INK, loc="left")
        axes.set_yticks([])
        axes.tick_params(colors=_SOFT, labelsize=10)
        for name, spine in axes.spines.items():
            spine.set_visible(name == "bottom")
            spine.set_color(_FAINT)


def length_stats(spec: str, split: str = "train", data_dir: Path | None = None, tokenizer: Any = None) -> DataStats:
    """Measure the texts of a data set; tokens are counted only with a tokenizer."""
    examples = load(spec, split, data_dir=data_dir)
    dataset = Spec.parse(spec).dataset
    parts = [example.meta[dataset.part_key] for example in examples] if dataset.part_key else []
    names = [name for name in dataset.parts if name in set(parts)]
    counters = _counters(tokenizer)
    # A source that several targets share is measured once.
    known: dict[str, tuple[int, ...]] = {}
    counts: dict[str, list[tuple[int, ...]]] = {side: [] for side in SIDES}
    for example in examples:
        for side in SIDES:
            text = getattr(example, side)
            if text not in known:
                known[text] = tuple(count(text) for count in counters.values())
            counts[side].append(known[text])

    def lengths(part: str | None) -> dict[str, dict[str, list[int]]]:
        chosen = [i for i in range(len(examples)) if part is None or parts[i] == part]
        return {
            side: {unit: [counts[side][i][number] for i in chosen] for number, unit in enumerate(counters)}
            for side in SIDES
        }

    several = len(names) > 1
    return DataStats(spec, split, {ALL: lengths(None)} | {name: lengths(name) for name in names if several})


def _counters(tokenizer: Any) -> dict[str, Callable[[str], int]]:
    from impatience.lengths import Unit, measure
    from impatience.user_text import encode_text
    from impatience.vocabulary import Vocabulary

    counters: dict[str, Callable[[str], int]] = {
        str(unit): partial(measure, unit=unit) for unit in (Unit.WORDS, Unit.CHARACTERS, Unit.SENTENCES)
    }
    if tokenizer is not None:
        vocabulary = Vocabulary(len(tokenizer), (), tokenizer)

        def tokens(text: str) -> int:
            return vocabulary.count(encode_text(tokenizer, text, add_special_tokens=False), Unit.TOKENS)

        counters[str(Unit.TOKENS)] = tokens
    return counters
