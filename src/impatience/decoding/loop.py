"""The decoding loop: fast greedy writing in rows that are filled again as texts end.

``generate`` of transformers grows its cache and looks at all ids at every step, and a batch takes as long as its
longest text. Here a step is one forward pass over fixed tensors (``decoding.step``), so a GPU can replay it, and the
row of a text that ends is given to the next text, whose prompt is already read (``decoding.prefill``). The texts are
those that ``generate`` writes one at a time; they do not depend on the other texts of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from impatience.control.adapters import has_adapter
from impatience.control.length_report import LengthReporter
from impatience.control.model import LengthControlled
from impatience.decoding import step
from impatience.decoding.base import TokenListener, TokenRequest, TokenResult
from impatience.decoding.kv_cache import GROUPED
from impatience.decoding.prefill import PrefillQueue
from impatience.decoding.step import BatchShape, DecodingSettings, DecodingStep, Prefilled, RowOutput
from impatience.families import text_config, unwrap

CHECK_EVERY = 4  # on a GPU, steps between two checks for texts that have ended: a check waits for the GPU
CACHED_STEPS = 3
"""On a GPU, the number of ``DecodingStep`` with their recordings that are kept for the next call; else 1."""
SPARE_ROWS = 4  # on a GPU, a recorded step may have up to so many times the rows needed: idle rows cost little there

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
_OTHER_ATTENTION = {
    "sliding_window": "it reads its text through a window",
    "alibi": "its attention depends on distances (ALiBi)",
    "attn_logit_softcapping": "its attention scores are capped",
}
"""Fields of a configuration that change attention in a way that a step does not compute, and the reason to give."""
_IGNORED_OPTIONS = {
    *("do_sample", "temperature", "top_k", "top_p", "num_beams", "early_stopping", "length_penalty"),
    *("max_new_tokens", "pad_token_id", "use_cache"),
}
"""Options that a greedy search does not use, or that callers turn into budgets."""
_MODEL_SETTINGS = {
    *("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    *("max_length", "min_length", "min_new_tokens", "transformers_version", "_from_model_config"),
}
"""Generation settings of a model that the loop follows, or that a target replaces. As options of a call they need
``generate``."""


def unsupported(model: LengthControlled, options: Mapping[str, Any]) -> str | None:
    """Return why the loop cannot write with a model and options of ``generate``, as the end of a sentence, else None.

    The options do not include inputs, target, landing and ``no_loops``.
    """
    inner: Any = unwrap(model.base)
    config = text_config(inner)
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    other_layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if not model.family.fast_loop:
        return f"no family declares that the loop can run {inner.config.model_type}"
    if inner is not model.base or has_adapter(inner):
        return "an adapter or a compiler is in it"
    if model.conventions != "paper":
        return "it follows the authors' conventions"
    if config._attn_implementation not in ("sdpa", "eager", GROUPED):  # the last while another thread writes
        return f"its attention is {config._attn_implementation!r}"
    if other_layers:
        return f"some of its layers are of another kind ({', '.join(sorted(other_layers))})"
    for field, reason in _OTHER_ATTENTION.items():
        if getattr(config, field, None):
            return reason
    if rope not in _FIXED_ROPE:
        return f"its positions are scaled by length ({rope})"
    model_settings = inner.generation_config.to_diff_dict()
    settings = {name: value for name, value in model_settings.items() if name not in _MODEL_SETTINGS} | dict(options)
    if settings.get("do_sample") or (settings.get("num_beams") or 1) > 1:
        return "it searches or draws"
    extra = sorted(name for name, value in settings.items() if value is not None and name not in _IGNORED_OPTIONS)
    return f"of {', '.join(extra)}" if extra else None


class DecodingLoop:
    """Writes greedily with one model that is not ``unsupported``."""

    def __init__(self, model: LengthControlled) -> None:
        self.model = model
        self.steps: list[DecodingStep] = []  # the latest is the last
        self._inner: Any = unwrap(model.base)
        self._start = step.start_token(model)

    def write(
        self,
        requests: Sequence[TokenRequest],
        settings: DecodingSettings,
        rows: int,
        listener: TokenListener | None = None,
    ) -> list[TokenResult]:
        """Write a text for each request, at most ``rows`` at the same time; the first ones are begun first.

        A listener receives the tokens; every step then waits for the GPU.
        """
        if not requests:
            return []
        results: dict[int, TokenResult] = {}
        settings = replace(settings, signal=settings.signal and self.model.steers)
        reporter = LengthReporter(settings.unit, settings.landing, settings.eos, self.model.vocabulary)
        shape = self._shape(requests, min(rows, len(requests)))
        with torch.inference_mode(), step.prepared_model(self.model):
            for position, row in self._run(requests, settings, shape, listener):
                target = requests[position].target
                kept, report = reporter.report(row.ids, target, row.eos_probabilities, row.choices, held=row.held)
                curve, logs = tuple(row.eos_curve), tuple(row.log_probabilities)
                results[position] = TokenResult(tuple(row.ids), kept, report, curve, logs)
        return [results[position] for position in range(len(requests))]

    @property
    def records(self) -> bool:
        """True if steps are recorded: then they are worth keeping, and waiting for the GPU costs time."""
        return bool(self._inner.device.type == "cuda")

    def _shape(self, requests: Sequence[TokenRequest], rows: int) -> BatchShape:
        """Return the shape that requests need, rounded up so that recorded steps serve later ones too."""
        longest = max(self._read_before(request) + request.budget - len(request.prefix) for request in requests)
        columns = _round_up(longest + step.STRIDE // 2, step.STRIDE)
        source = 0 if self._start is None else _round_up(max(len(request.ids) for request in requests), 64)
        return BatchShape(rows, columns, _round_up(max(request.budget for request in requests), 64), source)

    def _read_before(self, request: TokenRequest) -> int:
        """Return the number of tokens that the decoder reads before the first step."""
        return len(request.decoder_ids(self._start)) - 1

    def _step_for(self, settings: DecodingSettings, shape: BatchShape, example: Prefilled) -> DecodingStep:
        """Return a step with room for a batch, from an earlier call if possible."""
        spare, most = (SPARE_ROWS, CACHED_STEPS) if self.records else (1, 1)
        recorded = step.recorded_facts(self.model)
        fitting = [
            number
            for number, cached in enumerate(self.steps)
            if cached.settings == settings and cached.recorded == recorded and cached.shape.holds(shape, spare)
        ]
        if fitting:
            self.steps.append(self.steps.pop(fitting[-1]))
        else:
            # Steps that the new one makes needless, and the oldest, are dropped before the new one takes memory.
            useful = (old for old in self.steps if old.settings != settings or not shape.holds(old.shape, spare))
            self.steps = [old for old in useful if old.recorded == recorded]
            while len(self.steps) >= most:
                del self.steps[0]
            self.steps.append(DecodingStep(self.model, settings, shape, example))
        self.steps[-1].clear()
        return self.steps[-1]

    def _run(
        self,
        requests: Sequence[TokenRequest],
        settings: DecodingSettings,
        shape: BatchShape,
        listener: TokenListener | None,
    ) -> Iterator[tuple[int, RowOutput]]:
        """Write texts, and yield them with their positions as they end."""
        before = [self._read_before(request) for request in requests]
        queue = PrefillQueue(self.model, requests, settings, shape.rows)
        batch = self._step_for(settings, shape, queue.peek())
        column, steps = max(before), 0
        taken: dict[int, int] = {}  # position of the request that each row writes
        begins: dict[int, int] = {}  # first column of each row
        check_every = CHECK_EVERY if self.records and listener is None else 1
        while queue or taken:
            free = [row for row in range(shape.rows) if row not in taken][: len(queue)]
            for row in free:
                position, prefilled = queue.take()
                batch.load(prefilled, row, column)
                taken[row], begins[row] = position, column - before[position]
            if free:
                batch.begin(column, {row: requests[taken[row]] for row in free})
            if column % step.STRIDE == 0:
                needed = max((before[position] for position in queue.positions), default=0)
                spare = min(*begins.values(), column - needed)
                if spare >= step.STRIDE // 4:
                    batch.slide(spare, column)
                    column -= spare
                    begins = {row: begin - spare for row, begin in begins.items()}
            batch.step(column)
            column, steps = column + 1, steps + 1
            if listener is not None:
                ids = batch.last_ids()
                for row, position in taken.items():
                    listener.put(position, ids[row])
                batch.stop_rows([row for row, position in taken.items() if listener.cancelled(position)])
            if steps % check_every == 0:
                ended = [row for row, end in enumerate(batch.ended()) if end and row in taken]
                for row, output in zip(ended, batch.collect(ended), strict=True):
                    del begins[row]
                    yield taken.pop(row), output


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
