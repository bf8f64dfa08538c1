"""Asks that are written with several endings, see ``impatience.decoding.retries``, whoever writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from impatience.data import FRESH, Request
from impatience.decoding import retries as trying
from impatience.decoding.results import Result
from impatience.decoding.retries import Goal, Try
from impatience.errors import SourceError
from impatience.lengths import Landing
from impatience.writing.prompts import Prompts

Written = Mapping[int, Result | SourceError]
"""Results by the position of their asks."""


def goal_of(ask: Request, tries: int, prompts: Prompts) -> Goal:
    """Return what an ask wishes for; a text that is begun, or whose model is not told the length, is written once."""
    sentence, once = (ask.task or prompts.task) != "title", ask.begun != FRESH or not prompts.tells_length(ask.unit)
    return Goal(ask.target, ask.unit, ask.landing, sentence, 1 if once else tries)


def tried(
    asks: Sequence[Request], tries: int, write: Callable[[Sequence[Request]], Iterable[Written]], prompts: Prompts
) -> Iterator[tuple[int, Result | SourceError]]:
    """Write texts, then other endings for those that did not land well, and keep the best.

    Args:
        asks: What to write.
        tries: How many texts are written for one at most.
        write: Writes asks as they are, some at a time; see ``impatience.decoding.retries``.
        prompts: Knows what the model is told, and what it was trained for.

    Yields:
        Results by position, those that landed well at once first. Where the landing is exact or at_most and no text
        will do, the text is forced as ever.
    """
    goals = [goal_of(ask, tries, prompts) for ask in asks]

    def write_tries(some: Sequence[Try]) -> Iterator[tuple[Try, Result | SourceError]]:
        for written in write([_asked(asks[one.place], one) for one in some]):
            for number, result in written.items():
                yield some[number], _seen(result, goals[some[number].place], some[number])

    return trying.tried(goals, prompts.vocabulary, write_tries)


def stage(goal: Goal, first: Result, asks: Sequence[Request]) -> str:
    """Say what is written next where the first text did not land well.

    Args:
        goal: What is wished for.
        first: That text.
        asks: What is written next, as ``tried`` hands it on.
    """
    if asks[0].landing is not Landing.NATURAL:
        return f"none ended there by itself; holding one to {goal.target} {goal.unit}"
    cut = "" if goal.finished(first) else ", not finished"
    others = "another ending" if len(asks) == 1 else f"{len(asks)} other endings"
    return f"{first.length} of {goal.target} {goal.unit}{cut}; trying {others}"


def _asked(ask: Request, one: Try) -> Request:
    return replace(ask, landing=one.landing, begun=ask.begun if one.begun == FRESH else one.begun)


def _seen(result: Result | SourceError, goal: Goal, one: Try) -> Result | SourceError:
    """Return a text that was written without force as what it is for its goal."""
    if isinstance(result, SourceError) or one.landing is not Landing.NATURAL:
        return result
    return replace(result, landed=goal.landed(result), drawn=one.begun.draw > 0)
