"""One decoding step for all rows of a batch: a forward pass over fixed tensors that chooses the next ids.

A row of the state matrix holds the last id of a text, its position, its first column in the cache, its target and
budget, the number of written ids, whether it is still being written, its draw, and the numbers of its step counter. The
signal is computed from them inside the step. Nothing in a step waits for the GPU, so it can be recorded and replayed;
landings that look at the text itself choose outside of the recording. Shape letters: B rows, W tokens of the longest
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from impatience.control.model import LengthControlled
from impatience.control.repetition import NoLoops
from impatience.control.stopping import LandingProcessor
from impatience.control.threads import copies_wait
from impatience.decoding.base import TokenRequest
from impatience.decoding.cuda_graphs import CudaGraphs
from impatience.decoding.kv_cache import GROUPED, FixedLayer, SlotCache
from impatience.families import text_config, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.steps.repetition import bar_repeats
from impatience.steps.sampling import noisy_scores
from impatience.vocabulary.step_counter import WIDTH, StepCounter

STRIDE = 256  # on a GPU the number of cache columns that are read is a multiple of this; each multiple is recorded once
_CPU_STRIDE = 32  # the same where nothing is recorded

_ID, _POSITION, _BEGIN, _TARGET, _BUDGET, _COUNT, _LIVE, _DRAW, _COUNTER = range(9)


@dataclass(frozen=True)
class DecodingSettings:
    """Settings that all texts of a batch share; they decide which kernels a step runs."""

    unit: Unit  # unit of the targets
    landing: Landing  # stopping mode
    eos: tuple[int, ...]  # ids that end a text
    no_loops: int | None = None  # number of tokens in a row that may not come twice; None for no such ban
    signal: bool = True  # whether the signal steers the model
    draws: bool = False  # whether texts may be drawn; else each token is the likeliest

    def __post_init__(self) -> None:
        """Check ``no_loops``."""
        if self.no_loops is not None:
            NoLoops(self.no_loops)


@dataclass(frozen=True)
class BatchShape:
    """The sizes of a batch's tensors."""

    rows: int  # number of texts written at the same time
    columns: int  # number of columns of the cache
    steps: int  # W, tokens of the longest text
    source: int  # tokens of the longest source of an encoder; 0 for a decoder-only model

    def holds(self, other: BatchShape, times: int) -> bool:
        """Check whether another batch fits into this one, which may have at most so many times its rows."""
        sizes = (self.columns, self.steps, self.source), (other.columns, other.steps, other.source)
        fits = all(size >= needed for size, needed in zip(*sizes, strict=True))
        return fits and other.rows <= self.rows <= times * other.rows


@dataclass(frozen=True)
class Prefilled:
    """The keys and values of a text before its first step."""

    decoder: Tensor  # (L, 2, H, P, D) keys and values of the P tokens before the first step
    source: Tensor | None = None  # (L, 2, H, S, D) keys and values of an encoder's S tokens
    encoded: Tensor | None = None  # (S, width) output of the encoder


@dataclass(frozen=True)
class RowOutput:
    """The output of one row."""

    ids: list[int]  # ids that were written
    eos_probabilities: list[float]  # EOS probability at each of them, after loops were banned
    choices: list[int]  # the model's own choices
    held: list[int]  # what the landing made of them
    eos_curve: list[float]  # the model's own EOS probabilities, before loops were banned
    log_probabilities: list[float]  # the model's own log-probability of each id; 0 for those of a prefix


