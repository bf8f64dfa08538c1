"""Sources that are longer than a model reads at once: read in parts, and written from what was written of the parts.

The source is split where paragraphs end, else sentences, else words. Each part is first written to a share of the
whole, as large as the part is; then the whole is written to its target from those. Where even they are too long, the
same is done again. Nothing is left out by a cut, and the result says what was done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.errors import SourceError
from impatience.lengths import Landing, Unit, split_sentences
from impatience.writing.prompts import Prompts

_LEAST = 64
"""Tokens that a part is written to at least, where the model has room for that."""
_FACTOR = 3
"""The parts are written to so many times the target in all: the whole must have something to choose from."""
_AT_ONCE = 8
"""Parts that are written before anyone is told how many are done."""
_SLACK = 8
"""Tokens that a joined text may have more than its pieces."""
_LONG_PARAGRAPH = 20_000
"""Characters of a paragraph in which sentences are looked for at a time: where quotes stay open, that takes long."""


@dataclass(frozen=True)
class Condensed:
    """An ask whose source the model can read, and how it came to that.

    Attributes:
        ask: What is left to do.
        parts: In how many parts the first source was read.
        note: What was done, in words.
    """

    ask: Request
    parts: int = 1
    note: str = ""


def fits(ask: Request, prompts: Prompts, source: int) -> bool:
    """Tell whether the model can read a source of so many tokens at once."""
    return source <= prompts.limit(prompts.output(ask, source))


def condense(
    ask: Request,
    prompts: Prompts,
    write: Callable[[Sequence[Request]], list[Result]],
    tell: Callable[[str], None] = lambda stage: None,  # noqa: ARG005
) -> Condensed:
    """Write the parts of a source that is too long, until the model can read what was written of them.

    Args:
        ask: What is asked for.
        prompts: Of the model.
        write: Writes asks whose sources it can read.
        tell: Is told what is being done.

    Raises:
        SourceError: If the source cannot be read in parts.
    """
    first = size = len(prompts.reads(ask))
    parts = rounds = limit = 0
    while not fits(ask, prompts, size):
        if not prompts.splits(ask):
            raise SourceError(
                f"The source has {size:,} tokens and the model reads {prompts.limit(prompts.output(ask, size)):,}. "
                f"An answer with its passage cannot be read in parts: shorten the passage."
            )
        output = prompts.output(ask, size)
        limit = limit or prompts.limit(output)
        pieces = _pieces(ask, prompts, output)
        parts, rounds = parts or len(pieces), rounds + 1
        written: list[str] = []
        for begin in range(0, len(pieces), _AT_ONCE):
            done = f", {begin} are done" if begin else ""
            tell(
                f"The text has {size:,} tokens, more than the model reads at once: writing {len(pieces)} parts of it "
                f"first{done}"
            )
            written += [result.text for result in write(pieces[begin : begin + _AT_ONCE])]
        text = "\n\n".join(filter(None, written))
        if not text:
            raise SourceError("The model wrote nothing about any part of the text. Try another model, or less text.")
        ask, before = replace(ask, text=text), size
        size = len(prompts.reads(ask))
        if size >= before:
            raise SourceError(
                f"The source has {first:,} tokens, and this model, which reads {limit:,} at once, cannot make it "
                f"shorter. Use a model with a longer context."
            )
    if not parts:
        return Condensed(ask)
    again = "" if rounds == 1 else f" These were too long again, so the same was done in {rounds} rounds."
    note = (
        f"The text has {first:,} tokens and the model reads {limit:,} at once: it was read in {parts} parts, each was "
        f"written shorter, and the whole was written from those.{again}"
    )
    return Condensed(ask, parts, note)


def _pieces(ask: Request, prompts: Prompts, output: int) -> list[Request]:
    """Return what to write of the parts of a source: each in proportion, and all of them short enough to be read."""
    limit, overhead = prompts.limit(output), prompts.overhead(ask)
    least = max(1, min(_LEAST, limit // 8))
    whole = max(least, min(_FACTOR * output, (limit - overhead) * 3 // 4))
    room = min(limit, prompts.limit(whole)) - overhead - _SLACK
    if room < 1:
        raise SourceError(f"The model reads {limit:,} tokens, and what it is told takes {overhead:,}: no text fits.")
    texts = list(split(ask.text, prompts.count, room))
    sizes = [prompts.count(text) for text in texts]
    # A title or a question of each part would say too little; a model that was trained does what it has learnt.
    task = "rewrite" if ask.task == "rewrite" and not prompts.trained else None
    return [
        Request(
            f"{ask.id}, part {number}",
            text,
            max(least, whole * size // sum(sizes)),
            Unit.TOKENS,
            Landing.AT_MOST,
            task,
        )
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True), 1)
    ]


def split(text: str, count: Callable[[str], int], most: int) -> Iterator[str]:
    """Split a text into parts of about the same size.

    Args:
        text: What to split.
        count: Counts the tokens of a piece.
        most: The most tokens that a part may have.

    Yields:
        The parts in order; together they hold every word of the text.
    """
    pieces = [(piece, start, count(piece)) for piece, start in _sentences(text, count, most)]
    left = sum(size for _, _, size in pieces)
    part, filled, even = "", 0, 0.0
    for piece, begins_paragraph, size in pieces:
        if part and (filled + size > most or filled + size / 2 > even):
            yield part
            part, left, filled = "", left - filled, 0
        if not part:
            even = left / max(1, math.ceil(left / most))
        part += ("\n\n" if begins_paragraph else " ") + piece if part else piece
        filled += size
    if part:
        yield part


def _sentences(text: str, count: Callable[[str], int], most: int) -> Iterator[tuple[str, bool]]:
    """Return the sentences of a text, none too long, and whether each begins a paragraph."""
    for paragraph in re.split(r"\n\s*\n", text):
        stretches = _halves(paragraph, len, _LONG_PARAGRAPH)
        sentences = (sentence for stretch in stretches for sentence in split_sentences(stretch))
        pieces = (piece for sentence in sentences for piece in _halves(sentence, count, most))
        for number, piece in enumerate(pieces):
            yield piece, number == 0


def _halves(text: str, count: Callable[[str], int], most: int) -> Iterator[str]:
    """Halve what has no sentence end for too long, between words if there are any."""
    if len(text) < 2 or count(text) <= most:
        yield text
        return
    middle = len(text) // 2
    spaces = [place.start() for place in re.finditer(r"\s", text)]
    place = min(spaces, key=lambda space: abs(space - middle)) if spaces else middle
    for half in (text[:place].strip(), text[place:].strip()):
        if half:
            yield from _halves(half, count, most)
