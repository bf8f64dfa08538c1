"""The commands ``evaluate``, ``metrics``, ``protocols`` and ``strategies``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml

from impatience.errors import OptionError
from impatience.registry import Registry, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from impatience.reports import EvalReport

T = TypeVar("T")


def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A folder of `impatience train`, a model folder, or a packaged or hub name.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A file, or a name that `impatience datasets` lists, e.g. elife:impact.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which split of it.")] = "test",
    protocol: Annotated[str, typer.Option(help="Which lengths are asked for.")] = "reference",
    strategy: Annotated[str, typer.Option(help="How they are got; several are separated by commas.")] = "natural",
    unit: Annotated[str, typer.Option(help="tokens, words, characters or sentences.")] = "tokens",
    metrics: Annotated[
        str, typer.Option(help="What the texts are scored with, separated by commas.")
    ] = "length,ending,rouge,bleu",
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to; below it one for each strategy if there are several.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What tables call it; the model's name by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only so many examples.")] = None,
    batch_size: Annotated[int, typer.Option(help="Texts that are written at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Of everything random in the writing.")] = 0,
    bucket: Annotated[int, typer.Option(help="Width of the buckets of target lengths.")] = 50,
    template: Annotated[str | None, typer.Option(help="How a source is put to the model; as in training.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Text before every source; as in training.")] = None,
    max_source_tokens: Annotated[int | None, typer.Option(help="Sources are cut to this; as in training.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="The same as --set judge.url=….")] = None,
    judge_model: Annotated[str | None, typer.Option(help="The same as --set judge.model=….")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="OWNER.OPTION=VALUE",
            help="An option of the protocol, the strategy, one strategy or metric by its name, or generate, e.g. "
            "protocol.lengths=[10,50] or generate.no_loops=6; can be repeated.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
    score: Annotated[
        Path | None, typer.Option(help="Write nothing: score the texts of this folder again, with these metrics.")
    ] = None,
    no_score: Annotated[bool, typer.Option("--no-score", help="Write the texts, to be scored later.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, unless IMPATIENCE_DATA is set.")] = None,
) -> None:
    """Let a model write to length, and measure length, ending and quality."""
    from impatience.metrics import METRICS

    chosen, wanted = _names(strategy, "--strategy"), _names(metrics, "--metrics")
    judge = {"judge.url": judge_url, "judge.model": judge_model}
    asked = [*(changes or []), *(f"{key}={json.dumps(value)}" for key, value in judge.items() if value is not None)]
    options = _options(asked, ["protocol", protocol, "strategy", *chosen, *wanted, "generate"])
    scorers = [_build(METRICS, metric, options, metric) for metric in wanted]
    if score is not None:
        if model is not None:
            raise OptionError("--score takes texts that are written already: leave the model away.")
        from impatience import scoring

        _show([scoring.score(score, scorers, bucket=bucket)])
        return
    if model is None or data is None:
        raise OptionError("Name a model and its data: impatience evaluate MODEL --data elife:impact.")
    from transformers.utils import logging

    from impatience import evaluation
    from impatience.protocols import PROTOCOLS

    logging.disable_progress_bar()
    asker = _build(PROTOCOLS, protocol, options, "protocol")
    ways = {way: evaluation.seeded(way, seed, options.get("strategy", {}) | options.get(way, {})) for way in chosen}
    subject = evaluation.load_subject(
        model,
        template=template,
        prefix=prefix,
        max_source_tokens=max_source_tokens,
        generate=options.get("generate"),
    )
    folder = out or Path("reports") / (name or subject.name)
    reports = [
        evaluation.evaluate(
            subject,
            data,
            folder / way if len(ways) > 1 or out is None else folder,
            split=split,
            protocol=asker,
            strategy=writer,
            unit=unit,
            metrics=None if no_score else scorers,
            limit=limit,
            batch_size=batch_size,
            seed=seed,
            bucket=bucket,
            data_dir=data_dir,
            name=f"{name}-{way}" if name and len(ways) > 1 else name,
            resume=resume,
        )
        for way, writer in ways.items()
    ]
    if no_score:
        typer.echo(f"The texts are in {folder}. Score them with: impatience evaluate --score FOLDER")
    else:
        _show([report for report in reports if report is not None])


def _names(text: str, option: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or len(set(names)) < len(names):
        raise OptionError(f"{option} {text!r}: give at least one name, each once, separated by commas.")
    return names


def _options(changes: Sequence[str], owners: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read what was set, by owner."""
    found: dict[str, dict[str, Any]] = {}
    for change in changes:
        dotted, sign, text = change.partition("=")
        owner, dot, option = dotted.strip().partition(".")
        if not (sign and dot and owner and option):
            raise OptionError(f"--set {change}: give an owner, an option and a value, e.g. protocol.lengths=[10,50].")
        if owner not in owners:
            raise OptionError(
                f"--set {change}: nothing here is called {owner!r}.{nearest(owner, list(owners))} "
                f"There are: {', '.join(owners)}."
            )
        try:
            found.setdefault(owner, {})[option] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise OptionError(f"--set {change}: the value is not valid YAML.") from None
    return found


