"""Runs one ``generate`` call with a target: limits its steps, steers each of them, and reports how each text ended."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from impatience.control.length_report import LengthReport, LengthReporter
from impatience.control.projections import ROWS, PrecomputedProjections
from impatience.control.repetition import NoLoops
from impatience.control.sampling import Draws
from impatience.control.steering import PassSignal, Steering
from impatience.control.stopping import LandingProcessor
from impatience.control.targets import BatchTargets
from impatience.control.threads import copies_wait
from impatience.errors import OptionError, TokenizerError
from impatience.lengths import Landing, Target
from impatience.steps.budget import step_budget
from impatience.steps.sampling import check_draws
from impatience.vocabulary import Vocabulary, in_tokens


def eos_ids(generation_config: Any, size: int | None = None) -> list[int]:
    """Return the ids that end a text; there must be one, and each below the size of the vocabulary."""
    value = generation_config.eos_token_id
    ids = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(type(one) is int and one >= 0 and (size is None or one < size) for one in ids):
        tokens = "" if size is None else f" below {size:,}, as many as the vocabulary has"
        raise OptionError(f"eos_token_id={value!r}: give the number of a token, or a list of such{tokens}.")
    if not ids:
        raise TokenizerError(
            "This model has no end-of-sequence token, so its texts cannot end. Set "
            "model.generation_config.eos_token_id, or pass eos_token_id= to generate."
        )
    return ids


class EosTrace(LogitsProcessor):  # type: ignore[misc]
    """Records P(EOS), the model's first choice and how likely the chosen id was at each column, and changes nothing.

    Assisted decoding looks at columns of guesses too, and looks at a column again when the ids before it have changed;
    what is seen last there was seen after the ids of the text. How likely the ids were is not known then; it is
    recorded only with ``likelihood``.
    """

    ids: Tensor  # (B, T) all ids before the last step

    def __init__(self, eos: list[int], *, likelihood: bool = False) -> None:
        self.eos = eos
        self._columns: dict[int, tuple[Tensor, Tensor]] = {}  # by the number of ids before
        self._logs: list[Tensor] | None = [] if likelihood else None
        self._scores: Tensor | None = None  # of the last step, whose ids come with the next call

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record one step."""
        column = input_ids.shape[1]
        if self._columns and column != self.ids.shape[1] + 1:
            self._logs = None
        elif self._scores is not None and self._logs is not None:
            self._logs.append(_log_probabilities(self._scores, input_ids[:, -1]))
        self.ids, self._scores = input_ids, scores
        self._columns[column] = scores.float().softmax(-1)[:, self.eos].sum(-1), scores.argmax(-1)
        return scores

    def along(self, rows: int, steps: int, beam_indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return P(EOS) and first choices along each finished text, both (rows, steps) on the CPU."""
        seen = [self._columns[column] for column in sorted(self._columns)]
        probabilities, choices = (torch.stack(values, 1).cpu() for values in zip(*seen, strict=True))
        path = torch.arange(rows)[:, None].expand(rows, steps)
        if beam_indices is not None:
            path = beam_indices.cpu()[:, :steps].clamp(min=0)
        columns = torch.arange(path.shape[1]).clamp(max=probabilities.shape[1] - 1).expand_as(path)
        return probabilities[path, columns], choices[path, columns]

    def log_probabilities(self, sequences: Tensor) -> list[list[float]]:
        """Return the log-probability of each id that was generated in (B, T) sequences, which no beams led to.

        The list is empty if it is not known.
        """
        if self._logs is None or self._scores is None:
            return []
        last = _log_probabilities(self._scores, sequences[:, -1])
        logs: list[list[float]] = torch.stack([*self._logs, last], 1).tolist()
        return logs


def _log_probabilities(scores: Tensor, ids: Tensor) -> Tensor:
    scores = scores.float()
    return scores.gather(1, ids[:, None])[:, 0] - scores.logsumexp(-1)


class CallSettings(GenerationConfig):  # type: ignore[misc]
    """Generation settings of one call, without the EOS that a model forces at the last step.

    With it a text that was cut would look finished. ``generate`` replaces what a call leaves open by the model's own
    settings. Other threads write with these, so they stay as they are. A caller's ``forced_eos_token_id`` is kept.
    """

    @classmethod
    def of(cls, given: GenerationConfig | None, defaults: GenerationConfig) -> CallSettings:
        """Copy the caller's settings, or else the model's own."""
        settings = cls()
        settings.__dict__.update(vars(given or defaults))
        if given is None or given is defaults:
            settings.forced_eos_token_id = None
        return settings

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any) -> Any:
        """Update the settings, but take no forced EOS from defaults."""
        if defaults_only:
            kwargs.pop("forced_eos_token_id", None)
        return super().update(defaults_only, allow_custom_entries, **kwargs)


class GenerateSteering:
    """Sets the signal before each step of one ``generate`` call, from all ids so far; only inside ``Steering.use``.

    The projections of a few rows are precomputed. Their progress is counted on the CPU, where the lookup needs it.
    """

    def __init__(self, steering: Steering, targets: BatchTargets, dtype: torch.dtype) -> None:
        self._steering, self._targets = steering, targets
        self._cpu_targets = replace(targets, target=targets.target.cpu(), start=targets.start.cpu())
        self._prompt = int(self._cpu_targets.start.min()) - 1  # columns without a signal in every row
        self._precomputed: PrecomputedProjections | None = None
        # Weights that are sharded over processes are whole only while the model runs.
        sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
        if steering.projections and steering.conventions == "paper" and not sharded:

            def signal(counts: Tensor, lengths: Tensor) -> Tensor:
                return steering.embedding(*in_tokens(counts, lengths, targets.unit))

            self._precomputed = PrecomputedProjections(signal, steering.projections.values(), dtype)

    def set_signal(self, ids: Tensor, columns: int) -> None:
        """Set the signal for the last columns of (B, T) ids."""
        steering, rows = self._steering, ids.shape[0]
        if steering.conventions == "authors" and columns == ids.shape[1]:
            steering.thread.signal = PassSignal()  # their first step gets no signal
        elif columns > 1 or rows > ROWS or self._precomputed is None:
            columns = max(1, min(columns, ids.shape[1] - self._prompt))
            steering.thread.signal = steering.pass_signal(self._targets, ids, columns)
        else:
            targets = self._cpu_targets.repeat(rows)
            written = torch.arange(ids.shape[1]) >= targets.start[:, None]
            progress = steering.vocabulary.progress(ids.cpu(), written, targets.unit)[:, -1].tolist()
            lengths = targets.target.tolist()
            projected = self._precomputed.lookup([*map(min, progress, lengths)], lengths)
            steering.thread.signal = PassSignal(projected=projected)


@contextmanager
def steer_each_step(model: Any, steering: Steering, targets: BatchTargets, embedded: int = 0) -> Iterator[None]:
    """Set the signal before each step of one ``generate`` call of a model; other threads wait.

    ``embedded`` is the number of prompt columns that are given as embeddings, before the first id.

    Until the end, ``prepare_inputs_for_generation`` and ``generate`` of this instance are replaced. For other threads
    that call ``generate`` of the base model, and for the caller's own code inside this call, they do as before. The
    signal of a step ends with its forward pass: what runs between steps, as guidance does, gets the plain model. Other
    threads that copy the base model wait.
    """
    signals = GenerateSteering(steering, targets, model.dtype)
    decoder = "decoder_" if steering.family.encoder_decoder else ""
    with steering.use():
        if not steering.steers:
            yield
            return
        # A call inside another one, e.g. by a logits processor, must not steer by the targets of both.
        outer = vars(model).get("prepare_inputs_for_generation")
        prepare = getattr(outer, "unsteered", model.prepare_inputs_for_generation)
        thread = threading.get_ident()

        @functools.wraps(prepare)
        def prepare_and_steer(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            inputs = prepare(input_ids, *args, **kwargs)
            if threading.get_ident() != thread:  # which writes with the base model meanwhile
                return inputs
            read = inputs.get(f"{decoder}input_ids")
            read = inputs[f"{decoder}inputs_embeds"] if read is None else read
            signals.set_signal(nn.functional.pad(input_ids, (embedded, 0)), read.shape[1])
            return inputs

        outer_generate = vars(model).get("generate")
        running: list[bool] = []
        generate = getattr(outer_generate, "unsteered", model.generate)

        @functools.wraps(generate)
        def generate_without_signal_inside(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return generate(*args, **kwargs)
            if not running:  # the call that is steered
                running.append(True)
                return generate(*args, **kwargs)
            model.prepare_inputs_for_generation, steering.thread.signal = prepare, PassSignal()
            try:
                return generate(*args, **kwargs)
            finally:
                model.prepare_inputs_for_generation = prepare_and_steer

        prepare_and_steer.unsteered, generate_without_signal_inside.unsteered = prepare, generate  # type: ignore[attr-defined]
        was_writing, steering.thread.writing = steering.thread.writing, True
        model.prepare_inputs_for_generation, model.generate = prepare_and_steer, generate_without_signal_inside
        try:
            with copies_wait(model, steering.lock):
                yield
        finally:
            steering.thread.writing = was_writing
            for name, before in (("prepare_inputs_for_generation", outer), ("generate", outer_generate)):
                delattr(model, name)
                if before is not None:
                    setattr(model, name, before)


@dataclass
class GenerateCall:
    """One ``generate`` call with a target: prepares its arguments and finishes its output."""

    target: Target  # length asked for, one value a row
    landing: Landing  # stopping mode
    start: Tensor  # (B,) column of the first written id; earlier than ``first`` where a text is resumed
    first: int  # column of the first id to be generated
    room: int | None  # positions left in the decoder; None if there is no limit
    vocabulary: Vocabulary  # counts lengths

    def prepare(self, defaults: Any, kwargs: dict[str, Any], *, report: bool) -> dict[str, Any]:
        """Return the arguments for ``generate``: the caller's, a limit of steps, and the logits processors."""
        given = kwargs.pop("generation_config", None)
        config = CallSettings.of(given, defaults)
        limits = (given.max_new_tokens, given.max_length) if given is not None else ()
        limited = bool({"max_new_tokens", "max_length"} & kwargs.keys()) or any(limits)
        processors = LogitsProcessorList(kwargs.pop("logits_processor", None) or [])
        if (size := kwargs.pop("no_loops", None)) is not None:
            processors.append(NoLoops(size, self.start))
        draws = check_draws(kwargs.pop("draws", None), len(self.target.values))
        # The model's own minimum lengths are dropped; the caller's stay. (None would be filled from the model again.)
        config.min_length, config.min_new_tokens = 0, None if defaults.min_new_tokens is None else 0
        kwargs = config.update(**kwargs)
        if config.prefill_chunk_size is not None:
            raise OptionError(
                f"prefill_chunk_size={config.prefill_chunk_size}: progress is counted from the end of the prompt, so "
                f"the prompt must be read at once. Leave the option out."
            )
        if limited:
            limit = config.max_length if config.max_new_tokens is None else self.first + config.max_new_tokens
            last = [limit] * len(self.target.values)
        else:
            forced = int(config.forced_bos_token_id is not None)
            # Each row has its own budget, so its text does not depend on the rest of the batch.
            rows = [Target(self.target.unit, (value,)) for value in self.target.values]
            budgets = [step_budget(row, self.landing, self.room, forced, vocabulary=self.vocabulary) for row in rows]
            config.max_new_tokens = max(budgets)
            last = [self.first + budget for budget in budgets]
        self.report, self.as_dict = report, bool(config.return_dict_in_generate)
        self.trace, self.held = (EosTrace(eos_ids(config, self.vocabulary.size)) for _ in range(2))
        self.traced = report or self.landing is not Landing.NATURAL
        if self.traced:
            config.return_dict_in_generate = True
            processors.append(self.trace)
        if self.landing is not Landing.NATURAL:
            eos = self.trace.eos
            processors.append(LandingProcessor(self.landing, self.target, self.start, last, self.vocabulary, eos))
            processors.append(self.held)
        if any(draws):
            processors.append(Draws(draws, self.start))
        return {**kwargs, "generation_config": config, "logits_processor": processors}

    def finish(self, output: Any) -> Any:
        """Return the texts as the landing leaves them, with reports if the caller wants them."""
        if not self.traced:
            return output
        output.sequences, reports = self._report(output.sequences, output.get("beam_indices"))
        result = output if self.as_dict else output.sequences
        return (result, reports) if self.report else result

    def _report(self, sequences: Tensor, beam_indices: Tensor | None) -> tuple[Tensor, list[LengthReport]]:
        """Report on each text, and replace the ids that the landing removes by EOS."""
        copies = sequences.shape[0] // len(self.target.values)
        shape = sequences.shape[0], sequences.shape[1] - self.first
        probabilities, choices = self.trace.along(*shape, beam_indices)
        held = choices if self.landing is Landing.NATURAL else self.held.along(*shape, beam_indices)[1]
        reporter = LengthReporter(self.target.unit, self.landing, self.trace.eos, self.vocabulary)
        reports = []
        for row, ids in enumerate(sequences.tolist()):
            target, start = self.target.values[row // copies], int(self.start[row // copies])
            steps = probabilities[row].tolist(), choices[row].tolist()
            size, report = reporter.report(ids, target, *steps, start, self.first, held[row].tolist())
            end = reporter.end(ids, self.first)
            sequences[row, start + size : len(ids) if end is None else end] = self.trace.eos[0]
            reports.append(report)
        return sequences, reports
