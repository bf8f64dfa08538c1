"""Ranks the texts that were written for one request: truth comes before length.

Each text is compared with the *first* one, which the model found likeliest. In this order a text is better that

    1. adds fewer unsupported words: names and numbers that neither the source nor the first text has
    2. is not a guess
    3. has fewer unsupported words
    4. is finished, and does not loop
    5. is on target; off it, the nearer
    6. is likelier to the model, a token

The first text adds nothing and is no guess. So no text that invents wins over it, however long either is. A text is a
*guess* if, where it differs from the first, it holds a token clearly less likely to the model, which has read the
source, than any token that the first has there, and unlikely by itself: a model that invents picks what is unlikely.
Where the first text comes from beams, it is not known how likely its tokens are, and none is a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.grounding import foreign_words

GUESS = 1.0  # a token is clearly less likely if its log-probability is by more than this below the lowest of the first
LIKELY = -2.3  # and no token is a guess that is likelier than this log-probability: 10 %


def unsupported_words(request: Request, text: str) -> tuple[str, ...]:
    """Return the names and numbers of a text that the source of its request does not have; none without a source."""
    return foreign_words(text, request.source) if request.source else ()


def best_of(request: Request, first: Result, results: Iterable[Result], *, sampled: bool = False) -> Result:
    """Return the best text, the first of equals; ``first`` is what they are compared with.

    Where it is ``sampled`` itself, it says nothing of what is likely, and no text is a guess.
    """
    return min(results, key=lambda result: rank(request, first, result, sampled=sampled))


def rank(request: Request, first: Result, result: Result, *, sampled: bool = False) -> tuple[Any, ...]:
    """Return the rank of a text for its request, see ``best_of``; the lower, the better."""
    return (
        len(added_words(first, result)),
        not sampled and is_guess(first, result),
        len(result.unsupported),
        not result.finished or result.looping,
        distance(request, result.length),
        -round(_mean(result.log_probabilities[_shared(first, result) :]), 2),  # batches differ by less than that
    )


def added_words(first: Result, result: Result) -> tuple[str, ...]:
    """Return the unsupported words of a text that the first one does not have."""
    return tuple(word for word in result.unsupported if word not in first.unsupported)


def is_guess(first: Result, result: Result) -> bool:
    """Check whether a text holds a token clearly less likely than any of the first text where they differ."""
    if not first.log_probabilities:
        return False
    shared = _shared(first, result)
    ours, theirs = result.log_probabilities[shared:], first.log_probabilities[shared:]
    return min(ours, default=0.0) < min(min(theirs, default=0.0) - GUESS, LIKELY)


def is_supported(first: Result, result: Result) -> bool:
    """Check whether a text is no less grounded than the first one."""
    return not added_words(first, result) and not is_guess(first, result)


def distance(request: Request, length: int) -> int:
    """Return how far a length is from what a request asks for; within a range it is 0."""
    first, last = request.within or (request.target, request.target)
    return max(first - length, length - last, 0)


def _shared(first: Result, result: Result) -> int:
    """Count the ids that both texts begin with."""
    pairs = zip(first.ids, result.ids, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(first.ids), len(result.ids)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
