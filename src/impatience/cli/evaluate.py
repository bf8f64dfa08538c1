"""The commands ``evaluate``, ``metrics``, ``protocols`` and ``strategies``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import yaml

from impatience.cli.options import Engine, Workers
from impatience.engines import choose
from impatience.errors import OptionError
from impatience.registry import Registry, nearest

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
    engine: Engine = "local",
    workers: Workers = None,
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
    judge = {"url": judge_url, "model": judge_model}
    given = {key: value for key, value in judge.items() if value is not None}
    if given and "judge" not in wanted:
        raise OptionError(f"--judge-{next(iter(given))}: the judge is not asked. Add it: --metrics {metrics},judge.")
    asked = [*(changes or []), *(f"judge.{key}={json.dumps(value)}" for key, value in given.items())]
    options = _options(asked, ["protocol", protocol, "strategy", *chosen, *wanted, "generate"])
    scorers = [_build(METRICS, metric, options, metric) for metric in wanted]
    if score is not None:
        if model is not None or data is not None:
            raise OptionError("--score takes texts that are written already: leave the model and its data away.")
        from impatience.evaluation import scoring

        scoring.score(score, scorers, bucket=bucket)
        _show([score])
        return
    if model is None or data is None:
        raise OptionError("Name a model and its data: impatience evaluate MODEL --data elife:impact.")
    from transformers.utils import logging

    from impatience.cli.progress_bar import ProgressBar
    from impatience.evaluation import run
    from impatience.protocols import PROTOCOLS

    logging.disable_progress_bar()
    where = choose(engine, workers)
    asker = _build(PROTOCOLS, protocol, options, "protocol")
    ways = {way: run.seeded(way, seed, options.get("strategy", {}) | options.get(way, {})) for way in chosen}
    evaluated = run.load_evaluated_model(
        model,
        template=template,
        prefix=prefix,
        max_source_tokens=max_source_tokens,
        generate=options.get("generate"),
    )
    folder = out or Path("reports") / (name or evaluated.name)
    folders = {way: folder / way if len(ways) > 1 or out is None else folder for way in ways}
    for way, writer in ways.items():  # all of them before the first one writes
        writer.check(evaluated.generator)
        run.check_new(folders[way], resume=resume)
    for way, writer in ways.items():
        with ProgressBar() as bar:
            run.evaluate(
                evaluated,
                data,
                folders[way],
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
                engine=where,
                on_progress=bar.set,
            )
    if not no_score:
        _show(list(folders.values()))
        return
    for place in folders.values():
        typer.echo(f"The texts are written. Score them with: impatience evaluate --score {place}")


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
    from impatience.config import build

    return build(registry[name], options.get(role, {}) | options.get(name, {}), name)


def _show(folders: Sequence[Path]) -> None:
    """Print what the reports of the same requests came to."""
    from rich.console import Console

    from impatience.evaluation import comparison, comparison_tables, load_reports, tables

    found = comparison.compare(load_reports.load(folders))
    config, console = found.reports[0].config, Console()
    what = f"{config['data']} {config['split']}, protocol {config['protocol']['name']}, in {found.unit}"
    console.print(f"{found.count:,} texts of {what}\n", markup=False, highlight=False)
    console.print(tables.to_rich(comparison_tables.summary(found), console.width))
    for report, folder in zip(found.reports, folders, strict=True):
        typer.echo(f"{report.name}: {folder}")
    typer.echo(f"By length, with tests and pictures: impatience compare {' '.join(map(str, folders))} --out FOLDER")


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
    typer.echo("\nOptions, as in --set NAME.OPTION=VALUE, with what they are if nothing is set:")
    for name, kind in registry.items():
        for field in fields(kind):
            setting = f"{name}.{field.name}={json.dumps(field.default, default=str)}"
            typer.echo(f"  {setting:34}  {field.metadata.get('help', '')}")
