"""The commands ``evaluate``, ``metrics``, ``protocols`` and ``strategies``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import yaml
from typer import Argument, Option

from impatience.cli.options import Backend, Data, DataFolder, Engine, Seed, Workers, settings
from impatience.engines import choose
from impatience.errors import OptionError
from impatience.registry import Registry, nearest

T = TypeVar("T")


def evaluate(
    model: Annotated[str | None, Argument(help="Folder of `impatience train`, or folder or name of a model.")] = None,
    backend: Backend = None,
    data: Data = None,
    split: Annotated[str, Option(help="Split of the data.")] = "test",
    protocol: Annotated[str, Option(help="Rule that chooses the target lengths.")] = "reference",
    strategy: Annotated[str, Option(help="Ways to reach the lengths, separated by commas.")] = "natural",
    unit: Annotated[str, Option(help="tokens, words, characters or sentences.")] = "tokens",
    metrics: Annotated[str, Option(help="Metrics, separated by commas.")] = "length,ending,rouge,bleu",
    out: Annotated[Path | None, Option(help="Folder to write to; several strategies get subfolders.")] = None,
    name: Annotated[str | None, Option(help="Name in tables; by default the model's name.")] = None,
    limit: Annotated[int | None, Option(help="Most examples to read.")] = None,
    sample: Annotated[int | None, Option(help="Use so many of them, drawn by --seed.")] = None,
    batch_size: Annotated[int, Option(help="Texts written at the same time.")] = 16,
    seed: Seed = 0,
    bucket: Annotated[int, Option(help="Width of the target buckets.")] = 50,
    template: Annotated[str | None, Option(help="Prompt template; by default as in training.")] = None,
    prefix: Annotated[str | None, Option(help="Text before every source; by default as in training.")] = None,
    max_source_tokens: Annotated[int | None, Option(help="Most tokens of a source; by default as in training.")] = None,
    judge_url: Annotated[str | None, Option(help="The same as --set judge.url=….")] = None,
    judge_model: Annotated[str | None, Option(help="The same as --set judge.model=….")] = None,
    changes: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="OWNER.OPTION=VALUE",
            help="Set an option of: protocol, strategy, generate, or a strategy or metric by name, e.g. "
            "protocol.lengths=[10,50] or generate.no_loops=6; can be repeated.",
        ),
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    resume: Annotated[bool, Option("--resume", help="Continue the evaluation in the folder.")] = False,
    score: Annotated[Path | None, Option(help="Write nothing; score the texts in this folder again.")] = None,
    no_score: Annotated[bool, Option("--no-score", help="Write the texts, and score them later.")] = False,
    data_dir: DataFolder = None,
) -> None:
    """Let a model write to length, and measure length, ending and quality."""
    from impatience.metrics import METRICS

    strategy_names, metric_names = _names(strategy, "--strategy"), _names(metrics, "--metrics")
    judge = {key: value for key, value in (("url", judge_url), ("model", judge_model)) if value is not None}
    if judge and "judge" not in metric_names:
        raise OptionError(f"--judge-{next(iter(judge))}: the judge is not used. Add it: --metrics {metrics},judge.")
    chosen = [*(changes or []), *(f"judge.{key}={json.dumps(value)}" for key, value in judge.items())]
    options = _options(chosen, ["protocol", protocol, "strategy", *strategy_names, *metric_names, "generate"])
    scorers = [_build(METRICS, metric, options, metric) for metric in metric_names]
    if score is not None:
        if model is not None or data is not None:
            raise OptionError("--score scores texts that are written already: leave out the model and --data.")
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
    runner = choose(engine, workers)
    rule = _build(PROTOCOLS, protocol, options, "protocol")
    strategies = {
        key: run.seeded(key, seed, options.get("strategy", {}) | options.get(key, {})) for key in strategy_names
    }
    prompt: dict[str, Any] = {"template": template, "prefix": prefix, "max_source_tokens": max_source_tokens}
    evaluated = run.load_evaluated_model(model, **prompt, generate=options.get("generate"), backend=backend)
    parent = out or Path("reports") / (name or evaluated.name)
    folders = {key: parent / key if len(strategies) > 1 or out is None else parent for key in strategies}
    for key, writer in strategies.items():  # check all before the first one writes
        writer.check(evaluated.generator)
        run.check_new(folders[key], resume=resume)
    for key, writer in strategies.items():
        with ProgressBar() as bar:
            run.evaluate(
                evaluated,
                data,
                folders[key],
                split=split,
                protocol=rule,
                strategy=writer,
                unit=unit,
                metrics=None if no_score else scorers,
                limit=limit,
                sample=sample,
                batch_size=batch_size,
                seed=seed,
                bucket=bucket,
                data_dir=data_dir,
                name=f"{name}-{key}" if name and len(strategies) > 1 else name,
                resume=resume,
                engine=runner,
                on_progress=bar.set,
            )
    if not no_score:
        _show(list(folders.values()))
        return
    for folder in folders.values():
        typer.echo(f"The texts are written. Score them with: impatience evaluate --score {folder}")


def _names(text: str, option: str) -> list[str]:
    """Return the names of an option that takes several."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or len(set(names)) < len(names):
        raise OptionError(f"{option} {text!r}: give at least one name, each once, separated by commas.")
    return names


