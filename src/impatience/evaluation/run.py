"""Evaluation: a protocol asks, a strategy writes, metrics score, and a report keeps all of it.

The requests are put into batches by a plan that depends on nothing else, and each batch is on the disk before the next
is begun. So an evaluation that was killed loses one batch at most, and goes on to the very same report. Another engine
than this process may be ahead of the plan by some batches; they are kept in its order, and the report is the same.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from impatience.config import build
from impatience.control.loading import from_anywhere, open_model, settings_of
from impatience.control.model import LengthControlled
from impatience.data import Encoder, EvalRequest, Spec, checksum, load
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.engines import Engine, Task, in_order
from impatience.engines import choose as choose_engine
from impatience.errors import DataError, ModelFilesError, OptionError, ReportError
from impatience.evaluation.aggregation import check_width
from impatience.evaluation.predictions import Predictions, begin
from impatience.evaluation.report import EvalReport
from impatience.evaluation.scoring import BUCKET, METRICS_BY_DEFAULT, choose, choose_metrics, name_of, score
from impatience.families import unwrap
from impatience.lengths import Unit
from impatience.methods import METHODS
from impatience.metrics import Metric, Prediction
from impatience.protocols import PROTOCOLS, Protocol
from impatience.registry import nearest, require
from impatience.strategies import STRATEGIES, Strategy

_OURS = {"num_return_sequences", "return_dict_in_generate", "transformers_version"}
_IN_MEMORY = "in memory"
_PROMPT: dict[str, Any] = {"template": "summarize", "prefix": "", "max_source_tokens": 1024}

_Numbered = tuple[int, tuple[EvalRequest, ...]]
"""A batch, and its number in the plan."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that is evaluated.

    Attributes:
        name: In short.
        source: Where it comes from.
        pen: What writes with it.
        prompt: How sources are put to it: template, prefix and max_source_tokens.
    """

    name: str
    source: str
    generator: TextGenerator
    prompt: Mapping[str, Any]


def load_subject(
    model: str | Path | LengthControlled,
    *,
    template: str | None = None,
    prefix: str | None = None,
    max_source_tokens: int | None = None,
    generate: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> EvaluatedModel:
    """Load a model to evaluate; one load serves several evaluations.

    Args:
        model: A folder of ``impatience train``, a model folder, a packaged or hub name, or a model in memory.
        template: How a source is put to the model; by default as in training, else ``"summarize"``.
        prefix: What stands before every source; by default as in training, else nothing.
        max_source_tokens: Sources are cut to so many tokens; by default as in training, else 1024.
        generate: What ``generate`` is given besides, whatever the strategy, e.g. ``{"no_loops": 6}``; it wins over what
            the model was trained to be given.
        quiet: Show no progress.

    Raises:
        ModelFilesError: If there is no such model.
        OptionError: If an option is not accepted.
    """
    _check_generate(generate or {})
    if isinstance(model, LengthControlled):
        opened, name, source = model, type(unwrap(model.base_model)).__name__, _IN_MEMORY
        trained: dict[str, Any] = {}
    else:
        path, source = Path(os.path.abspath(model)), str(model)
        name = path.parent.name if path.name == "model" else path.name
        opened, trained = open_model(model, quiet=quiet)
    asked = {"template": template, "prefix": prefix, "max_source_tokens": max_source_tokens}
    prompt: dict[str, Any] = {name: trained.get(name, usual) for name, usual in _PROMPT.items()}
    prompt |= {name: value for name, value in asked.items() if value is not None}
    if prompt["max_source_tokens"] < 1:
        raise OptionError(f"max_source_tokens={prompt['max_source_tokens']}: give at least 1.")
    room = opened.family.room(unwrap(opened.base_model))
    prompt["max_source_tokens"] = min(filter(None, (prompt["max_source_tokens"], room)))
    tokenizer = opened.vocabulary.require_tokenizer(Unit.WORDS)
    encoder = Encoder(tokenizer, opened.family.encoder_decoder, **prompt)
    settings = {**settings_of(trained), **(generate or {})}
    return EvaluatedModel(name, source, TextGenerator(opened, encoder, **settings), prompt)


def evaluate(
    model: str | Path | LengthControlled | EvaluatedModel,
    data: str,
    out: Path,
    *,
    split: str = "test",
    protocol: str | Protocol = "reference",
    strategy: str | Strategy = "natural",
    unit: str = "tokens",
    metrics: Sequence[str | Metric] | None = METRICS_BY_DEFAULT,
    limit: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
    bucket: int = BUCKET,
    data_dir: Path | None = None,
    name: str | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    tell: Callable[[int, int, str], None] = lambda done, total, note: None,  # noqa: ARG005
) -> EvalReport | None:
    """Evaluate a model.

    Args:
        model: What writes; see ``load_subject``.
        data: A spec of data, e.g. ``"elife:impact"``.
        out: The folder to write to.
        split: Of the data.
        protocol: Which lengths are asked for: a name, or a protocol with its options.
        strategy: How they are got: a name, or a strategy with its options, its own seed among them.
        unit: What is counted: tokens, words, characters or sentences.
        metrics: What the texts are scored with: names, or metrics with their options; None leaves that to
            ``scoring.score``, maybe on another machine.
        limit: Read only so many examples.
        batch_size: Texts that are written at once.
        seed: Of everything random in the writing; greedy strategies have nothing random.
        bucket: Width of the buckets of target lengths.
        data_dir: Where named data sets are, unless IMPATIENCE_DATA says so.
        name: What tables call it; by default the model and the strategy.
        resume: Go on with what the folder holds; texts that are there are not written again.
        engine: What the texts are written on; this process by default.
        tell: Called with the number of texts that are done, their total, and the error so far.

    Raises:
        ReportError: If the folder holds another evaluation, or cannot be written.
        DataError: If the data cannot be read, or the protocol has nothing to ask for.
        OptionError: If an option is not accepted.
    """
    protocol_name, asker = choose(PROTOCOLS, protocol)
    strategy_name, writer = choose(STRATEGIES, seeded(strategy, seed) if isinstance(strategy, str) else strategy)
    counted, scorers = _unit(unit), {} if metrics is None else choose_metrics(metrics)
    check_width(bucket)
    if batch_size < 1:
        raise OptionError(f"batch_size={batch_size}: give at least 1.")
    if metrics is not None:
        require("pyarrow", "A report")
    predictions = check_new(Path(out), resume=resume)
    if Spec.parse(data).template:
        raise OptionError(f"{data!r}: here the template is an option of its own (--template), not part of the data.")
    examples = load(data, split, data_dir=data_dir, limit=limit)
    subject = model if isinstance(model, EvaluatedModel) else load_subject(model)
    writer.check(subject.generator)
    requests = _checked(
        list(asker.requests(examples, counted, partial(subject.generator.count, unit=counted))), protocol_name, examples
    )
    plan = batches(requests, batch_size)
    steering = subject.generator.model.steering
    weights = fingerprint(subject.generator.model)
    config = {
        "name": name or f"{subject.name}-{strategy_name}",
        "model": subject.source,
        "fingerprint": weights,
        "dtype": str(subject.generator.model.dtype).removeprefix("torch."),
        "method": name_of(METHODS, steering.method),
        "options": steering.method.options(),
        "conventions": steering.conventions,
        "prompt": dict(subject.prompt),
        "generate": subject.generator.settings,
        "data": data,
        "split": split,
        "sha256": checksum(data, split, data_dir),
        "protocol": {"name": protocol_name, **asdict(asker)},
        "strategy": {"name": strategy_name, **asdict(writer)},
        "unit": counted,
        "seed": seed,
        "batch_size": batch_size,
        "limit": limit,
    }
    labels = dict.fromkeys(request.group for request in requests if request.group)
    begin(predictions, {"config": config, "count": len(requests), "groups": list(labels)})
    there = partial(
        _there, from_anywhere(subject.source), subject.prompt, subject.generator.settings, weights, writer, seed
    )
    job = Task(partial(_batch, subject.generator, writer, seed), None if subject.source == _IN_MEMORY else there)
    _write(engine or choose_engine("local"), job, plan, predictions, tell)
    return None if metrics is None else score(Path(out), list(scorers.values()), bucket=bucket)


def check_new(folder: Path, *, resume: bool) -> Predictions:
    """Return the predictions of a folder, unless it has some that nobody wants to go on with.

    Raises:
        ReportError: If it has.
    """
    predictions = Predictions(folder)
    if predictions.begun and not resume:
        raise ReportError(
            f"{folder} holds an evaluation already. Go on with it (--resume), or name another folder (--out)."
        )
    return predictions


def seeded(strategy: str, seed: int, options: Mapping[str, Any] | None = None) -> Strategy:
    """Build a strategy; one that draws is given the seed, unless its options name another."""
    kind = STRATEGIES[strategy]
    own = {"seed": seed} if "seed" in {field.name for field in fields(kind)} else {}
    return build(kind, {**own, **(options or {})}, strategy)


def batches(requests: Sequence[EvalRequest], size: int) -> list[tuple[EvalRequest, ...]]:
    """Put requests of similar length together, the longest first: what does not fit, fails at once."""
    order = sorted(requests, key=lambda request: (-request.target, -len(request.example.source), request.key))
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]


def fingerprint(model: LengthControlled) -> str:
    """Return a SHA-256 that changes when a model is trained: of the names, shapes and first values of its weights."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _check_generate(settings: Mapping[str, Any]) -> None:
    """Refuse what ``generate`` does not take, and what would change how many texts it returns, and in which form."""
    known = sorted({"no_loops", *GenerationConfig().to_dict()} - _OURS)
    for name in settings:
        if name not in known:
            raise OptionError(
                f"generate.{name}: this cannot be set.{nearest(name, known)} Give no_loops, or what a GenerationConfig "
                f"of transformers has, but for {', '.join(sorted(_OURS))}."
            )


