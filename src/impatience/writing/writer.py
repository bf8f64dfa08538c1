"""Text in, text of the length asked for out: what the command line and other programs use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from impatience.control.loading import generation_settings, open_model
from impatience.control.model import LengthControlled
from impatience.data import EvalRequest, Example, Request
from impatience.decoding.generator import TextGenerator
from impatience.decoding.kv_cache import token_bytes
from impatience.decoding.packing import PackedBatch, TextSize, batches, memory_budget, streams
from impatience.decoding.results import Piece, Result
from impatience.decoding.retries import TRIES, check_tries
from impatience.errors import SourceError, TargetError
from impatience.families import unwrap
from impatience.lengths import Landing, Unit
from impatience.sources import DEFAULT_MODEL
from impatience.writing.long_texts import condense, fits
from impatience.writing.prompts import Prompts
from impatience.writing.retrying import goal_of, stage, tried
from impatience.writing.streaming import Item, ResultStream, StreamReaders, feeding, stream
from impatience.writing.writing_systems import remark, whole_ending

log = logging.getLogger(__name__)


class Writer:
    """Writes texts of the lengths asked for with one model, one batch at a time whoever asks.

    Args:
        model: A model that writes to length, with its tokenizer.
        prompt: How sources were put to it in training: template, prefix and max_source_tokens; None for a model that
            was not trained by a recipe, which is asked in words if it takes chats.
    """

    def __init__(self, model: LengthControlled, prompt: Mapping[str, Any] | None = None) -> None:
        self.model, self.prompts = model, Prompts(model, prompt)
        self.tokenizer = self.prompts.tokenizer
        self.generator = TextGenerator(model, self.prompts.encoder(), **generation_settings(prompt or {}))
        self._lock = Lock()  # a model follows one course at a time

    def write(
        self,
        text: str,
        *,
        words: int | None = None,
        characters: int | None = None,
        sentences: int | None = None,
        tokens: int | None = None,
        landing: str = "natural",
        task: str | None = None,
        tries: int = TRIES,
        **kwargs: Any,
    ) -> Result:
        """Write a text of some length from another, by default a summary.

        Args:
            text: The source.
            words: How long the new text must be, in words. One unit must be given.
            characters: The same in characters.
            sentences: The same in sentences.
            tokens: The same in the model's tokens.
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``.
            task: ``"summarize"``, ``"rewrite"``, ``"title"``, ``"question"`` or ``"chat"``; None is what the model was
                trained for, and a summary where nobody knows.
            tries: How many texts are written at most: where the first does not land well, other endings are drawn, and
                the best is kept; see ``impatience.decoding.retries``.
            **kwargs: What else ``generate`` takes, e.g. ``do_sample=True``.
        """
        asked = zip(Unit, (tokens, words, characters, sentences), strict=True)
        given = {unit: value for unit, value in asked if value is not None}
        if len(given) != 1:
            names = " and ".join(given) or "no length"
            raise TargetError(f"Got {names}: give one of words, characters, sentences and tokens.")
        ((unit, target),) = given.items()
        return self.write_many([Request("", text, target, unit, Landing.parse(landing), task)], tries=tries, **kwargs)[
            0
        ]

    def write_many(
        self, asks: Sequence[Request], *, budget: int | None = None, tries: int = 1, **kwargs: Any
    ) -> list[Result]:
        """Write many texts, those of about the same length together.

        Args:
            asks: What to write; units, landings and tasks may differ.
            budget: The most tokens that are in memory, rows × (source + output); None is what there is room for.
            tries: How many texts are written for each at most; see ``impatience.decoding.retries``.
            **kwargs: What else ``generate`` takes.

        Returns:
            A result for each ask, in their order.

        Raises:
            SourceError: If a source cannot be read, or not in parts where it is too long to be read at once.
            TargetError: If the model has no room for a text of that length.
            OptionError: If so many texts are not tried.
        """
        results: dict[int, Result] = {}
        for written in self.as_written(asks, budget=budget, tries=tries, **kwargs):
            for position, result in written.items():
                if isinstance(result, SourceError):
                    raise result
                results[position] = result
        return [results[position] for position in range(len(asks))]

    def as_written(
        self, asks: Sequence[Request], *, budget: int | None = None, tries: int = 1, **kwargs: Any
    ) -> Iterator[dict[int, Result | SourceError]]:
        """Write many texts, and give each batch away as soon as it is written.

        Args:
            asks: What to write. All of them are checked before the first is written.
            budget: The most tokens that are in memory.
            tries: How many texts are written for each at most.
            **kwargs: What else ``generate`` takes.

        Yields:
            Results by their position in ``asks``; sources that the model cannot read at once come last, one by one. One
            that cannot be read in parts either has an error for a result, and does not stop the rest.

        Raises:
            SourceError: If a task needs a source of another form.
            TargetError: If the model has no room for a text of that length.
            OptionError: If so many texts are not tried.
        """
        check_tries(tries)
        rows = [self.check(ask) for ask in asks]
        short, long = self._plan(asks, rows, budget, kwargs)
        if tries == 1:
            for some in short:
                together = [asks[n] for n in some.places], [rows[n] for n in some.places]
                yield dict(zip(some.places, self._write(*together, kwargs, some.rows), strict=True))
        else:
            places = sorted(place for some in short for place in some.places)
            write = partial(self.as_written, budget=budget, **kwargs)
            for n, one in tried([asks[n] for n in places], tries, write, self.prompts):
                yield {places[n]: one}
        for position in long:
            try:
                result: Result | SourceError = self._write_long(asks[position], kwargs, budget, tries)
            except SourceError as error:
                result = error
            yield {position: result}

    def plan(self, asks: Sequence[Request], budget: int | None = None, *, times: int = 1) -> list[list[int]]:
        """Say which texts are written together, for whoever lets others write them.

        Args:
            asks: What is to be written. All of them are checked.
            budget: The most tokens that are in memory.
            times: How many texts, one after the other, each row gets.

        Returns:
            Positions in ``asks``. ``write_many`` writes the asks of each in one go, as if all had been given to it.
        """
        short, long = self._plan(asks, [self.check(ask) for ask in asks], budget, {})
        pieces = [piece for some in short for piece in some.pieces(times)]
        return [sorted(piece.places) for piece in pieces] + [[position] for position in long]

    def stream(self, ask: Request, *, tries: int = 1, **kwargs: Any) -> Iterator[Piece | Result]:
        """Write a text and yield its pieces as they are written, then the result.

        The text of the result counts: with ``at_most`` the end of what was shown may be taken back, and the result
        says how much. A model that searches with beams shows its text in one piece. Whoever does not want to wait for
        the end may close the iterator; the model stops at its next step.

        Args:
            ask: What to write.
            tries: How many texts are written at most. The first one is shown; if it did not land well, a piece says
                that others are being tried, and the result is the best of them.
            **kwargs: What else ``generate`` takes.
        """
        check_tries(tries)
        self.check(ask)
        items: SimpleQueue[Item] = SimpleQueue()
        feed = ResultStream(ask, self.model.vocabulary, items.put)
        return stream(items, feed.gone, lambda: self._stream(feed, tries, kwargs))

    def feed(self, feeds: Sequence[ResultStream], rows: list[list[int]], **kwargs: Any) -> None:
        """Write one batch, each text into a feed of its own.

        Args:
            feeds: Where the texts go; their asks have one unit and one landing.
            rows: What the model reads for each, as ``check`` returns it; it must be short enough to be read at once.
            **kwargs: What else ``generate`` takes.
        """
        for feed, result in zip(feeds, self._feed(feeds, [feed.ask for feed in feeds], rows, kwargs), strict=True):
            feed.finish(result)

    def check(self, ask: Request) -> list[int]:
        """Return what the model reads of a source, all of it, if the model can write what is asked for.

        Raises:
            SourceError: If the task needs a source of another form.
            TargetError: If the model has no room for a text of that length.
        """
        ids = self.prompts.reads(ask)
        self.prompts.check(ask, min(len(ids), self.prompts.limit(self.prompts.output(ask, len(ids)))))
        return ids

    def load(self, ask: Request, source: int) -> TextSize:
        """Say what a text takes whose source has so many tokens."""
        there = len(ask.begun.ids)
        return TextSize(ask.unit, ask.landing, source + there, max(1, self.prompts.output(ask, source) - there))

    @property
    def room(self) -> int | None:
        """The most tokens that are read and written in one row; None if the model sets no limit to both together."""
        return None if self.prompts.encoder_decoder else self.prompts.room

    def _plan(
        self, asks: Sequence[Request], rows: list[list[int]], budget: int | None, options: Mapping[str, Any]
    ) -> tuple[list[PackedBatch], list[int]]:
        """Return what is written together, and the positions of sources that the model cannot read at once."""
        short = [position for position, ids in enumerate(rows) if fits(asks[position], self.prompts, len(ids))]
        loads = [self.load(asks[position], len(rows[position])) for position in short]
        tokens = self.budget if budget is None else budget
        if self.generator.flows(len(asks), options):
            found = streams(loads, tokens)
        else:
            found = [PackedBatch(tuple(batch), len(batch)) for batch in batches(loads, tokens, self.room)]
        together = [PackedBatch(tuple(short[place] for place in some.places), some.rows) for some in found]
        return together, sorted(set(range(len(asks))) - set(short))

    @property
    def budget(self) -> int:
        """The most tokens that are in memory unless the caller says otherwise."""
        inner: Any = unwrap(self.model.base_model)
        layers = len(self.model.family.layers_of(inner))
        return memory_budget(inner.device, token_bytes(inner.config, layers, inner.dtype))

    def _write(
        self,
        asks: Sequence[Request],
        sources: list[list[int]],
        options: Mapping[str, Any],
        rows: int = 1,
        readers: StreamReaders | None = None,
    ) -> list[Result]:
        """Write asks of one unit and landing, whose sources the model can read, in so many rows where it may choose."""
        requests = [EvalRequest(ask.id, Example(ask.id, ask.text, ""), ask.target, ask.unit) for ask in asks]
        landing, begun = asks[0].landing, [ask.begun for ask in asks]
        with self._lock:
            if self.generator.flows(len(asks), options):
                drafts = self.generator.flow(requests, sources, landing, rows, readers, begun, **options)
            else:
                drafts = self.generator.steered(requests, landing, sources=sources, begun=begun, **options)
        texts = [whole_ending(draft.text) for draft in drafts]
        return [
            Result(
                text,
                draft.length,
                ask.target,
                ask.unit,
                draft.landed,
                draft.eos_probability or 0.0,
                id=ask.id,
                note=remark(text, ask.unit),
                ids=draft.ids,
            )
            for ask, draft, text in zip(asks, drafts, texts, strict=True)
        ]

    def _write_long(self, ask: Request, options: Mapping[str, Any], budget: int | None, tries: int) -> Result:
        """Write from a source of any length; what was written of its parts serves all tries."""
        condensed = condense(ask, self.prompts, partial(self.write_many, budget=budget, **options), log.info)
        (result,) = self.write_many([condensed.ask], budget=budget, tries=tries, **options)
        return replace(result, parts=condensed.parts, note=f"{condensed.note} {result.note}".strip())

    def _feed(
        self, feeds: Sequence[ResultStream], asks: Sequence[Request], rows: list[list[int]], options: Mapping[str, Any]
    ) -> list[Result]:
        """Write one batch while its feeds read along."""
        if self.generator.flows(len(feeds), options):
            return self._write(asks, rows, options, len(rows), StreamReaders(feeds))
        found: dict[int, Result] = {}
        for places in self.generator.alike([ask.begun for ask in asks]):
            some, own = [asks[n] for n in places], [rows[n] for n in places]
            fed = feeding([feeds[n] for n in places], pieces=self._in_order(options))
            found.update(zip(places, self._write(some, own, {**options, **fed}), strict=True))
        return [found[n] for n in range(len(asks))]

    def _stream(self, feed: ResultStream, tries: int, options: Mapping[str, Any]) -> None:
        """Write what a stream asks for, from a source of any length; only the first text is shown."""
        quiet = {**options, **feeding([feed], pieces=False)}
        condensed = condense(feed.ask, self.prompts, partial(self.write_many, **quiet), feed.tell)
        feed.parts, feed.note = condensed.parts, condensed.note
        goal, seen = goal_of(condensed.ask, tries, self.prompts), list[Result]()

        def write(asks: Sequence[Request]) -> Iterator[dict[int, Result]]:
            if seen:
                feed.tell(stage(goal, seen[0], asks), seen[0].length)
            for places in self.plan(asks):
                some = [asks[n] for n in places]
                rows = [self.prompts.reads(one) for one in some]
                unseen = [
                    ResultStream(one, feed.vocabulary, feed.deliver, pieces=False, gone=feed.gone) for one in some
                ]
                results = self._feed(unseen if seen else [feed], some, rows, options)
                seen.extend(results)
                yield dict(zip(places, results, strict=True))

        for _, result in tried([condensed.ask], tries, write, self.prompts):
            if isinstance(result, Result):
                feed.finish(result)

    def _in_order(self, options: Mapping[str, Any]) -> bool:
        """Tell whether tokens are written in the order they are read: not where beams are searched."""
        own = unwrap(self.model.base_model).generation_config.num_beams
        return int(options.get("num_beams") or own or 1) == 1


def load(name: str | Path | None = None, *, quiet: bool = False) -> Writer:
    """Load a model to write with.

    Args:
        name: A folder or hub name; None is the default model, which is fetched on first use. A model that was saved
            without length control is given none: it can be forced to a length, not steered to it.
        quiet: Show no progress.
    """
    return Writer(*open_model(name or DEFAULT_MODEL, quiet=quiet))
