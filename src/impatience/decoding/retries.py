"""Retries: draw other endings for a text that is not good, and keep the best.

A steered model may plan its last sentence badly and finish it some words late, or say what its source does not. Such a
text is cut back to shortly before its target, or to the start of the sentence there, or to before the first sentence
with an unsupported word, and endings are drawn from there under the same signal: a few first, the others only if none
of these will do. ``decoding.ranking`` says which text is the best: truth comes first. The draws are the same every time
(``steps.sampling``), and the choice depends on the texts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from impatience.data import Request
from impatience.decoding.ranking import best_of, is_guess, is_supported
from impatience.decoding.results import Result
from impatience.errors import OptionError, SourceError
from impatience.judging import Landed, judge_landing
from impatience.lengths import Landing, decode, ends_sentence
from impatience.vocabulary import Vocabulary

TRIES = 9  # default number of texts for a request that a person waits for: of eight endings one nearly always lands
MOST_TRIES = 16  # the most texts that are written for a request
FIRST_ROUND = 3  # endings that are drawn at once; the others only if none of these is good
BACK = 24  # tokens before the target, about, where endings begin; at least half of a short text stays


def check_tries(tries: int) -> None:
    """Check the number of texts that may be written for a request."""
    if isinstance(tries, bool) or not isinstance(tries, int) or not 1 <= tries <= MOST_TRIES:
        raise OptionError(f"tries={tries!r}: give a whole number from 1 to {MOST_TRIES}.")


def ending_requests(request: Request, first: Result, tries: int, vocabulary: Vocabulary) -> list[Request]:
    """Return requests for other endings of the first text, so many that there are ``tries`` texts in all.

    Every other one begins with a sentence: it can say the whole of it in fewer words, where the rest must go on as it
    began. The last tokens of the text are never part of the prefix, so there is room for an ending where the text
    filled the model.
    """
    back = max(1, min(round(BACK / request.unit.tokens), request.target // 2))
    most = min(request.target, first.length) - back
    prefix = vocabulary.beginning(first.ids[: -BACK // 2], max(0, most), request.unit)
    text = "" if vocabulary.tokenizer is None else decode(vocabulary.tokenizer, prefix)
    if places := [place for word in first.unsupported if (place := text.find(word)) >= 0]:
        prefix = _whole_sentences(prefix, min(places), vocabulary)
    prefixes = prefix, _whole_sentences(prefix, len(text), vocabulary)
    return [replace(request, landing=Landing.NATURAL, prefix=prefixes[draw % 2], draw=draw) for draw in range(1, tries)]


def held_endings(request: Request, first: Result, tries: int, vocabulary: Vocabulary) -> list[Request]:
    """Return requests for the same endings, held to the target, where the first text would be too.

    There are none for ``at_most``: it cuts the first text back, which adds nothing to it.
    """
    endings = ending_requests(request, first, tries, vocabulary) if request.landing is Landing.EXACT else []
    return [replace(ending, landing=request.landing) for ending in endings]


def _whole_sentences(ids: tuple[int, ...], most: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the ids of the whole sentences that a text begins with, at most so many characters.

    Without a tokenizer there is no text to read, and all ids are returned.
    """
    if vocabulary.tokenizer is None:
        return ids
    for size in range(len(ids), 0, -1):
        text = decode(vocabulary.tokenizer, ids[:size])
        if len(text) <= most and ends_sentence(text):
            return ids[:size]
    return ()


def is_met(request: Request, result: Result) -> bool:
    """Check whether a text that was written with the natural landing is on target, finished and does not loop."""
    return natural_landing(request, result) == "natural"


def natural_landing(request: Request, result: Result) -> Landed:
    """Return how a text that was written with the natural landing landed, by the landing of its request."""
    return judge_landing(request.accepts(result.length) and result.ended, result.finished, result.looping)


def is_good(request: Request, result: Result) -> bool:
    """Check whether no other ending is tried: the text met the request, and holds no unsupported word."""
    return is_met(request, result) and not result.unsupported