def _unit(name: str) -> Unit:
    try:
        return Unit(name)
    except ValueError:
        known = [str(unit) for unit in Unit]
        raise OptionError(f"unit={name!r}: give one of {', '.join(known)}.{nearest(name, known)}") from None


def _checked(requests: list[EvalRequest], protocol: str, examples: Sequence[Any]) -> list[EvalRequest]:
    """Refuse a protocol's requests if there is none, or one cannot be met."""
    if not requests:
        raise DataError(
            f"The protocol {protocol!r} asks for nothing of these {len(examples)} examples: none fits its options. "
            f"`impatience protocols` lists them."
        )
    seen = set()
    for request in requests:
        if request.target < 1:
            raise DataError(f"{request.key}: the tokenizer knows nothing of the reference, so its length is 0.")
        if request.key in seen:
            raise DataError(f"Two requests are called {request.key!r}. Give the examples different ids.")
        seen.add(request.key)
    return requests


def _write(
    engine: Engine,
    job: Task[_Numbered, list[Prediction]],
    plan: list[tuple[EvalRequest, ...]],
    predictions: Predictions,
    tell: Callable[[int, int, str], None],
) -> None:
    """Write the texts that are not there yet, and keep them in the order of the plan."""
    done = predictions.recover([[request.key for request in batch] for batch in plan])
    missing = range(done, len(plan))
    texts, total = sum(map(len, plan[:done])), sum(map(len, plan))
    tell(texts, total, "")
    errors: list[int] = []
    results = in_order(engine.run(job, ((number, plan[number]) for number in missing)))
    for number, written in zip(missing, results, strict=True):
        predictions.append(number, written)
        errors.extend(abs(one.length - one.target) for one in written)
        tell(texts + len(errors), total, f"MAE {sum(errors) / len(errors):.2f}")


