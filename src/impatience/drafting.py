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
    lengths = [aims(ask.target, ask.unit, tries) for ask in asks]
    first: dict[int, Result] = {}
    for written in write([_for(ask, ask.target) for ask in asks]):
        done: dict[int, Result | SourceError] = {}
        for place, result in written.items():
            if isinstance(result, SourceError):
                done[place] = result
            elif landed_well(result, asks[place].target, asks[place].landing, sentence=_sentence(asks[place], task)):
                done[place] = _kept(asks[place], result)
            else:
                first[place] = result
        yield done
    again = [(place, aim) for place in sorted(first) for aim in lengths[place][1:]]
    others = _all(write, [_for(asks[place], aim) for place, aim in again])
    forced: list[int] = []
    chosen: dict[int, Result | SourceError] = {}
    for place, own in first.items():
        ask = asks[place]
        rest = (result for (owner, _), result in zip(again, others, strict=True) if owner == place)
        texts = [own, *(result for result in rest if isinstance(result, Result))]
        choice = best(texts, ask.target, ask.landing, sentence=_sentence(ask, task))
        if choice is None:
            forced.append(place)
        else:
            chosen[place] = _kept(ask, texts[choice])
    yield chosen
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