class DecodingStep:
    """The tensors of a batch, and the step over them; the caches take the shape of an example's prefill."""

    def __init__(
        self, model: LengthControlled, settings: DecodingSettings, shape: BatchShape, example: Prefilled
    ) -> None:
        self.settings, self.shape, self.model = settings, shape, model
        self.inner: Any = unwrap(model.base)
        self.device, self.dtype, self.recorded = self.inner.device, self.inner.dtype, recorded_facts(model)
        self.start = start_token(model)
        self.counter = StepCounter(model.vocabulary, settings.unit, self.device)
        self.prefix_counter = StepCounter(model.vocabulary, settings.unit, torch.device("cpu"))
        self.prefix_counts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.eos = torch.tensor(settings.eos, device=self.device, dtype=torch.long)
        self.state = self._zeros(shape.rows, _COUNTER + WIDTH)
        self.column = self._zeros(1)
        # One column more than there are steps, for rows that have ended to write to.
        self.text, self.choices, self.held = (self._zeros(shape.rows, shape.steps + 1) for _ in range(3))
        self.probabilities, self.curve, self.logs = (
            self._zeros(shape.rows, shape.steps + 1, dtype=torch.float32) for _ in range(3)
        )
        self.scores = self._zeros(shape.rows, text_config(self.inner).vocab_size, dtype=torch.float32)
        self.lander = None
        if settings.landing is not Landing.NATURAL:
            target, start = Target(settings.unit, (1,) * shape.rows), self.state[:, _COUNT]
            last = [0] * shape.rows
            self.lander = LandingProcessor(settings.landing, target, start, last, model.vocabulary, list(settings.eos))
        seen = self.state[:, _POSITION, None] if model.family.positions else self.column
        self.cache = SlotCache(self._store(example.decoder, shape.columns), self.column, seen)
        if example.source is not None and example.encoded is not None:
            self.sources = self._store(example.source, shape.source)
            self.encoded = self._zeros(shape.rows, shape.source, example.encoded.shape[1], dtype=example.encoded.dtype)
            self.source_padding = self._zeros(shape.rows, shape.source, dtype=torch.bool)
            layers = [FixedLayer(keys, values) for keys, values in self.sources]
            self.both_caches = EncoderDecoderCache(self.cache, Cache(layers=layers))
        outputs = [self.text, self.choices, self.held, self.probabilities, self.curve, self.logs]
        changed = [self.state, self.column, *outputs]
        self.graphs = CudaGraphs(self.device, changed)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _store(self, states: Tensor, columns: int) -> Tensor:
        layers, two, heads, _, width = states.shape
        return self._zeros(layers, two, self.shape.rows, heads, columns, width, dtype=states.dtype)

    def clear(self) -> None:
        """End all rows. Each keeps a target of 1 and reads its own column, or it would leave NaN behind."""
        self.state.zero_()
        self.state[:, _TARGET] = 1
        self.prefix_counts.clear()

    def begin(self, column: int, requests: dict[int, TokenRequest]) -> None:
        """Begin texts, or continue their prefixes, at the column of the next step; the requests are given by row."""
        self.column.fill_(column)
        states = []
        for row, request in requests.items():
            ids, prefix = request.decoder_ids(self.start), request.prefix
            if prefix not in self.prefix_counts:
                self.prefix_counts[prefix] = self.prefix_counter.after(prefix)
            position = len(ids) - 1
            begin = column - position
            state = [ids[-1], position, begin, request.target, request.budget, len(prefix), 1, request.draw]
            states.append([*state, *self.prefix_counts[prefix]])
            if prefix:
                written = slice(len(prefix))
                for output in (self.text, self.choices, self.held):
                    output[row, written] = torch.tensor(prefix, device=self.device)
                for numbers in (self.probabilities, self.curve, self.logs):
                    numbers[row, written] = 0
        rows = torch.tensor(list(requests), device=self.device)
        self.state.index_copy_(0, rows, torch.tensor(states, device=self.device))

    def load(self, prefilled: Prefilled, row: int, column: int) -> None:
        """Copy the prefill of a text into its row, before the column of its first step."""
        self.cache.load(prefilled.decoder, row, column)
        if prefilled.source is None or prefilled.encoded is None:
            return
        tokens = prefilled.encoded.shape[0]
        self.sources[:, :, row, :, :tokens] = prefilled.source
        self.encoded[row, :tokens] = prefilled.encoded
        self.source_padding[row] = torch.arange(self.shape.source, device=self.device) >= tokens

    def slide(self, by: int, column: int) -> None:
        """Drop the first columns of the cache."""
        self.cache.slide(by, column)
        self.state[:, _BEGIN] -= by
        self.column -= by

    def step(self, column: int) -> None:
        """Write one token in every row, at a column."""
        stride = STRIDE if self.device.type == "cuda" else _CPU_STRIDE
        self.cache.columns_read = min(-(-(column + 1) // stride) * stride, self.shape.columns)
        if self.lander is None or self.settings.unit is Unit.TOKENS:
            self.graphs.step(self.cache.columns_read, self._forward_and_choose)
        else:
            self.graphs.step(self.cache.columns_read, self._forward)
            self._choose()

    def last_ids(self) -> list[int]:
        """Return the id that was written last in each row."""
        ids: list[int] = self.state[:, _ID].tolist()
        return ids

    def stop_rows(self, rows: Sequence[int]) -> None:
        """End texts where they are."""
        if rows:
            self.state[list(rows), _LIVE] = 0

    def ended(self) -> list[bool]:
        """Return for each row whether it is not being written."""
        return [not live for live in self.state[:, _LIVE].tolist()]

    def collect(self, rows: Sequence[int]) -> list[RowOutput]:
        """Return what was written in rows."""
        if not rows:
            return []
        index = torch.tensor(rows, device=self.device)
        counts = self.state[index, _COUNT].tolist()
        outputs = (self.text, self.probabilities, self.choices, self.held, self.curve, self.logs)
        columns = [tensor[index, : max(counts)].tolist() for tensor in outputs]
        return [RowOutput(*(column[row][:count] for column in columns)) for row, count in enumerate(counts)]

    def _forward_and_choose(self) -> None:
        self._forward()
        self._choose()

    def _forward(self) -> None:
        """Compute the scores of the next token of every row."""
        state = self.state
        signal: AbstractContextManager[None] = nullcontext()
        if self.settings.signal:
            progress = self.counter.progress(state[:, _COUNTER:])[:, None]
            signal = self.model.step_signal(progress, state[:, _TARGET, None], self.settings.unit)
        columns = torch.arange(self.cache.columns_read, device=self.device)
        mask = self._additive_mask((columns < state[:, _BEGIN, None]) | (columns > self.column))
        inputs: dict[str, Any] = {"input_ids": state[:, _ID, None], "attention_mask": mask}
        if self.shape.source:
            inputs = {f"decoder_{name}": value for name, value in inputs.items()}
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=self.encoded)
            inputs["attention_mask"] = self._additive_mask(self.source_padding)
            inputs["past_key_values"] = self.both_caches
        else:
            inputs |= {"position_ids": state[:, _POSITION, None], "past_key_values": self.cache}
        # cuDNN would make a new plan for every shape, which is not allowed while a step is recorded.
        backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with signal, sdpa_kernel(backends) if self.device.type == "cuda" else nullcontext():
            logits = self.inner(**inputs, use_cache=True, return_dict=True).logits
        self.scores.copy_(logits[:, -1])

    def _additive_mask(self, hidden: Tensor) -> Tensor:
        """Return a (B, 1, 1, C) mask to add to attention scores."""
        mask = self._zeros(*hidden.shape, dtype=self.dtype)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)[:, None, None]

    def _choose(self) -> None:
        """Choose the next ids by the scores, and update the state."""
        state, scores = self.state, self.scores
        count, live = state[:, _COUNT], state[:, _LIVE]
        probability = self._eos_probability(scores)
        self._append(self.curve, probability)
        start = self.shape.steps - count
        if self.lander is not None or self.settings.no_loops is not None:
            columns = torch.arange(self.shape.steps, device=self.device) - start[:, None]
            ids = self.text.gather(1, columns.clamp(min=0))  # (B, W), the last id of every text in the last column
        if self.settings.no_loops is not None:
            scores = bar_repeats(ids, scores, self.settings.no_loops, start[:, None])
            probability = self._eos_probability(scores)
        written = scores.argmax(-1)
        self._append(self.choices, written)
        self._append(self.probabilities, probability)
        if self.lander is not None:
            self.lander.set_rows(state[:, _TARGET], start, start + state[:, _BUDGET])
            scores = self.lander(ids, scores)
            written = scores.argmax(-1)
        self._append(self.held, written)
        if self.settings.draws:
            written = noisy_scores(scores, state[:, _DRAW], count).argmax(-1)
        self._append(self.text, written)
        self._append(self.logs, self.scores.gather(1, written[:, None])[:, 0] - self.scores.logsumexp(-1))
        counted = self.counter.advance(state[:, _COUNTER:], written)
        ended = (written[:, None] == self.eos).any(1) | (count + live >= state[:, _BUDGET])
        same = (state[:, column] for column in (_BEGIN, _TARGET, _BUDGET))
        next_state = [written, state[:, _POSITION] + live, *same, count + live, live * (~ended).long(), state[:, _DRAW]]
        state.copy_(torch.cat([torch.stack(next_state, 1), counted], 1))
        self.column.add_(1)

    def _append(self, output: Tensor, values: Tensor) -> None:
        """Write (B,) values after the last ones of each row."""
        output.scatter_(1, self.state[:, _COUNT, None], values[:, None])

    def _eos_probability(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).index_select(1, self.eos).sum(-1)


