"""A text while it is being written: a thread writes, and whoever reads the stream may go away at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from impatience.asks import Ask, Piece, Result
from impatience.lengths import Unit, Vocabulary, decode, measure


class Gone(Exception):  # noqa: N818
    """Nobody reads the stream any more."""


class Feed:
    """What a writing thread puts pieces into.

    Args:
        ask: What is being written.
        vocabulary: Counts and decodes.
    """

    def __init__(self, ask: Ask, vocabulary: Vocabulary) -> None:
        self.ask, self.vocabulary = ask, vocabulary
        self.queue: SimpleQueue[Piece | Result | BaseException] = SimpleQueue()
        self.gone = Event()
        self.shown = ""

    def options(self, *, pieces: bool) -> dict[str, Any]:
        """Return what makes ``generate`` feed this, and stop when nobody reads any more.

        Args:
            pieces: False where what is written is not for the reader, or not in order, as with beams.
        """
        stop = {"stopping_criteria": StoppingCriteriaList([_UntilGone(self.gone)])}
        return {**stop, "streamer": _Streamer(self)} if pieces else stop

    def tell(self, stage: str) -> None:
        """Say what is being done before the text is written."""
        if self.gone.is_set():
            raise Gone
        self.queue.put(Piece("", 0, self.ask.target, self.ask.unit, stage))

    def put(self, ids: list[int]) -> None:
        """Take the text so far, and pass on what is new and will stay."""
        text = decode(self.vocabulary.tokenizer, ids)
        if text.endswith("\ufffd") or not text.startswith(self.shown) or text == self.shown:
            return
        counted = len(ids) if self.ask.unit is Unit.TOKENS else measure(text, self.ask.unit)
        self.queue.put(Piece(text[len(self.shown) :], counted, self.ask.target, self.ask.unit))
        self.shown = text


class _Streamer(BaseStreamer):  # type: ignore[misc]
    def __init__(self, feed: Feed) -> None:
        self.feed, self.ids = feed, []  # type: ignore[var-annotated]
        self.begun = False
        self.special = set(feed.vocabulary.special_ids)

    def put(self, value: Tensor) -> None:
        """Take the ids of a step; the first call brings what was there before."""
        if self.begun:
            self.ids += [i for i in value.flatten().tolist() if i not in self.special]
            self.feed.put(self.ids)
        self.begun = True

    def end(self) -> None:
        """Nothing is left to do: the result is what ends a stream."""


class _UntilGone(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, gone: Event) -> None:
        self.gone = gone

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Stop every row once nobody reads any more."""
        del scores, kwargs
        return torch.full((input_ids.shape[0],), self.gone.is_set(), dtype=torch.bool, device=input_ids.device)


def stream(feed: Feed, write: Callable[[], Result]) -> Iterator[Piece | Result]:
    """Write in a thread, and yield pieces as they come, the result at last.

    Args:
        feed: What ``write`` puts its pieces into.
        write: Writes the text.

    Raises:
        Exception: What ``write`` raised.
    """

    def work() -> None:
        try:
            feed.queue.put(write())
        except BaseException as error:
            feed.queue.put(error)

    thread = Thread(target=work, name="impatience-stream", daemon=True)
    thread.start()
    try:
        while True:
            item = feed.queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, Result):
                return
    finally:
        feed.gone.set()
        thread.join()
