"""Asks that are written for several aims, see ``impatience.aiming``, whoever writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from impatience.aiming import aims, best, landed_well
from impatience.asks import Ask, Result
from impatience.errors import SourceError
from impatience.landing import Landing

Written = Mapping[int, Result | SourceError]
"""Results by the position of their asks."""


def aimed(
    asks: Sequence[Ask], tries: int, write: Callable[[Sequence[Ask]], Iterable[Written]], task: str = "summarize"
) -> Iterator[dict[int, Result | SourceError]]:
    """Write texts for their targets, then for a few lengths below where that did not land well, and keep the best.

    Args:
        asks: What to write.
        tries: How many texts are written for one at most.
        write: Writes asks as they are, some at a time.
        task: What is done where an ask names no task.

    Yields:
        Results by position, those that landed well at once first. Where the landing is exact or at_most and no text
        will do, the text is forced as ever.
    """
    texts: dict[int, list[Result]] = {}
    for written in write([_for(ask, ask.target) for ask in asks]):
        done: dict[int, Result | SourceError] = {}
        for place, result in written.items():
            ask = asks[place]
            if isinstance(result, SourceError):
                done[place] = result
            elif landed_well(result, ask.target, ask.landing, sentence=_sentence(ask, task)):
                done[place] = _kept(ask, result)
            else:
                texts[place] = [result]
        yield done
    again = [(place, aim) for place in texts for aim in aims(asks[place].target, asks[place].unit, tries)[1:]]
    others = _all(write, [_for(asks[place], aim) for place, aim in again])
    for (place, _), result in zip(again, others, strict=True):
        if isinstance(result, Result):
            texts[place].append(result)
    chosen: dict[int, Result | SourceError] = {}
    for place, some in texts.items():
        ask = asks[place]
        choice = best(some, ask.target, ask.landing, sentence=_sentence(ask, task))
        if choice is not None:
            chosen[place] = _kept(ask, some[choice])
    yield chosen
    forced = [place for place in texts if place not in chosen]
    yield dict(zip(forced, _all(write, [asks[place] for place in forced]), strict=True))


def _for(ask: Ask, aim: int) -> Ask:
    """Return what is asked for at an aim; nothing holds the text to it."""
    return replace(ask, target=aim, landing=Landing.NATURAL)


def _sentence(ask: Ask, task: str) -> bool:
    return (ask.task or task) != "title"


def _kept(ask: Ask, result: Result) -> Result:
    """Return a text as what it is for the target, whatever it was written for."""
    natural = landed_well(result, ask.target, ask.landing, sentence=False)
    return replace(result, target=ask.target, landed="natural" if natural else "missed")


def _all(write: Callable[[Sequence[Ask]], Iterable[Written]], asks: Sequence[Ask]) -> list[Result | SourceError]:
    """Write all asks, and return their results in order."""
    if not asks:
        return []
    found = {place: result for written in write(asks) for place, result in written.items()}
    return [found[place] for place in range(len(asks))]
