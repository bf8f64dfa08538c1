"""Greedy writing, fast: one step for all rows, recorded once on a GPU, and rows that are filled again as texts end.

``generate`` of transformers grows its cache and looks at all ids at every step, and a batch takes as long as its
longest text. Here a step is one forward pass over tensors that stay where they are, see ``decoding.step``, so
that a GPU can replay it. Where a text ends, the next one takes its row.

What is read before the last token of a prompt gets no signal and is read in one pass. The last token, which carries
progress 0 (in an encoder-decoder: the start token), is the first step. A text that is begun is read in that pass too,
with its signal, and its last token is the first step. Texts are those that ``generate`` writes one at a time, and do
not depend on what they are written with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from impatience.control.model import LengthControlled
from impatience.control.report import LengthReport, LengthReporter
from impatience.control.steering import BatchTargets
from impatience.data import FRESH, Begun
from impatience.decoding import step
from impatience.decoding.kv_cache import GROUPED, stacked
from impatience.decoding.step import (
    BatchShape,
    DecodingSettings,
    DecodingStep,
    Prefilled,
    RowOutput,
    RowStart,
    at_work,
    places_of,
)
from impatience.families import unwrap

PEEK = 4
"""On a GPU it is looked up after so many steps which texts have ended: looking means waiting for it."""
PREFILL = 16_384
"""The most tokens that are read in one pass, padding included."""
KEPT = 3
"""On a GPU the tensors and recorded steps of so many manners and sizes are kept for the next call; else the latest."""
SPARE = 4
"""On a GPU steps that were recorded with up to so many times the rows are replayed: idle rows cost little there."""

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
_HARMLESS = {
    *("do_sample", "temperature", "top_k", "top_p", "num_beams", "early_stopping", "length_penalty"),
    *("max_new_tokens", "pad_token_id", "use_cache"),
}
"""Settings that a greedy search does not look at, or that callers turn into budgets."""
_OWN = {
    *("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    *("max_length", "min_length", "min_new_tokens", "transformers_version", "_from_model_config"),
}
"""Settings of a model that are followed, or that a target replaces. A caller who gives others needs ``generate``."""


@dataclass(frozen=True)
class TokenRequest:
    """A text to write.

    Attributes:
        ids: What the model reads, without padding.
        target: How long the text must be.
        budget: The most tokens of the text, EOS included.
        begun: What is there of it already.
    """

    ids: Sequence[int]
    target: int
    budget: int
    begun: Begun = FRESH


@dataclass(frozen=True)
class TokenResult:
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


def unsupported(model: LengthControlled, options: Mapping[str, Any]) -> str | None:
    """Say why texts cannot be written here, as the end of a sentence, or return None if they can.

    Args:
        model: What writes.
        options: What ``generate`` would be given besides inputs, target, landing and ``no_loops``.
    """
    inner: Any = unwrap(model.base_model)
    config = inner.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if inner is not model.base_model:
        return "an adapter or a compiler is wrapped around it"
    if model.conventions != "paper":
        return "it follows the authors' conventions"
    if config._attn_implementation not in ("sdpa", "eager", GROUPED):  # the last while another thread writes
        return f"its attention is {config._attn_implementation!r}"
    if getattr(config, "sliding_window", None) is not None:
        return "it reads its text through a window"
    if rope not in _FIXED_ROPE:
        return f"its positions are scaled by length ({rope})"
    own = inner.generation_config.to_diff_dict()
    wishes = {name: value for name, value in own.items() if name not in _OWN} | dict(options)
    if wishes.get("do_sample") or (wishes.get("num_beams") or 1) > 1:
        return "it searches or draws"
    extra = sorted(name for name, value in wishes.items() if value is not None and name not in _HARMLESS)
    return f"of {', '.join(extra)}" if extra else None


class TokenListener(Protocol):
    """Someone who reads texts while they are written."""

    def put(self, place: int, token: int) -> None:
        """Take the next token of an order's text, be it EOS."""

    def gone(self, place: int) -> bool:
        """Tell whether nobody wants an order's text any more: it is then given up."""