def _options(changes: Sequence[str], owners: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the values of --set by owner and option."""
    values: dict[str, dict[str, Any]] = {}
    for name, text in settings(changes, "protocol.lengths=[10,50]"):
        owner, _, option = name.partition(".")
        if not (owner and option):
            raise OptionError(f"--set {name}: give an owner, an option and a value, e.g. protocol.lengths=[10,50].")
        if owner not in owners:
            known = f"{nearest(owner, list(owners))} Give one of {', '.join(owners)}."
            raise OptionError(f"--set {name}: there is no owner {owner!r}.{known}")
        values.setdefault(owner, {})[option] = yaml.safe_load(text)
    return values


def _build(registry: Registry[type[T]], name: str, options: Mapping[str, dict[str, Any]], role: str) -> T:
    """Build an entry of a registry with the options of its role and of its name."""
    from impatience.config import build

    return build(registry[name], options.get(role, {}) | options.get(name, {}), name)


def _show(folders: Sequence[Path]) -> None:
    """Print the scores of reports of the same requests."""
    from rich.console import Console

    from impatience.evaluation import comparison, comparison_tables, load_reports, tables

    compared = comparison.compare(load_reports.load(folders))
    config, console = compared.reports[0].config, Console()
    source = f"{config['data']} {config['split']}, protocol {config['protocol']['name']}, in {compared.unit}"
    console.print(f"{compared.count:,} texts of {source}\n", markup=False, highlight=False)
    console.print(tables.to_rich(comparison_tables.summary(compared), console.width))
    for report, folder in zip(compared.reports, folders, strict=True):
        typer.echo(f"{report.name}: {folder}")
    typer.echo(f"Scores by length, tests and plots: impatience compare {' '.join(map(str, folders))} --out FOLDER")


def metrics() -> None:
    """List the metrics and their options."""
    from impatience.metrics import METRICS

    _list(METRICS)


def protocols() -> None:
    """List the protocols, which choose target lengths, and their options."""
    from impatience.protocols import PROTOCOLS

    _list(PROTOCOLS)


def strategies() -> None:
    """List the strategies, which reach the lengths, and their options."""
    from impatience.strategies import STRATEGIES

    _list(STRATEGIES)


def _list(registry: Registry[Any]) -> None:
    """Print the entries of a registry, and their options with defaults."""
    from dataclasses import fields

    width = max(map(len, registry))
    for name, kind in registry.items():
        typer.echo(f"{name:{width}}  {kind.summary}")
    typer.echo("\nOptions with their defaults, as in --set NAME.OPTION=VALUE:")
    for name, kind in registry.items():
        for field in fields(kind):
            setting = f"{name}.{field.name}={json.dumps(field.default, default=str)}"
            typer.echo(f"  {setting:34}  {field.metadata.get('help', '')}")