def start_token(model: LengthControlled) -> int | None:
    """Return the start token of an encoder-decoder, or None for a decoder-only model."""
    if not model.family.encoder_decoder:
        return None
    return int(unwrap(model.base).generation_config.decoder_start_token_id)


def recorded_facts(model: LengthControlled) -> list[float]:
    """Return what a recorded step cannot change: the memory addresses of all weights, and the signal's amplitude."""
    return [*(weight.data_ptr() for weight in model.parameters()), model.steering.amplitude * model.steering.factor]


@contextmanager
def prepared_model(model: LengthControlled) -> Iterator[None]:
    """Prepare a model for steps: attention copies no keys, and each row has a position of its own.

    Other threads wait, except those that call the base model itself: they read what they would read without this. At
    the end, or after an error, the model is as before.
    """
    inner: Any = unwrap(model.base)
    config, family = text_config(inner), model.family
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    with model.exclusive(), copies_wait(inner, model.steering.lock), ExitStack() as cleanup:
        if config._attn_implementation == "sdpa" and heads != config.num_attention_heads:
            cleanup.callback(inner.set_attn_implementation, "sdpa")
            inner.set_attn_implementation(GROUPED)
        if family.encoder_decoder and family.positions:
            # BART's table takes (T,) positions and returns (1, T, D); given (B, 1), it returns (1, B, 1, D).
            table = family.decoder_of(inner).get_submodule(family.positions)
            hook = table.register_forward_hook(lambda _, __, output: output[0] if output.dim() == 4 else output)
            cleanup.callback(hook.remove)
        yield
