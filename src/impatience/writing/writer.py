"""The writer: text in, text of the length asked for out, for the command line and other programs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from impatience.backends import new_generator, open_model
from impatience.data import Request
from impatience.decoding.base import TokenListener
from impatience.decoding.packing import PackedBatch, TextSize
from impatience.decoding.results import Piece, Result
from impatience.decoding.retries import TRIES, check_tries, describe_retry, write_with_retries
from impatience.errors import SourceError, TargetError
from impatience.judging import judge
from impatience.lengths import Landing, Length, Unit, aim, parse_length
from impatience.sources import DEFAULT_MODEL
from impatience.writing.long_texts import join_notes, shorten_source
from impatience.writing.prompts import Prompts
from impatience.writing.streaming import Item, ResultStream, SilentReader, StreamReaders, read_stream
from impatience.writing.writing_systems import remark, whole_ending

log = logging.getLogger(__name__)


class Writer:
    """Writes texts of given lengths with one model, one batch at a time; threads may share it.

    Args:
        model: A model with length control and its tokenizer, in any backend.
        prompt: Prompt settings of its training: template, prefix and max_source_tokens; None for a model that was not
            trained by a recipe, which is asked in words if it takes chats.
    """

    def __init__(self, model: Any, prompt: Mapping[str, Any] | None = None) -> None:
        self.model, self.prompts = model, Prompts(model, prompt)
        self.tokenizer = self.prompts.tokenizer
        self.generator = new_generator(model, self.prompts.encoder(), prompt or {})
        self._lock = Lock()  # the model holds the signal of one batch at a time

    def write(
        self,
        text: str = "",
        *,
        words: Length | None = None,
        characters: Length | None = None,
        sentences: Length | None = None,
        tokens: Length | None = None,
        landing: str = "natural",
        ask: str = "",
        task: str | None = None,
        tries: int = TRIES,
        **kwargs: Any,
    ) -> Result:
        """Write a text of a given length, from another or from an instruction alone; by default a summary.

        Args:
            text: The source; may be left out with ``ask``.
            words: Length of the new text in words, or the first and last length of a range. Give exactly one unit.
            characters: The same in characters.
            sentences: The same in sentences.
            tokens: The same in the model's tokens.
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``.
            ask: What to write, in your own words, for a model that takes instructions.
            task: A name in ``impatience.data.TASKS`` instead, e.g. ``"title"``; None is the task that the model was
                trained for, or a summary.
            tries: The most texts to write: where the first does not land well, other endings are drawn, and the best
                text is kept; see ``impatience.decoding.retries``.
            **kwargs: Other options of ``generate``, e.g. ``do_sample=True``.
        """
        targets = zip(Unit, (tokens, words, characters, sentences), strict=True)
        given = {unit: target for unit, target in targets if target is not None}
        if len(given) != 1:
            names = " and ".join(given) or "no length"
            raise TargetError(f"Got {names}: give one of words, characters, sentences and tokens.")
        ((unit, length),) = given.items()
        target, within = aim(parse_length(length), landing)
        request = Request("", text, target, unit, Landing.parse(landing), task=task, within=within, instruction=ask)
        return self.write_many([request], tries=tries, **kwargs)[0]

    def write_many(
        self, requests: Sequence[Request], *, budget: int | None = None, tries: int = 1, **kwargs: Any
    ) -> list[Result]:
        """Write many texts, those of about the same length together.

        Args:
            requests: The requests; units, landings and tasks may differ.
            budget: The most tokens in memory, rows × (source + output); None for as many as there is room for.
            tries: The most texts to write for each; see ``impatience.decoding.retries``.
            **kwargs: Other options of ``generate``.

        Returns:
            A result for each request, in their order.

        Raises:
            SourceError: If a source cannot be read, not even in parts.
            TargetError: If the model has no room for a text of that length.
            OptionError: If ``tries`` is out of range.
        """
        results: dict[int, Result] = {}
        for written in self.write_batches(requests, budget=budget, tries=tries, **kwargs):
            for position, result in written.items():
                if isinstance(result, SourceError):
                    raise result
                results[position] = result
        return [results[position] for position in range(len(requests))]

    def write_batches(
        self, requests: Sequence[Request], *, budget: int | None = None, tries: int = 1, **kwargs: Any
    ) -> Iterator[dict[int, Result | SourceError]]:
        """Write many texts, and yield each batch as soon as it is written.

        The arguments and errors are those of ``write_many``. All requests are checked before the first is written.

        Yields:
            Results by their position in ``requests``; sources that the model cannot read at once come last, one by one.
            A source that cannot be read in parts either has an error for a result, and does not stop the rest.
        """
        check_tries(tries)
        sources = [self.check(request) for request in requests]
        short, long = self._plan(requests, sources, budget, kwargs)
        if tries == 1:
            for batch in short:
                of_batch = [requests[n] for n in batch.positions], [sources[n] for n in batch.positions]
                yield dict(zip(batch.positions, self._write(*of_batch, kwargs, batch.rows), strict=True))
        else:
            positions = sorted(position for batch in short for position in batch.positions)
            write = partial(self.write_batches, budget=budget, **kwargs)
            for n, result in self.retry([requests[n] for n in positions], tries, write):
                yield {positions[n]: result}
        for position in long:
            try:
                yield {position: self._write_long(requests[position], kwargs, budget, tries)}
            except SourceError as error:
                yield {position: error}

    def retry(
        self,
        requests: Sequence[Request],
        tries: int,
        write: Callable[[Sequence[Request]], Iterable[Mapping[int, Result | SourceError]]],
    ) -> Iterator[tuple[int, Result | SourceError]]:
        """Write requests whose sources the model can read at once, with retries; see ``write_with_retries``."""
        of_each = [self.prompts.tries(request, tries) for request in requests]
        return write_with_retries(requests, of_each, write, self.model.vocabulary)

    def plan(self, requests: Sequence[Request], budget: int | None = None, *, times: int = 1) -> list[list[int]]:
        """Return the positions of texts that are written together, for a caller that has other processes write them.

        All requests are checked. ``write_many`` writes each group in one go, with the same results as for all; each row
        has so many times a text, one after the other.
        """
        short, long = self._plan(requests, [self.check(request) for request in requests], budget, {})
        pieces = [piece for batch in short for piece in batch.split(times)]
        return [sorted(piece.positions) for piece in pieces] + [[position] for position in long]

    def stream(self, request: Request, *, tries: int = 1, **kwargs: Any) -> Iterator[Piece | Result]:
        """Write a text and yield its pieces as they are written, then the result.

        The text of the result counts: with ``at_most``, and with ``exact`` where a text misses, the end of the shown
        text may be taken back, and the result says how much. With beams the text comes in one piece. If the iterator
        is closed early, the model stops at its next step.

        Args:
            request: The request.
            tries: The most texts to write. The first one is shown; if it did not land well, a piece says that others
                are tried, and the result is the best of them.
            **kwargs: Other options of ``generate``.
        """
        check_tries(tries)
        self.check(request)
        items: SimpleQueue[Item] = SimpleQueue()
        stream = ResultStream(request, self.model.vocabulary, items.put)
        return read_stream(items, stream.cancelled, lambda: self._stream(stream, tries, kwargs))

    def write_streams(self, streams: Sequence[ResultStream], sources: list[list[int]], **kwargs: Any) -> None:
        """Write one batch of one unit and landing, each text into its stream.

        The sources are prompts from ``check`` that are short enough to be read at once.
        """
        results = self._write_streams(streams, [stream.request for stream in streams], sources, kwargs)
        for stream, result in zip(streams, results, strict=True):
            stream.finish(result)

    def check(self, request: Request) -> list[int]:
        """Check that the model can write a request, and return its whole prompt."""
        ids = self.prompts.encode(request)
        limit = self.prompts.source_limit(self.prompts.estimate_output(request, len(ids)))
        self.prompts.check_room(request, min(len(ids), limit))
        return ids

    def text_size(self, request: Request, source: int) -> TextSize:
        """Return the size of a text whose prompt has so many tokens."""
        output, prefix = self.prompts.estimate_output(request, source), len(request.prefix)
        return TextSize(request.unit, request.landing, source + prefix, max(1, output - prefix))

    @property
    def room(self) -> int | None:
        """The most tokens that are read and written in one row; None if the model limits them apart or not at all."""
        return None if self.prompts.encoder_decoder else self.prompts.room

    @property
    def budget(self) -> int:
        """The most tokens in memory, unless the caller says otherwise."""
        return self.generator.memory

    def _plan(
        self, requests: Sequence[Request], sources: list[list[int]], budget: int | None, options: Mapping[str, Any]
    ) -> tuple[list[PackedBatch], list[int]]:
        """Return the batches, and the positions of sources that the model cannot read at once."""
        short = [n for n, ids in enumerate(sources) if self.prompts.fits(requests[n], len(ids))]
        sizes = [self.text_size(requests[n], len(sources[n])) for n in short]
        tokens = self.budget if budget is None else budget
        packed = self.generator.pack(sizes, tokens, options)
        batches = [PackedBatch(tuple(short[n] for n in batch.positions), batch.rows) for batch in packed]
        return batches, sorted(set(range(len(requests))) - set(short))

    def _write(
        self,
        requests: Sequence[Request],
        sources: list[list[int]],
        options: Mapping[str, Any],
        rows: int = 1,
        listener: TokenListener | None = None,
    ) -> list[Result]:
        """Write requests of one unit and landing, whose sources the model can read."""
        with self._lock:
            generate = partial(self.generator.generate_with_signal, sources=sources, rows=rows)
            results = generate(requests, **{"listener": listener, **options})
        return [self._for_reader(*pair) for pair in zip(requests, results, strict=True)]

    def _for_reader(self, request: Request, result: Result) -> Result:
        """Return a result as a reader gets it."""
        text = whole_ending(result.text)
        if text != result.text or request.within is not None:
            on_target = request.accepts(result.length) if request.within else result.landed != "missed"
            finished, looping, landed = judge(
                text,
                own_end=result.own_end and text == result.text,  # an ellipsis in its place is not the model's
                ended=result.ended,
                on_target=on_target and result.ended,
                title=self.generator.is_title(request),
            )
            result = replace(result, text=text, finished=finished, looping=looping, landed=landed)
        note = join_notes(remark(text, result.unit), self.prompts.remark(request))
        probability = result.eos_probability or 0.0
        return replace(result, within=request.within, eos_probability=probability, note=note, eos_curve=())

    def _write_long(self, request: Request, options: Mapping[str, Any], budget: int | None, tries: int) -> Result:
        """Write from a source of any length; its parts are written once for all tries."""
        source = shorten_source(request, self.prompts, partial(self.write_many, budget=budget, **options), log.info)
        (result,) = self.write_many([source.request], budget=budget, tries=tries, **options)
        return replace(result, parts=source.parts, note=join_notes(source.note, result.note))

    def _write_streams(
        self,
        streams: Sequence[ResultStream],
        requests: Sequence[Request],
        sources: list[list[int]],
        options: Mapping[str, Any],
    ) -> list[Result]:
        """Write one batch while its streams deliver pieces."""
        return self._write(requests, sources, options, len(sources), StreamReaders(streams))

    def _stream(self, stream: ResultStream, tries: int, options: Mapping[str, Any]) -> None:
        """Write a stream's request from a source of any length; only the first text is shown."""
        silent = {**options, "listener": SilentReader(stream)}
        source = shorten_source(stream.request, self.prompts, partial(self.write_many, **silent), stream.report_stage)
        stream.parts, stream.note = source.parts, source.note
        first = list[Result]()

        def write(attempts: Sequence[Request]) -> Iterator[dict[int, Result]]:
            if first:
                stream.report_stage(describe_retry(source.request, first[0], attempts), first[0].length)
            for positions in self.plan(attempts):
                batch = [attempts[n] for n in positions]
                streams = [stream]
                if first:
                    hidden = partial(ResultStream, pieces=False, cancelled=stream.cancelled)
                    streams = [hidden(attempt, stream.vocabulary, stream.deliver) for attempt in batch]
                sources = [self.prompts.encode(attempt) for attempt in batch]
                results = self._write_streams(streams, batch, sources, options)
                first.extend(results)
                yield dict(zip(positions, results, strict=True))

        for _, result in self.retry([source.request], tries, write):
            if isinstance(result, Result):
                stream.finish(result)


def load(name: str | Path | None = None, *, backend: str | None = None, quiet: bool = False) -> Writer:
    """Load a model to write with.

    Args:
        name: A folder, a GGUF file or a hub name; None is the default model, which is downloaded on first use. A model
            that was saved without length control gets none: it can be forced to a length, not steered to it.
        backend: ``"transformers"`` or ``"llama.cpp"``; None takes the fastest that can run the model here.
        quiet: Show no progress.
    """
    return Writer(*open_model(name or DEFAULT_MODEL, backend=backend, quiet=quiet))