def best_result(request: Request, results: Sequence[Result]) -> Result | None:
    """Return the text to keep; the results were written with the natural landing, in the order of their draws.

    The landings ``exact`` and ``at_most`` accept only texts that meet the request and are no less grounded than the
    first one, and return None if the text must be forced.
    """
    first = results[0]
    if request.landing is not Landing.NATURAL:
        results = [one for one in results if is_met(request, one) and is_supported(first, one)]
    return best_of(request, first, results) if results else None


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
        write: Writes requests, and yields results by their position in any order. It is called at most four times,
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
                drawn = attempt.draw != requests[position].draw
                result = replace(result, tokens_spent=spent[position], drawn=drawn)
                if attempt.landing is Landing.NATURAL:
                    result = replace(result, landed=natural_landing(requests[position], result))
            yield position, attempt.draw, result

    texts: dict[int, dict[int, Result]] = {}  # by position and draw
    as_asked = [position for position, most in enumerate(tries) if most == 1]
    first = [(n, replace(request, landing=Landing.NATURAL)) for n, request in enumerate(requests) if tries[n] > 1]
    for position, draw, result in write_attempts(first):
        if isinstance(result, SourceError) or is_good(requests[position], result):
            yield position, result
        else:
            texts[position] = {draw: result}
    drawn = {n: ending_requests(requests[n], written[0], tries[n], vocabulary) for n, written in texts.items()}
    for of_round in (slice(FIRST_ROUND), slice(FIRST_ROUND, None)):
        endings = [(n, attempt) for n, attempts in drawn.items() for attempt in attempts[of_round]]
        for position, draw, result in write_attempts(endings):
            if not isinstance(result, SourceError):
                texts[position][draw] = result
                if is_good(requests[position], result) and is_supported(texts[position][0], result):
                    drawn.pop(position, None)
    forced: dict[int, list[Result]] = {}  # for each request whose text must be forced, those that landed all the same
    for position, written in texts.items():
        request, results = requests[position], [written[draw] for draw in sorted(written)]
        best = best_result(request, results)
        if best is None:
            forced[position] = [result for result in results if is_met(request, result)]
        else:
            yield position, _with_cost(best, results[0], spent[position])
    held = [(position, requests[position]) for position in sorted([*as_asked, *forced])]
    held += [
        (position, attempt)
        for position in forced
        for attempt in held_endings(requests[position], texts[position][0], tries[position], vocabulary)
    ]
    by_draw: dict[int, dict[int, Result | SourceError]] = {}
    for position, draw, result in write_attempts(held):
        if position in forced:
            by_draw.setdefault(position, {})[draw] = result
        else:
            yield position, result
    for position, attempts in by_draw.items():
        results = [*forced[position], *(one for _, one in sorted(attempts.items()) if isinstance(one, Result))]
        landed = [result for result in results if result.landed != "missed"] or results
        if landed:
            best = best_of(requests[position], texts[position][0], landed)
            yield position, _with_cost(best, texts[position][0], spent[position])
        else:
            yield position, attempts[min(attempts)]


def _with_cost(best: Result, first: Result, spent: int) -> Result:
    """Return the text that is kept, with what it cost."""
    best = replace(best, tokens_spent=spent, first_unsupported=first.unsupported)
    cost, length = "", f"{first.length:,} {first.unit}"
    if best.added:
        cost = f"To land there, it says what the first text, of {length}, did not: {', '.join(best.added)}."
    elif is_guess(first, best):
        cost = f"To land there, it guesses: its end is less likely than that of the first text, of {length}. Check it."
    return replace(best, note=f"{best.note} {cost}".strip())


def describe_retry(request: Request, first: Result, attempts: Sequence[Request]) -> str:
    """Describe the attempts that ``write_with_retries`` passes on where the first text did not land well."""
    if attempts[0].landing is not Landing.NATURAL:
        return f"no good one ended there by itself; holding one to {request.target} {request.unit}"
    faults = ", looping" if first.looping else "" if first.finished else ", not finished"
    if first.unsupported:
        faults += f", {len(first.unsupported)} not in the source"
    endings = "another ending" if len(attempts) == 1 else f"{len(attempts)} other endings"
    return f"{first.length} of {_asked_for(request)} {request.unit}{faults}; trying {endings}"


def _asked_for(request: Request) -> str:
    return "-".join(map(str, request.within or (request.target,)))
