"""Texts while they are being written: each row of a batch has a reader of its own, who may go away at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from impatience.data import Request
from impatience.decoding.results import Piece, Result
from impatience.lengths import Unit, decode, measure
from impatience.vocabulary import Vocabulary

Item = Piece | Result | BaseException


class Cancelled(Exception):  # noqa: N818
    """Nobody reads the text any more."""


class ResultStream:
    """What a text is put into while it is written: pieces, if they are wanted, and one result or exception at last.

    Args:
        ask: What is being written.
        vocabulary: Counts and decodes.
        deliver: Takes what is put in; it is called in the thread that writes.
        pieces: Whether pieces are wanted.
        gone: Is set when nobody reads any more; the row then ends at its next step.
    """

    def __init__(
        self,
        ask: Request,
        vocabulary: Vocabulary,
        deliver: Callable[[Item], None],
        *,
        pieces: bool = True,
        gone: Event | None = None,
    ) -> None:
        self.ask, self.vocabulary, self.deliver, self.pieces = ask, vocabulary, deliver, pieces
        self.gone = gone or Event()
        self.parts, self.note = 1, ""
        self.shown = ""

    def tell(self, stage: str, progress: int = 0) -> None:
        """Say what is being done while nothing is shown."""
        if self.gone.is_set():
            raise Cancelled
        if self.pieces:
            self.deliver(Piece("", progress, self.ask.target, self.ask.unit, stage))

    def put(self, ids: list[int]) -> None:
        """Take the text so far, and pass on what is new and will stay."""
        text = decode(self.vocabulary.tokenizer, ids)
        if text.endswith("\ufffd") or not text.startswith(self.shown) or text == self.shown:
            return
        counted = len(ids) if self.ask.unit is Unit.TOKENS else measure(text, self.ask.unit)
        self.deliver(Piece(text[len(self.shown) :], counted, self.ask.target, self.ask.unit))
        self.shown = text

    def finish(self, result: Result) -> None:
        """Deliver what is left of the text, and the result, which says how much of what was shown is taken back."""
        if self.gone.is_set():
            self.deliver(Cancelled())
            return
        result = replace(result, parts=self.parts, note=f"{self.note} {result.note}".strip())
        if result.text.startswith(self.shown):
            if self.pieces and (rest := result.text[len(self.shown) :]):
                self.deliver(Piece(rest, result.length, result.target, result.unit))
        else:
            result = replace(result, taken_back=taken_back(self.shown, result.text))
        self.deliver(result)


def taken_back(shown: str, text: str) -> int:
    """Count the characters at the end of what was shown that are not in the text."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(shown, text, strict=False))
    return len(shown) - sum(1 for _ in same)


def feeding(feeds: Sequence[ResultStream], *, pieces: bool) -> dict[str, Any]:
    """Return what makes ``generate`` feed the rows of a batch, and end those that nobody reads any more.

    Args:
        feeds: One for each row; or one for all of them, if no pieces are wanted.
        pieces: False where what is written is not for the reader, or not in order, as with beams.
    """
    stop = {"stopping_criteria": StoppingCriteriaList([_UntilGone(feeds)])}
    return {**stop, "streamer": _Streamer(feeds)} if pieces and any(feed.pieces for feed in feeds) else stop


class StreamReaders:
    """Those who read the rows of a batch.

    Args:
        feeds: One for each row.
    """

    def __init__(self, feeds: Sequence[ResultStream]) -> None:
        self.feeds = feeds
        self._special = feeds[0].vocabulary.special_ids
        self._ids = [[i for i in feed.ask.begun.ids if i not in self._special] for feed in feeds]

    def put(self, place: int, token: int) -> None:
        """Take the next token of a row."""
        feed = self.feeds[place]
        if feed.pieces and token not in self._special and not feed.gone.is_set():
            self._ids[place].append(token)
            feed.put(self._ids[place])

    def gone(self, place: int) -> bool:
        """Tell whether nobody reads a row any more."""
        return self.feeds[place].gone.is_set()


class _Streamer(BaseStreamer):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[ResultStream]) -> None:
        self.readers = StreamReaders(feeds)
        self.begun = False

    def put(self, value: Tensor) -> None:
        """Take the ids of a step, one for each row; the first call brings what was there before."""
        if self.begun:
            for place, token in enumerate(value.flatten().tolist()):
                self.readers.put(place, token)
        self.begun = True

    def end(self) -> None:
        """Nothing is left to do: the result is what ends a stream."""


class _UntilGone(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[ResultStream]) -> None:
        self.feeds = feeds

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """End each row, with all its beams, once nobody reads it any more."""
        del scores, kwargs
        gone = torch.tensor([feed.gone.is_set() for feed in self.feeds], device=input_ids.device)
        return gone.repeat_interleave(input_ids.shape[0] // len(self.feeds))


def stream(items: SimpleQueue[Item], gone: Event, write: Callable[[], None]) -> Iterator[Piece | Result]:
    """Write in a thread, and yield pieces as they come, the result at last.

    Args:
        items: Where the pieces and the result come from.
        gone: Is set if the reader goes away.
        write: Writes the text, and puts it there.

    Raises:
        Exception: What ``write`` raised.
    """

    def work() -> None:
        try:
            write()
        except BaseException as error:
            items.put(error)

    thread = Thread(target=work, name="impatience-stream", daemon=True)
    thread.start()
    try:
        while True:
            item = items.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, Result):
                return
    finally:
        gone.set()
        thread.join()