def _build(registry: Registry[type[T]], name: str, options: Mapping[str, dict[str, Any]], role: str) -> T:
    from impatience.recipes import build

    return build(registry[name], options.get(role, {}) | options.get(name, {}), name)


def _show(reports: Sequence[EvalReport]) -> None:
    from rich.console import Console

    Console().print(render(reports))
    for report in reports:
        typer.echo(f"{report.config['name']}: {report.folder}")


def render(reports: Sequence[EvalReport]) -> Table:
    """Return the aggregates of reports of the same metrics as a table, with 95 % intervals."""
    from rich.markup import escape
    from rich.table import Table

    from impatience.metrics import METRICS

    first = reports[0]
    what = f"{first.config['data']} {first.config['split']}, protocol {first.config['protocol']['name']}"
    table = Table(title=escape(f"{first.count} texts of {what}, in {first.config['unit']}"))
    table.add_column("")
    for report in reports:
        table.add_column(escape(str(report.config["name"])), justify="right")
    table.add_column("better")
    for metric in first.config["metrics"]:
        for aggregate in METRICS[metric].aggregates:
            cells = [_cell(report, aggregate.name, aggregate.percent) for report in reports]
            table.add_row(aggregate.name, *cells, aggregate.better)
        table.add_section()
    return table


def _cell(report: EvalReport, name: str, percent: bool) -> str:
    score = report.scores[name]
    value, low, high = (
        f"{number * 100:.1f}" if percent else f"{number:.2f}" for number in (score.value, score.low, score.high)
    )
    if value == "nan":
        return "–"
    return f"{value}{' %' if percent else ''} \\[{low}, {high}]"


def metrics() -> None:
    """List what texts can be scored with, and the options."""
    from impatience.metrics import METRICS

    _list(METRICS)


def protocols() -> None:
    """List the rules that say which lengths are asked for, and the options."""
    from impatience.protocols import PROTOCOLS

    _list(PROTOCOLS)


def strategies() -> None:
    """List the ways to get a text of some length, and the options."""
    from impatience.strategies import STRATEGIES

    _list(STRATEGIES)


def _list(registry: Registry[Any]) -> None:
    from dataclasses import fields

    width = max(map(len, registry))
    for name, kind in registry.items():
        typer.echo(f"{name:{width}}  {kind.summary}")
    typer.echo("\nOptions, as in --set NAME.OPTION=VALUE:")
    for name, kind in registry.items():
        for field in fields(kind):
            meaning = field.metadata.get("help", "")
            typer.echo(f"  {name}.{field.name} = {field.default!r}{': ' if meaning else ''}{meaning}")