def _batch(generator: TextGenerator, strategy: Strategy, seed: int, batch: _Numbered) -> list[Prediction]:
    """Write one batch."""
    number, requests = batch
    # Each batch has a seed of its own, so that it does not matter who writes it, or after which.
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big"))
    drafts = strategy.write(generator, requests)
    return [_prediction(generator, request, draft) for request, draft in zip(requests, drafts, strict=True)]


def _there(
    model: str, prompt: Mapping[str, Any], settings: Mapping[str, Any], weights: str, strategy: Strategy, seed: int
) -> Callable[[_Numbered], list[Prediction]]:
    """Load what writes, in another process.

    Raises:
        ModelFilesError: If the model is another one there.
    """
    subject = load_subject(model, **prompt, generate=settings, quiet=True)
    if fingerprint(subject.generator.model) != weights:
        raise ModelFilesError(
            f"On {platform.node()} the model {model!r} has other weights. Give each machine the same."
        )
    return partial(_batch, subject.generator, strategy, seed)


def _prediction(generator: TextGenerator, request: EvalRequest, draft: Draft) -> Prediction:
    return Prediction(
        request.key,
        request.example.id,
        request.group,
        request.example.source,
        request.references,
        request.unit,
        request.target,
        draft.text,
        draft.length,
        generator.vocabulary.count(draft.ids, Unit.TOKENS),
        draft.ended,
        draft.landed,
        draft.eos_probability,
        draft.tokens_spent,
    )
