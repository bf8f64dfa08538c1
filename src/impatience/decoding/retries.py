"""Retries: draw other endings for a text that did not land well, and keep the best.

A steered model may plan its last sentence badly and finish it some words late. Such a text is cut back to shortly
before its target, and endings are drawn from there under the same signal. No ending is forced. The draws are the same
every time (``control.sampling``), and the choice depends on the texts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.errors import OptionError, SourceError
from impatience.judging import Landed, judge_landing
from impatience.lengths import Landing
from impatience.vocabulary import Vocabulary

TRIES = 9  # default number of texts for a request that a person waits for: of eight endings one nearly always lands
MOST_TRIES = 16  # the most texts that are written for a request
BACK = 24  # tokens before the target, about, where endings begin; at least half of a short text stays


def check_tries(tries: int) -> None:
    """Check the number of texts that may be written for a request."""
    if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MOST_TRIES:
        raise OptionError(f"tries={tries!r}: give a whole number from 1 to {MOST_TRIES}.")


def ending_requests(request: Request, first: Result, tries: int, vocabulary: Vocabulary) -> list[Request]:
    """Return requests for other endings of the first text, so many that there are ``tries`` texts in all.

    The last tokens of the text are never part of the prefix, so there is room for an ending where the text filled the
    model.
    """
    back = max(1, min(round(BACK / request.unit.tokens), request.target // 2))
    most = min(request.target, first.length) - back
    prefix = vocabulary.beginning(first.ids[: -BACK // 2], max(0, most), request.unit)
    return [replace(request, landing=Landing.NATURAL, prefix=prefix, draw=draw) for draw in range(1, tries)]


def is_met(request: Request, result: Result) -> bool:
    """Check whether a text that was written with the natural landing is on target, finished and does not loop."""
    return natural_landing(request, result) == "natural"


def natural_landing(request: Request, result: Result) -> Landed:
    """Return how a text that was written with the natural landing landed, by the landing of its request."""
    return judge_landing(request.accepts(result.length) and result.ended, result.finished, result.looping)


def best_result(request: Request, results: Iterable[Result]) -> Result | None:
    """Return the text to keep, the first of equals.

    With the natural landing a finished text that does not loop comes before any other, then the nearest one. The other
    landings accept only texts that meet the request, ``at_most`` the longest of these, and return None if the text must
    be forced. The results were written with the natural landing, and are in the order of their draws.
    """
    good = [result for result in results if request.landing is Landing.NATURAL or is_met(request, result)]
    return min(
        good,
        key=lambda result: (not result.finished or result.looping, abs(result.length - request.target)),
        default=None,
    )


def write_with_retries(
    requests: Sequence[Request],
    tries: Sequence[int],
    write: Callable[[Sequence[Request]], Iterable[Mapping[int, Result | SourceError]]],
    vocabulary: Vocabulary,
) -> Iterator[tuple[int, Result | SourceError]]:
    """Write texts, then other endings for those that did not land well, and keep the best.

    Args:
        requests: What to write.
        tries: For each request, the most texts to write. With 1 the text is written once, with its own landing; a
            request with a prefix or a draw needs 1.
        write: Writes requests, and yields results by their position in any order. It is called at most three times,
            never with no requests, and with several landings only if the requests have several.
        vocabulary: Counts prefixes.

    Yields:
        The result of each request by its position, as soon as it is known; its ``tokens_spent`` counts all texts that
        were written for it. Where no text is good enough, the text is forced by the landing of its request.
    """
    spent = [0] * len(requests)

    def write_attempts(attempts: Sequence[tuple[int, Request]]) -> Iterator[tuple[int, int, Result | SourceError]]:
        """Write attempts, and yield the position and draw of each with its result."""
        written = write([attempt for _, attempt in attempts]) if attempts else ()
        for number, result in ((number, result) for results in written for number, result in results.items()):
            position, attempt = attempts[number]
            if isinstance(result, Result):
                spent[position] += result.tokens_spent
                result = replace(result, tokens_spent=spent[position])
                if attempt.landing is Landing.NATURAL:
                    landed = natural_landing(requests[position], result)
                    result = replace(result, landed=landed, drawn=attempt.draw != requests[position].draw)
            yield position, attempt.draw, result

    texts: dict[int, dict[int, Result]] = {}  # by position and draw
    as_asked = [position for position, most in enumerate(tries) if most == 1]
    first = [(n, replace(request, landing=Landing.NATURAL)) for n, request in enumerate(requests) if tries[n] > 1]
    for position, draw, result in write_attempts(first):
        if isinstance(result, SourceError) or is_met(requests[position], result):
            yield position, result
        else:
            texts[position] = {draw: result}
    endings = [
        (position, attempt)
        for position, written in texts.items()
        for attempt in ending_requests(requests[position], written[0], tries[position], vocabulary)
    ]
    for position, draw, result in write_attempts(endings):
        if not isinstance(result, SourceError):
            texts[position][draw] = result
    for position, written in texts.items():
        best = best_result(requests[position], [written[draw] for draw in sorted(written)])
        if best is None:
            as_asked.append(position)
        else:
            yield position, replace(best, tokens_spent=spent[position])
    for position, _, result in write_attempts([(position, requests[position]) for position in sorted(as_asked)]):
        yield position, result


def describe_retry(request: Request, first: Result, attempts: Sequence[Request]) -> str:
    """Describe the attempts that ``write_with_retries`` passes on where the first text did not land well."""
    if attempts[0].landing is not Landing.NATURAL:
        return f"none ended there by itself; holding one to {request.target} {request.unit}"
    faults = ", looping" if first.looping else "" if first.finished else ", not finished"
    endings = "another ending" if len(attempts) == 1 else f"{len(attempts)} other endings"
    return f"{first.length} of {request.target} {request.unit}{faults}; trying {endings}"