class DecodingLoop:
    """Writes with one model, greedily.

    Args:
        model: What writes; see ``unsupported``.
    """

    def __init__(self, model: LengthControlled) -> None:
        self.model = model
        self._inner: Any = unwrap(model.base_model)
        self._steppers: list[DecodingStep] = []  # the latest is the last

    def write(
        self, orders: Sequence[TokenRequest], settings: DecodingSettings, rows: int, watch: TokenListener | None = None
    ) -> list[TokenResult]:
        """Write texts, so many at a time; those that come first are begun first.

        Args:
            orders: What to write.
            settings: How.
            rows: The most texts that are written at the same time.
            watch: Reads along; every step then waits for the GPU.

        Returns:
            A text for each order, in their order.
        """
        if not orders:
            return []
        found: dict[int, TokenResult] = {}
        settings = replace(settings, steered=settings.steered and self.model.steers)
        reporter = LengthReporter(settings.unit, settings.landing, settings.eos, self.model.vocabulary)
        size = self._size(orders, min(rows, len(orders)))
        with torch.inference_mode(), at_work(self.model):
            for place, track in self._run(orders, settings, size, watch):
                order = orders[place]
                kept, report = reporter.report(track.ids, order.target, track.chances, track.choices)
                found[place] = TokenResult(tuple(track.ids), kept, report, tuple(track.curve))
        return [found[place] for place in range(len(orders))]

    @property
    def _recorded(self) -> bool:
        """Whether steps are recorded: then they are worth keeping, and the GPU is not waited for."""
        return bool(self._inner.device.type == "cuda")

    def _size(self, orders: Sequence[TokenRequest], rows: int) -> BatchShape:
        """Return what orders take, rounded up so that recorded steps serve the next ones too."""
        longest = max(self._before(order) + order.budget - len(order.begun.ids) for order in orders)
        columns = _up(longest + step.STRIDE // 2, step.STRIDE)
        source = _up(max(len(order.ids) for order in orders), 64) if self.model.family.encoder_decoder else 0
        return BatchShape(rows, columns, _up(max(order.budget for order in orders), 64), source)

    def _before(self, order: TokenRequest) -> int:
        """Return how many tokens the decoder reads before its first step."""
        return len(order.begun.ids) + (0 if self.model.family.encoder_decoder else len(order.ids) - 1)

    def _ready(self, settings: DecodingSettings, size: BatchShape, example: Prefilled) -> DecodingStep:
        """Return tensors that have room for all this: those of an earlier call, if they have."""
        (idle, most), places = (SPARE, KEPT) if self._recorded else (1, 1), places_of(self._inner)
        fitting = [
            number
            for number, kept in enumerate(self._steppers)
            if kept.settings == settings and kept.places == places and kept.size.holds(size, idle)
        ]
        if fitting:
            self._steppers.append(self._steppers.pop(fitting[-1]))
        else:
            # What is of no use beside the next one, and the oldest, is given up before that one takes its memory.
            others = (kept for kept in self._steppers if kept.settings != settings or not size.holds(kept.size, idle))
            self._steppers = [kept for kept in others if kept.places == places]
            while len(self._steppers) >= most:
                del self._steppers[0]
            self._steppers.append(DecodingStep(self.model, settings, size, example))
        self._steppers[-1].clear()
        return self._steppers[-1]

    def _run(
        self, orders: Sequence[TokenRequest], settings: DecodingSettings, size: BatchShape, watch: TokenListener | None
    ) -> Iterator[tuple[int, RowOutput]]:
        """Write texts, each row one after the other, and yield them as they end."""
        before = [self._before(order) for order in orders]
        queue = _Queue(self._inner, self.model, orders, settings, size.rows)
        stepper = self._ready(settings, size, queue.peek())
        column, steps = max(before), 0
        taken: dict[int, int] = {}  # by row, which order it writes
        begins: dict[int, int] = {}  # by row, its first column
        every = PEEK if self._recorded and watch is None else 1
        while queue or taken:
            free = [row for row in range(size.rows) if row not in taken][: len(queue)]
            begun = {}
            for row in free:
                place, read = queue.take()
                order = orders[place]
                stepper.place(read, row, column)
                begun[row] = RowStart(self._first(order), before[place], order.target, order.budget, order.begun)
                taken[row], begins[row] = place, column - before[place]
            if begun:
                stepper.begin(column, begun)
            if column % step.STRIDE == 0:
                spare = min(*begins.values(), column - max((before[place] for place in queue.places), default=0))
                if spare >= step.STRIDE // 4:
                    stepper.slide(spare, column)
                    column -= spare
                    begins = {row: begin - spare for row, begin in begins.items()}
            stepper.step(column)
            column, steps = column + 1, steps + 1
            if watch is not None:
                ids = stepper.last()
                for row, place in taken.items():
                    watch.put(place, ids[row])
                stepper.give_up([row for row, place in taken.items() if watch.gone(place)])
            if steps % every == 0:
                ended = [row for row, end in enumerate(stepper.ended()) if end and row in taken]
                for row, track in zip(ended, stepper.collect(ended), strict=True):
                    del begins[row]
                    yield taken.pop(row), track

    def _first(self, order: TokenRequest) -> int:
        """Return the id of a text's first step."""
        if order.begun.ids:
            return order.begun.ids[-1]
        if self.model.family.encoder_decoder:
            return int(self._inner.generation_config.decoder_start_token_id)
        return order.ids[-1]


class _Reads(NamedTuple):
    """What is read before a text is written or gone on with, and the target if that is told."""

    ids: tuple[int, ...]
    begun: tuple[int, ...]
    target: int

    @classmethod
    def of(cls, order: TokenRequest) -> _Reads:
        return cls(tuple(order.ids), order.begun.ids, order.target if order.begun.ids else 0)


class _Queue:
    """Texts that wait for a row; their sources are read some at a time.

    Args:
        inner: The model without wrappers.
        model: The same with its signal, which is silent while sources are read.
        orders: What is to be written.
        settings: How.
        most: Sources that are read in one pass.
    """

    def __init__(
        self, inner: Any, model: LengthControlled, orders: Sequence[TokenRequest], settings: DecodingSettings, most: int
    ) -> None:
        self.inner, self.model, self.orders, self.settings, self.most = inner, model, orders, settings, most
        self.waiting = deque(range(len(orders)))
        self.ready: deque[tuple[int, Prefilled]] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ready)

    @property
    def places(self) -> list[int]:
        """What has no row yet."""
        return [*(place for place, _ in self.ready), *self.waiting]

    def peek(self) -> Prefilled:
        """Return what was read for the next text."""
        if not self.ready:
            places = self._next()
            reads = {place: _Reads.of(self.orders[place]) for place in places}
            texts = list(dict.fromkeys(reads.values()))
            read = dict(zip(texts, self._read(texts), strict=True))
            self.ready.extend((place, read[reads[place]]) for place in places)
        return self.ready[0][1]

    def take(self) -> tuple[int, Prefilled]:
        """Return the next text, its source read."""
        self.peek()
        return self.ready.popleft()

    def _next(self) -> list[int]:
        """Return what is read in the next pass; a source that several texts are written from is read once."""
        places: list[int] = []
        texts: set[_Reads] = set()
        longest = 0
        while self.waiting:
            one = _Reads.of(self.orders[self.waiting[0]])
            if one not in texts:
                longest = max(longest, len(one.ids) + len(one.begun))
                if texts and (len(texts) == self.most or longest * (len(texts) + 1) > PREFILL):
                    break
                texts.add(one)
            places.append(self.waiting.popleft())
        return places

    def _read(self, texts: Sequence[_Reads]) -> Iterator[Prefilled]:
        device, decoder = self.inner.device, self.model.family.decoder_of(self.inner)
        if not self.model.family.encoder_decoder:
            # Padding is on the right, where no earlier token sees it; of the last token a step is made.
            ids = self._padded([(*text.ids, *text.begun) for text in texts])
            cache, ids = DynamicCache(), ids[:, : max(1, ids.shape[1] - 1)]
            with self._signal(texts, ids, [len(text.ids) for text in texts]):
                decoder(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
            own = stacked(cache)
            lengths = [len(text.ids) + len(text.begun) - 1 for text in texts]
            yield from (Prefilled(own[:, :, row, :, :length]) for row, length in enumerate(lengths))
            return
        ids, sizes = self._padded([text.ids for text in texts]), [len(text.ids) for text in texts]
        mask = (torch.arange(ids.shape[1], device=device) < torch.tensor(sizes, device=device)[:, None]).long()
        encoded = self.inner.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        both = EncoderDecoderCache(DynamicCache(), DynamicCache())
        given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask, "past_key_values": both}
        # Where nothing is begun, this is a step that is thrown away: it leaves the keys and values of the source.
        start = int(self.inner.generation_config.decoder_start_token_id)
        begun = self._padded([(start, *text.begun)[: max(1, len(text.begun))] for text in texts])
        with self._signal(texts, begun, [1] * len(texts)):
            decoder(input_ids=begun, **given, use_cache=True)
        own, source = stacked(both.self_attention_cache), stacked(both.cross_attention_cache)
        for row, text in enumerate(texts):
            mine = own[:, :, row, :, : len(text.begun)]
            yield Prefilled(mine, source[:, :, row, :, : sizes[row]], encoded[row, : sizes[row]])

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.inner.device)

    def _signal(self, texts: Sequence[_Reads], ids: Tensor, starts: list[int]) -> AbstractContextManager[None]:
        """Steer the pass over texts that are begun; the first written ids are at ``starts``."""
        if not self.settings.steered or not any(text.begun for text in texts):
            return nullcontext()
        target = torch.tensor([max(1, text.target) for text in texts], device=ids.device)
        targets = BatchTargets(target, self.settings.unit, torch.tensor(starts, device=ids.device))
        return self.model.signal(targets, ids, 1 + ids.shape[1] - min(starts))


def _up(count: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-count // step) * step
