"""One step of many texts: tensors that stay where they are, and a forward pass over them that chooses the next ids.

What a row is about is in a few numbers: its last id, its position, its first column in the cache, its target, its
budget, how much is written, whether it is still being written, its draw, and its tally. The signal is computed from
them inside the step. Nothing in a step waits for the GPU, so it can be recorded and replayed; but for landings that
have to look at the text itself, which choose outside of it. Shape letters: B rows, W tokens of the longest text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from impatience.control.model import LengthControlled
from impatience.control.repetition import NoLoops, bar_repeats
from impatience.control.sampling import noisy_scores
from impatience.control.stopping import LandingProcessor
from impatience.data import Begun
from impatience.decoding.cuda_graphs import CudaGraphs
from impatience.decoding.kv_cache import GROUPED, SlotCache, SourceCache
from impatience.decoding.step_counter import WIDTH, StepCounter
from impatience.families import unwrap
from impatience.lengths import Landing, Target, Unit

STRIDE = 256
"""On a GPU the cache is read in so many columns at a time: a recorded step reads as many as it was recorded with."""
_FINE = 32
"""The same where nothing is recorded."""

_ID, _POSITION, _BEGIN, _TARGET, _BUDGET, _COUNT, _LIVE, _DRAW, _TALLY = range(9)


@dataclass(frozen=True)
class DecodingSettings:
    """How texts are written: what decides which kernels a step runs.

    Attributes:
        unit: What targets are counted in.
        landing: Who decides where texts end.
        eos: The ids that end a text.
        no_loops: How many tokens in a row may not come twice; None if they may.
        steered: Whether the model is told how long its texts must be.
        draws: Whether texts may be drawn; else each token is the likeliest.
    """

    unit: Unit
    landing: Landing
    eos: tuple[int, ...]
    no_loops: int | None = None
    steered: bool = True
    draws: bool = False

    def __post_init__(self) -> None:
        """Refuse stretches that are too short."""
        if self.no_loops is not None:
            NoLoops(self.no_loops)


@dataclass(frozen=True)
class BatchShape:
    """What a batch has room for.

    Attributes:
        rows: Texts that are written at the same time.
        columns: Of the cache.
        steps: W, tokens of the longest text.
        source: Tokens of the longest source of an encoder; 0 for a decoder-only model.
    """

    rows: int
    columns: int
    steps: int
    source: int

    def holds(self, other: BatchShape, times: int) -> bool:
        """Tell whether what fits into another size fits here too, with at most so many times its rows."""
        room = (self.columns, self.steps, self.source), (other.columns, other.steps, other.source)
        enough = all(mine >= its for mine, its in zip(*room, strict=True))
        return enough and other.rows <= self.rows <= times * other.rows


@dataclass(frozen=True)
class Prefilled:
    """What the model keeps of a source.

    Attributes:
        own: (L, 2, H, P, D) keys and values of the decoder's P tokens.
        source: (L, 2, H, S, D) keys and values of the encoder's S tokens, where there is one.
        encoded: (S, width) the source itself, encoded.
    """

    own: Tensor
    source: Tensor | None = None
    encoded: Tensor | None = None


@dataclass(frozen=True)
class RowStart:
    """Where a text begins.

    Attributes:
        first: The id that comes next.
        read: How many were read before it.
        target: How long the text must be.
        budget: The most tokens of it, EOS included.
        begun: What is there of it; its last id is ``first``.
    """

    first: int
    read: int
    target: int
    budget: int
    begun: Begun


@dataclass(frozen=True)
class RowOutput:
    """What was written in a row: ids, and of each step what the model itself would have done.

    Attributes:
        ids: What was written.
        chances: What the model gave EOS, after what may not come twice was barred.
        choices: What it would have written.
        curve: What it gave EOS before.
    """

    ids: list[int]
    chances: list[float]
    choices: list[int]
    curve: list[float]


class DecodingStep:
    """The rows of a batch, and the step that takes them all on.

    Args:
        model: What writes.
        manner: How.
        size: What there is room for.
        example: What was read of some source: the caches are made in its shape.
    """

    def __init__(
        self, model: LengthControlled, settings: DecodingSettings, size: BatchShape, example: Prefilled
    ) -> None:
        self.settings, self.size, self.model = settings, size, model
        self.inner: Any = unwrap(model.base_model)
        self.device, self.dtype, self.places = self.inner.device, self.inner.dtype, places_of(self.inner)
        self.tally = StepCounter(model.vocabulary, settings.unit, self.device)
        self.counter = StepCounter(model.vocabulary, settings.unit, torch.device("cpu"))
        self.counted: dict[tuple[int, ...], tuple[int, ...]] = {}  # what rows keep that go on with a text
        self.eos = torch.tensor(settings.eos, device=self.device, dtype=torch.long)
        self.numbers = self._zeros(size.rows, _TALLY + WIDTH)
        self.column = self._zeros(1)
        # One column more than there are steps, for rows that have ended to write to.
        self.text, self.choice = (self._zeros(size.rows, size.steps + 1) for _ in range(2))
        self.chance, self.curve = (self._zeros(size.rows, size.steps + 1, dtype=torch.float32) for _ in range(2))
        self.scores = self._zeros(size.rows, self.inner.config.vocab_size, dtype=torch.float32)
        self.lander = None
        if settings.landing is not Landing.NATURAL:
            target, start = Target(settings.unit, (1,) * size.rows), self.numbers[:, _COUNT]
            last = [0] * size.rows
            self.lander = LandingProcessor(settings.landing, target, start, last, model.vocabulary, list(settings.eos))
        seen = self.numbers[:, _POSITION, None] if model.family.positions else self.column
        self.cache = SlotCache(self._store(example.own, size.columns), self.column, seen)
        if example.source is not None and example.encoded is not None:
            self.sources = SourceCache(self._store(example.source, size.source))
            self.encoded = self._zeros(size.rows, size.source, example.encoded.shape[1], dtype=example.encoded.dtype)
            self.unreadable = self._zeros(size.rows, size.source, dtype=torch.bool)
            self.both = EncoderDecoderCache(self.cache, self.sources)
        state = [self.numbers, self.column, self.text, self.choice, self.chance, self.curve]
        self.replays = CudaGraphs(self.device, state)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _store(self, states: Tensor, columns: int) -> Tensor:
        layers, two, heads, _, width = states.shape
        return self._zeros(layers, two, self.size.rows, heads, columns, width, dtype=states.dtype)

    def clear(self) -> None:
        """Let no row be written any more; each still reads something and has a target, or it would leave NaN behind."""
        self.numbers.zero_()
        self.numbers[:, _TARGET] = 1
        self.counted.clear()

    def begin(self, column: int, texts: dict[int, RowStart]) -> None:
        """Begin texts, or go on with what is there of them.

        Args:
            column: Where the next step writes, in all rows.
            texts: By row.
        """
        self.column.fill_(column)
        numbers = []
        for row, text in texts.items():
            ids, draw = text.begun
            place = text.first, text.read, column - text.read, text.target, text.budget
            if ids not in self.counted:
                self.counted[ids] = self.counter.after(ids)
            numbers.append([*place, len(ids), 1, draw, *self.counted[ids]])
            if ids:
                self.text[row, : len(ids)] = self.choice[row, : len(ids)] = torch.tensor(ids, device=self.device)
                self.chance[row, : len(ids)] = self.curve[row, : len(ids)] = 0
        rows = torch.tensor(list(texts), device=self.device)
        self.numbers.index_copy_(0, rows, torch.tensor(numbers, device=self.device))

    def place(self, read: Prefilled, row: int, column: int) -> None:
        """Put what was read of a source where its text will be written."""
        self.cache.place(read.own, row, column)
        if read.source is None or read.encoded is None:
            return
        tokens = read.encoded.shape[0]
        self.sources.store[:, :, row, :, :tokens] = read.source
        self.encoded[row, :tokens] = read.encoded
        self.unreadable[row] = torch.arange(self.size.source, device=self.device) >= tokens

    def slide(self, by: int, column: int) -> None:
        """Give up the first columns of the cache."""
        self.cache.slide(by, column)
        self.numbers[:, _BEGIN] -= by
        self.column -= by

    def step(self, column: int) -> None:
        """Write one token in every row, at a column."""
        stride = STRIDE if self.device.type == "cuda" else _FINE
        self.cache.read = min(-(-(column + 1) // stride) * stride, self.size.columns)
        if self.lander is None or self.settings.unit is Unit.TOKENS:
            self.replays.step(self.cache.read, self._whole)
        else:
            self.replays.step(self.cache.read, self._forward)
            self._choose()

    def last(self) -> list[int]:
        """Return the id that was written last in each row."""
        ids: list[int] = self.numbers[:, _ID].tolist()
        return ids

    def give_up(self, rows: Sequence[int]) -> None:
        """End texts where they are."""
        if rows:
            self.numbers[list(rows), _LIVE] = 0

    def ended(self) -> list[bool]:
        """Tell of each row whether it is not, or no longer, being written."""
        return [not live for live in self.numbers[:, _LIVE].tolist()]

    def collect(self, rows: Sequence[int]) -> list[RowOutput]:
        """Return what was written in rows."""
        if not rows:
            return []
        places = torch.tensor(rows, device=self.device)
        counts = self.numbers[places, _COUNT].tolist()
        kept = (self.text, self.chance, self.choice, self.curve)
        columns = [tensor[places, : max(counts)].tolist() for tensor in kept]
        return [RowOutput(*(column[row][:count] for column in columns)) for row, count in enumerate(counts)]

    def _whole(self) -> None:
        self._forward()
        self._choose()

    def _forward(self) -> None:
        """Leave the scores for the next token of every row."""
        numbers = self.numbers
        signal: AbstractContextManager[None] = nullcontext()
        if self.settings.steered:
            progress = self.tally.progress(numbers[:, _TALLY:])[:, None]
            signal = self.model.step_signal(progress, numbers[:, _TARGET, None], self.settings.unit)
        columns = torch.arange(self.cache.read, device=self.device)
        mask = self._additive((columns < numbers[:, _BEGIN, None]) | (columns > self.column))
        given: dict[str, Any] = {"input_ids": numbers[:, _ID, None], "attention_mask": mask}
        if self.size.source:
            given = {f"decoder_{name}": value for name, value in given.items()}
            given["encoder_outputs"] = BaseModelOutput(last_hidden_state=self.encoded)
            given |= {"attention_mask": self._additive(self.unreadable), "past_key_values": self.both}
        else:
            given |= {"position_ids": numbers[:, _POSITION, None], "past_key_values": self.cache}
        # cuDNN would plan for every shape anew, which it must not while a step is recorded.
        chosen = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with signal, sdpa_kernel(chosen) if self.device.type == "cuda" else nullcontext():
            logits = self.inner(**given, use_cache=True, return_dict=True).logits
        self.scores.copy_(logits[:, -1])

    def _additive(self, unreadable: Tensor) -> Tensor:
        """Return a (B, 1, 1, C) mask to be added to attention scores."""
        mask = self._zeros(*unreadable.shape, dtype=self.dtype)
        return mask.masked_fill_(unreadable, torch.finfo(self.dtype).min)[:, None, None]

    def _choose(self) -> None:
        """Write what the scores say, and take all numbers on."""
        numbers, scores = self.numbers, self.scores
        count, live = numbers[:, _COUNT], numbers[:, _LIVE]
        chance = self._eos_probability(scores)
        self._note(self.curve, chance)
        start = self.size.steps - count
        if self.lander is not None or self.settings.no_loops is not None:
            columns = torch.arange(self.size.steps, device=self.device) - start[:, None]
            ids = self.text.gather(1, columns.clamp(min=0))  # (B, W), every text's last id in the last column
        if self.settings.no_loops is not None:
            scores = bar_repeats(ids, scores, self.settings.no_loops, start[:, None])
            chance = self._eos_probability(scores)
        written = scores.argmax(-1)
        self._note(self.choice, written)
        self._note(self.chance, chance)
        if self.lander is not None:
            self.lander.set_rows(numbers[:, _TARGET], start, start + numbers[:, _BUDGET])
            scores = self.lander(ids, scores)
            written = scores.argmax(-1)
        if self.settings.draws:
            written = noisy_scores(scores, numbers[:, _DRAW], count).argmax(-1)
        self._note(self.text, written)
        budget, kept = numbers[:, _BUDGET], self.tally.advance(numbers[:, _TALLY:], written)
        ended = (written[:, None] == self.eos).any(1) | (count + live >= budget)
        same = (numbers[:, column] for column in (_BEGIN, _TARGET, _BUDGET))
        moved = [written, numbers[:, _POSITION] + live, *same, count + live, live * (~ended).long(), numbers[:, _DRAW]]
        numbers.copy_(torch.cat([torch.stack(moved, 1), kept], 1))
        self.column.add_(1)

    def _note(self, track: Tensor, values: Tensor) -> None:
        """Write (B,) values after what was written so far."""
        track.scatter_(1, self.numbers[:, _COUNT, None], values[:, None])

    def _eos_probability(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).index_select(1, self.eos).sum(-1)


def places_of(model: Any) -> list[int]:
    """Return where the weights are: a recorded step reads them there, and nowhere else."""
    return [weight.data_ptr() for weight in model.parameters()]


@contextmanager
def at_work(model: LengthControlled) -> Iterator[None]:
    """While steps are taken, let attention copy no keys, and each row have a position of its own.

    However that ends, the model is left as it was, and unsteered.
    """
    inner: Any = unwrap(model.base_model)
    config, family = inner.config, model.family
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    model.clear_signal()
    with ExitStack() as after:
        if config._attn_implementation == "sdpa" and heads != config.num_attention_heads:
            after.callback(inner.set_attn_implementation, "sdpa")
            inner.set_attn_implementation(GROUPED)
        if family.encoder_decoder and family.positions:
            # BART's table takes (T,) positions and answers (1, T, D); given (B, 1), it answers (1, B, 1, D).
            table = family.decoder_of(inner).get_submodule(family.positions)
            hook = table.register_forward_hook(lambda _, __, answer: answer[0] if answer.dim() == 4 else answer)
            after.callback(hook.remove)
        yield
