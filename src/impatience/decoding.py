"""Greedy writing, fast: one step for all rows, recorded once on a GPU, and rows that are filled again as texts end.

``generate`` of transformers grows its cache and looks at all ids at every step, and a batch takes as long as its
longest text. Here a step is one forward pass over tensors that stay where they are, with the signal computed inside
it from a few numbers a row, so that a GPU can replay it. Where a text ends, the next one takes its row.

What is read before the last token of a prompt gets no signal and is read in one pass. The last token, which carries
progress 0 (in an encoder-decoder: the start token), is the first step. Texts are those that ``generate`` writes one at
a time, and do not depend on what they are written with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from impatience.endings import LengthReport, Settlement
from impatience.families import unwrap
from impatience.graphs import Replays
from impatience.landing import Lander, Landing
from impatience.lengths import Target, Unit
from impatience.model import LengthControlled
from impatience.repetition import bar
from impatience.slots import GROUPED, SlotCache, SourceCache, stacked
from impatience.tally import WIDTH, Tally

STRIDE = 256
"""Columns of the cache are read in so many at a time: a recorded step reads as many as it was recorded with."""
PEEK = 4
"""On a GPU it is looked up after so many steps which texts have ended: looking means waiting for it."""
PREFILL = 16_384
"""The most tokens that are read in one pass, padding included."""

_ID, _POSITION, _BEGIN, _TARGET, _BUDGET, _COUNT, _LIVE, _TALLY = range(8)


@dataclass(frozen=True)
class Order:
    """A text to write.

    Attributes:
        ids: What the model reads, without padding.
        target: How long the text must be.
        budget: The most tokens to write, EOS included.
    """

    ids: Sequence[int]
    target: int
    budget: int


@dataclass(frozen=True)
class Written:
    """A text as it was written.

    Attributes:
        ids: What the model wrote, with the EOS that ends it unless the budget did.
        kept: How many of them the landing leaves; EOS is not counted.
        report: How it ended.
        eos_curve: What the model itself gave EOS at each step, before anything was barred.
    """

    ids: tuple[int, ...]
    kept: int
    report: LengthReport
    eos_curve: tuple[float, ...]


@dataclass(frozen=True)
class Manner:
    """How texts are written: what decides which kernels a step runs.

    Attributes:
        unit: What targets are counted in.
        landing: Who decides where texts end.
        eos: The ids that end a text.
        no_loops: How many tokens in a row may not come twice; None if they may.
    """

    unit: Unit
    landing: Landing
    eos: tuple[int, ...]
    no_loops: int | None = None


def unsupported(model: LengthControlled, options: Mapping[str, Any]) -> str | None:
    """Say why texts cannot be written here, as the end of a sentence, or return None if they can.

    Args:
        model: What writes.
        options: What ``generate`` would be given besides inputs, target, landing and ``no_loops``.
    """
    inner = unwrap(model.base_model)
    config = inner.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if inner is not model.base_model:
        return "an adapter or a compiler is wrapped around it"
    if model.steering.conventions != "paper":
        return "it follows the authors' conventions"
    if config._attn_implementation not in ("sdpa", "eager"):
        return f"its attention is {config._attn_implementation!r}"
    if getattr(config, "sliding_window", None) is not None:
        return "it reads its text through a window"
    if rope not in _FIXED_ROPE:
        return f"its positions are scaled by length ({rope})"
    wishes = inner.generation_config.to_diff_dict() | dict(options)
    if wishes.get("do_sample") or (wishes.get("num_beams") or 1) > 1:
        return "it searches or draws"
    extra = sorted(name for name, value in wishes.items() if value is not None and name not in _HARMLESS)
    return f"of {', '.join(extra)}" if extra else None


_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
_HARMLESS = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens"),
    *("do_sample", "temperature", "top_k", "top_p", "num_beams", "early_stopping", "length_penalty"),
    *("use_cache", "transformers_version", "_from_model_config"),
}
"""Settings that a greedy search does not look at, or that a target replaces."""


class Decoder:
    """Writes with one model, greedily.

    Args:
        model: What writes; see ``unsupported``.
    """

    def __init__(self, model: LengthControlled) -> None:
        self.model = model
        self._batch: _Batch | None = None

    def write(self, orders: Sequence[Order], manner: Manner, rows: int) -> list[Written]:
        """Write texts, so many at a time; those that come first are begun first.

        Args:
            orders: What to write.
            manner: How.
            rows: The most texts that are written at the same time.

        Returns:
            A text for each order, in their order.
        """
        if not orders:
            return []
        with torch.inference_mode(), _quick_attention(self.model), _own_positions(self.model):
            batch = self._set_up(orders, manner, min(rows, len(orders)))
            return batch.write(orders)

    def _set_up(self, orders: Sequence[Order], manner: Manner, rows: int) -> _Batch:
        """Return tensors that have room for all this: those of the last call, if they have."""
        encoder_decoder = self.model.family.encoder_decoder
        steps = _up(max(order.budget for order in orders), 64)
        source = _up(max(len(order.ids) for order in orders), 64) if encoder_decoder else 0
        longest = max((0 if encoder_decoder else len(order.ids) - 1) + order.budget for order in orders)
        columns = _up(longest + STRIDE // 2, STRIDE)
        batch = self._batch
        if batch is None or not batch.has_room(manner, rows, columns, steps, source, self.model):
            self._batch = batch = None  # before the next one takes its memory
            self._batch = batch = _Batch(self.model, manner, rows, columns, steps, source)
        return batch


class _Batch:
    """The rows of a batch: what is in them, and the step that takes them all on.

    Args:
        model: What writes.
        manner: How.
        rows: B.
        columns: Of the cache.
        steps: W, the most tokens of a text.
        source: The most tokens of an encoder's source; 0 for a decoder-only model.
    """

    def __init__(
        self, model: LengthControlled, manner: Manner, rows: int, columns: int, steps: int, source: int
    ) -> None:
        self.model, self.manner, self.rows, self.steps, self.source = model, manner, rows, steps, source
        self.inner, self.family, self.steering = unwrap(model.base_model), model.family, model.steering
        self.decoder = self.family.decoder_of(self.inner)
        self.device, self.dtype = self.inner.device, self.inner.dtype
        self.columns = columns
        self.tally = Tally(model.vocabulary, manner.unit, self.device)
        self.eos = torch.tensor(manner.eos, device=self.device, dtype=torch.long)
        self.numbers = torch.zeros(rows, _TALLY + WIDTH, dtype=torch.long, device=self.device)
        self.column = torch.zeros(1, dtype=torch.long, device=self.device)
        # One column more than there are steps, for rows that have ended to write to.
        self.text = torch.zeros(rows, steps + 1, dtype=torch.long, device=self.device)
        self.choice, self.chance = torch.zeros_like(self.text), torch.zeros_like(self.text, dtype=torch.float32)
        self.curve = torch.zeros_like(self.chance)
        self.scores = torch.zeros(rows, self.inner.config.vocab_size, dtype=torch.float32, device=self.device)
        self.lander = self._lander()
        self.cache: SlotCache | None = None
        state = [self.numbers, self.column, self.text, self.choice, self.chance, self.curve]
        self.replays = Replays(self.device, state)

    def has_room(
        self, manner: Manner, rows: int, columns: int, steps: int, source: int, model: LengthControlled
    ) -> bool:
        """Tell whether texts of such sizes can be written here."""
        same = manner == self.manner and rows == self.rows and self.device == unwrap(model.base_model).device
        return same and columns <= self.columns and steps <= self.steps and source <= self.source

    def _lander(self) -> Lander | None:
        if self.manner.landing is Landing.NATURAL:
            return None
        target, start = Target(self.manner.unit, (1,) * self.rows), self.numbers[:, _COUNT]
        last = [0] * self.rows
        return Lander(self.manner.landing, target, start, last, self.model.vocabulary, list(self.manner.eos))

    def write(self, orders: Sequence[Order]) -> list[Written]:
        """Write texts, each row one after the other."""
        settlement = Settlement(self.manner.unit, self.manner.landing, self.manner.eos, self.model.vocabulary)
        queue = _Queue(self, orders)
        results: list[Written | None] = [None] * len(orders)
        taken: dict[int, int] = {}  # by row, which order it writes
        begins = [0] * self.rows
        self.numbers[:, _LIVE] = 0
        column = 0 if self.source else max(len(order.ids) - 1 for order in orders)
        free, step = list(range(self.rows)), 0
        while True:
            if free and queue:
                filled = self._fill(free, queue, column)
                taken.update(filled)
                for row, place in filled.items():
                    begins[row] = column - (0 if self.source else len(orders[place].ids) - 1)
                free = [row for row in free if row not in filled]
            if not taken:
                break
            if column % STRIDE == 0:
                column = self._make_room(column, min(begins[row] for row in taken), queue.longest, begins)
            self._step(column)
            column, step = column + 1, step + 1
            if self.device.type != "cuda" or step % PEEK == 0:
                ended = [row for row in taken if not self._alive[row]] if self._look() else []
                for row, written in zip(ended, self._collect(ended), strict=True):
                    place = taken.pop(row)
                    results[place] = _settled(written, orders[place], settlement)
                free += ended
        return [result for result in results if result is not None]

    def _look(self) -> bool:
        self._alive: list[int] = self.numbers[:, _LIVE].tolist()
        return not all(self._alive)

    def _fill(self, free: list[int], queue: _Queue, column: int) -> dict[int, int]:
        """Give free rows their next texts, and say which."""
        filled, numbers = {}, []
        for row in free[: len(queue)]:
            place, order, states = queue.take()
            read = 0 if self.source else len(order.ids) - 1
            self._place(states, row, column)
            first = int(self.inner.generation_config.decoder_start_token_id) if self.source else order.ids[-1]
            numbers.append([first, read, column - read, order.target, order.budget, 0, 1, *self.tally.fresh])
            filled[row] = place
        rows = torch.tensor(list(filled), device=self.device)
        self.numbers.index_copy_(0, rows, torch.tensor(numbers, device=self.device))
        self.column.fill_(column)
        return filled

    def _place(self, states: _States, row: int, column: int) -> None:
        """Put what was read of a source where its text will be written."""
        own, source, encoded = states
        if self.cache is None:
            self._allocate(states)
        assert self.cache is not None
        if own is not None and not self.source:
            self.cache.place(own, row, column)
        if source is not None and encoded is not None:
            self.sources.store[:, :, row, :, : source.shape[3]] = source
            self.encoded[row, : encoded.shape[0]] = encoded
            self.unreadable[row] = torch.arange(self.source, device=self.device) >= encoded.shape[0]

    def _allocate(self, states: _States) -> None:
        """Make the caches, in the shape of what was read."""
        own, source, encoded = states
        layers, _, heads, _, width = own.shape
        kind = {"device": self.device, "dtype": own.dtype}
        store = torch.zeros(layers, 2, self.rows, heads, self.columns, width, **kind)
        seen = self.numbers[:, _POSITION, None] if self.family.positions else self.column
        self.cache = SlotCache(store, self.column, seen)
        if source is not None and encoded is not None:
            layers, _, heads, _, width = source.shape
            self.sources = SourceCache(torch.zeros(layers, 2, self.rows, heads, self.source, width, **kind))
            self.encoded = torch.zeros(self.rows, self.source, encoded.shape[1], **kind)
            self.unreadable = torch.zeros(self.rows, self.source, dtype=torch.bool, device=self.device)
            self.both = EncoderDecoderCache(self.cache, self.sources)

    def _make_room(self, column: int, begun: int, waiting: int, begins: list[int]) -> int:
        """Slide the cache over columns that no text reads any more, when that is worth it; return the next column."""
        spare = min(begun, column - waiting)
        if spare < STRIDE // 4:
            return column
        assert self.cache is not None
        self.cache.slide(spare, column)
        self.numbers[:, _BEGIN] -= spare
        self.column -= spare
        begins[:] = [begin - spare for begin in begins]
        return column - spare

    def _step(self, column: int) -> None:
        """Write one token in every row."""
        assert self.cache is not None
        self.cache.read = min(_up(column + 1, STRIDE), self.columns)
        if self.lander is None or self.manner.unit is Unit.TOKENS:
            self.replays.step(self.cache.read, self._whole_step)
        else:  # its landing looks at texts, which a GPU cannot
            self.replays.step(self.cache.read, self._forward)
            self._choose()

    def _whole_step(self) -> None:
        self._forward()
        self._choose()

    def _forward(self) -> None:
        """Leave the scores for the next token of every row."""
        assert self.cache is not None
        numbers = self.numbers
        progress = self.tally.progress(numbers[:, _TALLY:])[:, None]
        self.steering.point(progress, numbers[:, _TARGET, None], self.manner.unit)
        columns = torch.arange(self.cache.read, device=self.device)
        unreadable = (columns < numbers[:, _BEGIN, None]) | (columns > self.column)
        mask, ids = self._additive(unreadable), numbers[:, _ID, None]
        if self.source:
            given: dict[str, Any] = {
                "encoder_outputs": BaseModelOutput(last_hidden_state=self.encoded),
                "attention_mask": self._additive(self.unreadable),
                "decoder_input_ids": ids,
                "decoder_attention_mask": mask,
                "past_key_values": self.both,
            }
        else:
            positions = numbers[:, _POSITION, None]
            given = {
                "input_ids": ids,
                "attention_mask": mask,
                "position_ids": positions,
                "past_key_values": self.cache,
            }
        # cuDNN would plan for every shape anew, which it must not while a step is recorded.
        chosen = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with sdpa_kernel(chosen) if self.device.type == "cuda" else nullcontext():
            logits = self.inner(**given, use_cache=True, return_dict=True).logits
        self.steering.stop()
        self.scores.copy_(logits[:, -1])

    def _additive(self, unreadable: Tensor) -> Tensor:
        """Return a (B, 1, 1, C) mask to be added to attention scores."""
        zeros = torch.zeros(unreadable.shape, dtype=self.dtype, device=self.device)
        return zeros.masked_fill(unreadable, torch.finfo(self.dtype).min)[:, None, None]

    def _choose(self) -> None:
        """Write what the scores say, and take all numbers on."""
        numbers, scores = self.numbers, self.scores
        count, live = numbers[:, _COUNT], numbers[:, _LIVE]
        self.curve.scatter_(1, count[:, None], self._eos_probability(scores))
        if self.lander is not None or self.manner.no_loops is not None:
            columns = torch.arange(self.steps, device=self.device) + (count - self.steps)[:, None]
            aligned = self.text.gather(1, columns.clamp(min=0))
            start = self.steps - count
            if self.manner.no_loops is not None:
                scores = bar(aligned, scores, self.manner.no_loops, start[:, None])
        choice = written = scores.argmax(-1)
        self.choice.scatter_(1, count[:, None], choice[:, None])
        self.chance.scatter_(1, count[:, None], self._eos_probability(scores))
        if self.lander is not None:
            self.lander.follow(numbers[:, _TARGET], start, start + numbers[:, _BUDGET])
            written = self.lander(aligned, scores).argmax(-1)
        self.text.scatter_(1, count[:, None], written[:, None])
        kept = self.tally.advance(numbers[:, _TALLY:], written)
        count = count + live
        ended = (written[:, None] == self.eos).any(1) | (count >= numbers[:, _BUDGET])
        position = numbers[:, _POSITION] + live
        still = live * (~ended).long()
        unchanged = [numbers[:, _BEGIN], numbers[:, _TARGET], numbers[:, _BUDGET]]
        moved = torch.stack([written, position, *unchanged, count, still], 1)
        numbers.copy_(torch.cat([moved, kept], 1))
        self.column.add_(1)

    def _eos_probability(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).index_select(1, self.eos).sum(-1, keepdim=True)

    def _collect(self, rows: list[int]) -> list[_Row]:
        """Return what was written in rows."""
        if not rows:
            return []
        places = torch.tensor(rows, device=self.device)
        counts = self.numbers[places, _COUNT].tolist()
        longest = max(counts)
        columns = [tensor[places, :longest].tolist() for tensor in (self.text, self.chance, self.choice, self.curve)]
        return [_Row(*(column[n][:count] for column in columns)) for n, count in enumerate(counts)]


@dataclass(frozen=True)
class _Row:
    text: list[int]
    chance: list[float]
    choice: list[int]
    curve: list[float]


def _settled(row: _Row, order: Order, settlement: Settlement) -> Written:
    kept, report = settlement.settle(row.text, order.target, row.chance, row.choice)
    return Written(tuple(row.text), kept, report, tuple(row.curve))


_States = tuple[Tensor, Tensor | None, Tensor | None]
"""What was read: (L, 2, H, P, D) keys and values of the decoder, those of the source, and the encoded source."""


class _Queue:
    """Texts that wait for a row; their sources are read some at a time."""

    def __init__(self, batch: _Batch, orders: Sequence[Order]) -> None:
        self.batch, self.orders = batch, orders
        self.waiting = deque(range(len(orders)))
        self.ready: deque[tuple[int, _States]] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ready)

    @property
    def longest(self) -> int:
        """Columns that the longest prompt takes that has no row yet."""
        if self.batch.source:
            return 0
        places = [*self.waiting, *(place for place, _ in self.ready)]
        return max((len(self.orders[place].ids) - 1 for place in places), default=0)

    def take(self) -> tuple[int, Order, _States]:
        """Return the next text, its source read."""
        if not self.ready:
            places = self._next()
            self.ready.extend(zip(places, self._read([self.orders[place].ids for place in places]), strict=True))
        place, states = self.ready.popleft()
        return place, self.orders[place], states

    def _next(self) -> list[int]:
        """Return what is read in the next pass."""
        places: list[int] = []
        longest = 0
        while self.waiting and len(places) < self.batch.rows:
            longest = max(longest, len(self.orders[self.waiting[0]].ids))
            if places and longest * (len(places) + 1) > PREFILL:
                break
            places.append(self.waiting.popleft())
        return places

    def _read(self, rows: list[Sequence[int]]) -> Iterator[_States]:
        batch = self.batch
        batch.steering.stop()
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(batch.device)
        if batch.source:
            lengths = torch.tensor([len(row) for row in rows], device=batch.device)
            mask = (torch.arange(ids.shape[1], device=batch.device) < lengths[:, None]).long()
            encoded = batch.inner.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            both = EncoderDecoderCache(DynamicCache(), DynamicCache())
            start = torch.full_like(ids[:, :1], batch.inner.generation_config.decoder_start_token_id)
            given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask, "past_key_values": both}
            batch.decoder(input_ids=start, **given, use_cache=True)
            own, source = stacked(both.self_attention_cache), stacked(both.cross_attention_cache)
            for row, read in enumerate(rows):
                yield own[:, :, row], source[:, :, row, :, : len(read)], encoded[row, : len(read)]
            return
        # Padding is on the right, where no earlier token sees it; of the last token one step is made.
        cache, ids = DynamicCache(), ids[:, : max(1, ids.shape[1] - 1)]
        batch.decoder(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
        own = stacked(cache)
        for row, read in enumerate(rows):
            yield own[:, :, row, :, : len(read) - 1], None, None


@contextmanager
def _quick_attention(model: LengthControlled) -> Iterator[None]:
    """Let heads that share keys attend without copies of them."""
    inner = unwrap(model.base_model)
    config = inner.config
    heads, shared = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    if config._attn_implementation != "sdpa" or shared is None or shared == heads:
        yield
        return
    inner.set_attn_implementation(GROUPED)
    try:
        yield
    finally:
        inner.set_attn_implementation("sdpa")


@contextmanager
def _own_positions(model: LengthControlled) -> Iterator[None]:
    """Let each row of an encoder-decoder have a position of its own.

    BART's table of positions takes (T,) of them and answers (1, T, D); given (B, 1), it answers (1, B, 1, D).
    """
    if not (model.family.encoder_decoder and model.family.positions):
        yield
        return
    table = model.family.decoder_of(unwrap(model.base_model)).get_submodule(model.family.positions)
    handle = table.register_forward_hook(lambda _, __, answer: answer[0] if answer.dim() == 4 else answer)
    try:
        yield
    finally:
        handle.remove()


def _up(count: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-count // step) * step
