"""Runs an evaluation: a protocol makes requests, a strategy writes texts, metrics score them into a report.

The batches depend on the requests alone, and each is on the disk before the next is written. So an evaluation that was
killed loses one batch at most, and resumes to the very same report. An engine may write several batches at the same
time; they are stored in order, and the report is the same.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from impatience.backends import new_generator, open_model
from impatience.config import build
from impatience.control.fingerprint import weights_fingerprint
from impatience.control.generate_options import check_generate, check_sampling
from impatience.control.model import LengthControlled
from impatience.data import Encoder, Example, Request, Spec, checksum, load
from impatience.decoding.base import Generator
from impatience.decoding.results import Result
from impatience.engines import Engine, Task, in_order
from impatience.engines import choose as choose_engine
from impatience.errors import DataError, OptionError, ReportError
from impatience.evaluation.aggregation import check_width
from impatience.evaluation.predictions import Predictions, write_or_check_config
from impatience.evaluation.report import EvalReport
from impatience.evaluation.scoring import DEFAULT_BUCKET, DEFAULT_METRICS, choose, choose_metrics, score
from impatience.families import unwrap
from impatience.files import lock_folder
from impatience.judging import Landed, judge_landing
from impatience.lengths import Unit
from impatience.metrics import Metric, Prediction
from impatience.protocols import PROTOCOLS, Protocol
from impatience.registry import nearest, require
from impatience.sources.identity import check_fingerprint, name_from_anywhere
from impatience.strategies import STRATEGIES, Strategy
from impatience.strategies.base import on_transformers

_IN_MEMORY = "in memory"
_DEFAULT_PROMPT: dict[str, Any] = {"template": "summarize", "prefix": "", "max_source_tokens": 1024}

_Numbered = tuple[int, tuple[Request, ...]]  # a batch and its number


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate."""

    name: str  # short name
    source: str  # folder or name that it was loaded from
    generator: Generator  # writes texts with it
    prompt: Mapping[str, Any]  # options of its prompts, as ``load_evaluated_model`` takes them


def load_evaluated_model(
    model: str | Path | LengthControlled,
    *,
    template: str | None = None,
    prefix: str | None = None,
    max_source_tokens: int | None = None,
    names_length: bool | None = None,
    generate: Mapping[str, Any] | None = None,
    backend: str | None = None,
    quiet: bool = False,
) -> EvaluatedModel:
    """Load a model to evaluate; one load serves several evaluations.

    Args:
        model: A folder of ``impatience train``, a model folder, a packaged or hub name, or a model in memory.
        template: Template of the prompt; by default that of the training, else ``"summarize"``.
        prefix: Text before every source; by default that of the training, else none.
        max_source_tokens: Length in tokens to which sources are cut; by default that of the training, else 1024.
        names_length: Whether a steered text's prompt names its length too, as ``Writer`` does; by default if the model
            was taught by ``instruct``. A template without an instruction never does.
        generate: Further arguments of ``generate`` for every strategy, e.g. ``{"no_loops": 6}``; they override those
            that were saved with the model.
        backend: Library that runs the model, as in ``load``.
        quiet: Show no progress.

    Raises:
        ModelFilesError: If there is no such model.
        OptionError: If an option is not accepted.
    """
    check_generate(generate or {})
    if isinstance(model, LengthControlled):
        opened: Any = model
        name, source, trained = type(unwrap(model.base)).__name__, _IN_MEMORY, dict[str, Any]()
    else:
        path, source = Path(os.path.abspath(model)), str(model)
        name = path.parent.name if path.name == "model" else path.name
        opened, trained = open_model(model, backend=backend, quiet=quiet)
    given = {"template": template, "prefix": prefix, "max_source_tokens": max_source_tokens}
    prompt: dict[str, Any] = {name: trained.get(name, default) for name, default in _DEFAULT_PROMPT.items()}
    prompt |= {name: value for name, value in given.items() if value is not None}
    if prompt["max_source_tokens"] < 1:
        raise OptionError(f"max_source_tokens={prompt['max_source_tokens']}: give at least 1.")
    prompt["max_source_tokens"] = min(filter(None, (prompt["max_source_tokens"], opened.source_room)))
    if names_length if names_length is not None else trained.get("template") == "instruct":
        prompt["names_length"] = True
    tokenizer = opened.vocabulary.require_tokenizer(Unit.WORDS)
    generator = new_generator(opened, Encoder(tokenizer, opened.encoder_decoder, **prompt), trained)
    generator.settings |= generate or {}
    check_sampling(generate or {}, generator.settings)
    return EvaluatedModel(name, source, generator, prompt)


