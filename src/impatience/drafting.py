"""Asks that are written for several aims, see ``impatience.aiming``, whoever writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from impatience import aiming
from impatience.aiming import Goal, Shot
from impatience.asks import Ask, Result
from impatience.errors import SourceError
from impatience.landing import Landing
from impatience.prompts import Prompts

Written = Mapping[int, Result | SourceError]
"""Results by the position of their asks."""


def goal_of(ask: Ask, tries: int, prompts: Prompts) -> Goal:
    """Return what an ask wishes for; a model that is not told the length would write the same text at every try."""
    sentence = (ask.task or prompts.task) != "title"
    return Goal(ask.target, ask.unit, ask.landing, sentence, tries if prompts.tells_length(ask.unit) else 1)


def aimed(
    asks: Sequence[Ask], tries: int, write: Callable[[Sequence[Ask]], Iterable[Written]], prompts: Prompts
) -> Iterator[tuple[int, Result | SourceError]]:
    """Write texts for their targets, then for a few lengths below where that did not land well, and keep the best.

    Args:
        asks: What to write.
        tries: How many texts are written for one at most.
        write: Writes asks as they are, some at a time; see ``impatience.aiming``.
        prompts: Knows what the model is told, and what it was trained for.

    Yields:
        Results by position, those that landed well at once first. Where the landing is exact or at_most and no text
        will do, the text is forced as ever.
    """
    goals = [goal_of(ask, tries, prompts) for ask in asks]

    def shoot(shots: Sequence[Shot]) -> Iterator[tuple[Shot, Result | SourceError]]:
        for written in write([replace(asks[shot.place], target=shot.aim, landing=shot.landing) for shot in shots]):
            for number, result in written.items():
                yield shots[number], _seen(result, goals[shots[number].place], shots[number])

    return aiming.aimed(goals, shoot)


def stage(goal: Goal, first: Result, asks: Sequence[Ask]) -> str:
    """Say what is written next where the first text did not land well.

    Args:
        goal: What is wished for.
        first: That text.
        asks: What is written next, as ``aimed`` hands it on.
    """
    if asks[0].landing is not Landing.NATURAL:
        return f"none ended there by itself; holding one to {goal.target} {goal.unit}"
    cut = "" if goal.finished(first) else ", not finished"
    below = "a length" if len(asks) == 1 else f"{len(asks)} lengths"
    return f"{first.length} of {goal.target} {goal.unit}{cut}; trying {below} below"


def _seen(result: Result | SourceError, goal: Goal, shot: Shot) -> Result | SourceError:
    """Return a text as what it is for the target, whatever it was written for."""
    if isinstance(result, SourceError) or shot.landing is not Landing.NATURAL:
        return result
    return replace(result, target=goal.target, landed=goal.landed(result))