def evaluate(
    model: str | Path | LengthControlled | EvaluatedModel,
    data: str,
    out: Path,
    *,
    split: str = "test",
    protocol: str | Protocol = "reference",
    strategy: str | Strategy = "natural",
    unit: str = "tokens",
    metrics: Sequence[str | Metric] | None = DEFAULT_METRICS,
    limit: int | None = None,
    sample: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
    bucket: int = DEFAULT_BUCKET,
    data_dir: Path | None = None,
    name: str | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, note: None,  # noqa: ARG005
) -> EvalReport | None:
    """Evaluate a model.

    Args:
        model: Model to evaluate; see ``load_evaluated_model``.
        data: Data, e.g. ``"elife:impact"``.
        out: Folder to write to.
        split: Split of the data.
        protocol: Protocol that makes the requests: a name, or a protocol with its options.
        strategy: Strategy that writes the texts: a name, or a strategy with its options, including a seed.
        unit: Unit of the targets: tokens, words, characters or sentences.
        metrics: Metrics that score the texts: names, or metrics with their options; None leaves the scoring to
            ``scoring.score``, which may run on another machine.
        limit: Maximum number of examples.
        sample: Number of those to use, drawn by their ids and the seed; all if there are no more.
        batch_size: Number of texts that are written at the same time.
        seed: Seed of all sampling, of texts and of ``sample``; greedy strategies do not use it.
        bucket: Width of the buckets of target lengths.
        data_dir: Folder of named data sets, unless IMPATIENCE_DATA is set.
        name: Name in tables; by default that of the model and the strategy.
        resume: Continue the evaluation in the folder; its texts are not written again.
        engine: Engine that writes the texts; this process by default.
        on_progress: Called with the number of texts that are done, their total, and the error so far.

    Raises:
        ReportError: If the folder holds another evaluation, is in use, or cannot be written.
        DataError: If the data cannot be read, or the protocol makes no request.
        OptionError: If an option is not accepted.
    """
    protocol_name, chosen_protocol = choose(PROTOCOLS, protocol)
    strategy_name, chosen_strategy = choose(
        STRATEGIES, seeded(strategy, seed) if isinstance(strategy, str) else strategy
    )
    target_unit, scorers = _parse_unit(unit), {} if metrics is None else choose_metrics(metrics)
    check_width(bucket)
    if batch_size < 1:
        raise OptionError(f"batch_size={batch_size}: give at least 1.")
    if metrics is not None:
        require("pyarrow", "A report")
    predictions = check_new(Path(out), resume=resume)
    if Spec.parse(data).template:
        raise OptionError(f"{data!r}: give the template as the option --template, not as part of the data.")
    if sample is not None and sample < 1:
        raise OptionError(f"sample={sample}: give at least 1.")
    examples = draw(load(data, split, data_dir=data_dir, limit=limit), sample, seed)
    evaluated = model if isinstance(model, EvaluatedModel) else load_evaluated_model(model)
    generator = evaluated.generator
    chosen_strategy.check(generator)
    requests = list(chosen_protocol.requests(examples, target_unit, partial(generator.count, unit=target_unit)))
    _check_requests(requests, protocol_name, examples)
    plan = batches(requests, batch_size)
    in_memory = evaluated.source == _IN_MEMORY  # the caller may have changed such a model since it was opened
    weights = weights_fingerprint(on_transformers(generator).model) if in_memory else generator.fingerprint()
    config = {
        "name": name or f"{evaluated.name}-{strategy_name}",
        "model": evaluated.source,
        "fingerprint": weights,
        "backend": generator.backend,
        **generator.describe(),
        "prompt": dict(evaluated.prompt),
        "generate": generator.settings,
        "data": data,
        "split": split,
        "sha256": checksum(data, split, data_dir),
        "protocol": {"name": protocol_name, **asdict(chosen_protocol)},
        "strategy": {"name": strategy_name, **asdict(chosen_strategy)},
        "unit": target_unit,
        "seed": seed,
        "batch_size": batch_size,
        "limit": limit,
        **({} if sample is None else {"sample": sample}),
    }
    labels = dict.fromkeys(request.group for request in requests if request.group)
    origin = (name_from_anywhere(evaluated.source), generator.backend, evaluated.prompt, generator.settings, weights)
    load_elsewhere = partial(load_batch_writer, *origin, chosen_strategy, seed)
    write_here = partial(_write_batch, generator, chosen_strategy, seed)
    task = Task(write_here, None if in_memory else load_elsewhere)
    with lock_folder(Path(out), ReportError):
        check_new(Path(out), resume=resume)  # another process may have written texts meanwhile
        write_or_check_config(predictions, {"config": config, "count": len(requests), "groups": list(labels)})
        _write_missing(engine or choose_engine("local"), task, plan, predictions, on_progress)
        return None if metrics is None else score(Path(out), list(scorers.values()), bucket=bucket)


def draw(examples: Sequence[Example], count: int | None, seed: int) -> list[Example]:
    """Draw some examples, in their order; which ones depends on the seed and the ids alone."""
    keys = [hashlib.sha256(f"{seed}:{example.id}".encode()).digest() for example in examples]
    chosen = sorted(range(len(examples)), key=keys.__getitem__)[:count]
    return [examples[index] for index in sorted(chosen)]


def check_new(folder: Path, *, resume: bool) -> Predictions:
    """Return the predictions of a folder, which must have none unless they are to be resumed."""
    predictions = Predictions(folder)
    if predictions.started and not resume:
        raise ReportError(
            f"{folder} holds an evaluation already. Continue it (--resume), or choose another folder (--out)."
        )
    return predictions


def seeded(strategy: str, seed: int, options: Mapping[str, Any] | None = None) -> Strategy:
    """Build a strategy; one with a seed gets this one, unless its options give another."""
    kind = STRATEGIES[strategy]
    default = {"seed": seed} if "seed" in {field.name for field in fields(kind)} else {}
    return build(kind, {**default, **(options or {})}, strategy)


def batches(requests: Sequence[Request], size: int) -> list[tuple[Request, ...]]:
    """Group requests of similar length into batches, the longest first: what does not fit into memory fails at once."""
    order = sorted(requests, key=lambda request: (-request.target, -len(request.text), request.id))
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]


def _parse_unit(name: str) -> Unit:
    try:
        return Unit(name)
    except ValueError:
        known = [str(unit) for unit in Unit]
        raise OptionError(f"unit={name!r}: give one of {', '.join(known)}.{nearest(name, known)}") from None


def _check_requests(requests: list[Request], protocol: str, examples: Sequence[Any]) -> None:
    """Check that a protocol has made requests with unique ids."""
    if not requests:
        raise DataError(
            f"The protocol {protocol!r} makes no request for these {len(examples)} examples: none fits its options. "
            f"`impatience protocols` lists the options."
        )
    key, times = Counter(request.id for request in requests).most_common(1)[0]
    if times > 1:
        raise DataError(f"Two requests have the key {key!r}. Give the examples different ids.")


def _write_missing(
    engine: Engine,
    task: Task[_Numbered, list[Prediction]],
    plan: list[tuple[Request, ...]],
    predictions: Predictions,
    on_progress: Callable[[int, int, str], None],
) -> None:
    """Write the missing batches and store them in order."""
    done = predictions.recover([[request.id for request in batch] for batch in plan])
    missing = range(done, len(plan))
    texts, total = sum(map(len, plan[:done])), sum(map(len, plan))
    on_progress(texts, total, "")
    errors: list[int] = []
    results = in_order(engine.run(task, ((number, plan[number]) for number in missing)))
    for number, written in zip(missing, results, strict=True):
        predictions.append(number, written)
        errors.extend(abs(prediction.length - prediction.target) for prediction in written)
        on_progress(texts + len(errors), total, f"MAE {sum(errors) / len(errors):.2f}")


def _write_batch(generator: Generator, strategy: Strategy, seed: int, batch: _Numbered) -> list[Prediction]:
    """Write one batch."""
    number, requests = batch
    # Each batch has its own seed, so the result does not depend on the worker or on the order.
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big"))
    results = strategy.write(generator, requests)
    return [
        Prediction(
            request.id,
            request.example,
            request.group,
            request.text,
            request.references,
            request.unit,
            request.target,
            result.text,
            result.length,
            generator.vocabulary.count(result.ids, Unit.TOKENS),
            result.ended,
            result.finished,
            judge_by_request(request, result),
            result.eos_probability,
            result.tokens_spent,
            result.unsupported,
            result.unsupported if result.first_unsupported is None else result.first_unsupported,
        )
        for request, result in zip(requests, results, strict=True)
    ]


def judge_by_request(request: Request, result: Result) -> Landed:
    """Return how a text landed, by all lengths that its request accepts: strategies judge by the target alone."""
    if request.within is None or result.landed != "missed":
        return result.landed
    on_target = result.ended and request.accepts(result.length)
    return judge_landing(on_target, result.own_end and result.finished, result.looping)


def load_batch_writer(
    model: str,
    backend: str,
    prompt: Mapping[str, Any],
    settings: Mapping[str, Any],
    weights: str,
    strategy: Strategy,
    seed: int,
) -> Callable[[_Numbered], list[Prediction]]:
    """Load the model in another process and return the function that writes a batch."""
    generator = load_evaluated_model(model, **prompt, generate=settings, backend=backend, quiet=True).generator
    check_fingerprint(generator.fingerprint(), model, weights)
    return partial(_write_batch, generator, strategy, seed)
