"""Long texts: a source that is longer than the model reads at once is read in parts.

The source is split where paragraphs end, else sentences, else words. Each part is first written to a share of the whole
that fits its size; then the whole is written to its target from those. Where even they are too long, the same is done
again. No cut drops any text, and the result says what was done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.errors import SourceError
from impatience.lengths import Landing, Unit, split_sentences

if TYPE_CHECKING:
    from impatience.writing.prompts import Prompts

_LEAST = 64  # the least target of a part in tokens, where the model has room for that
_FACTOR = 3  # the targets of all parts add up to so many times the target: the whole needs something to choose from
_AT_ONCE = 8  # parts that are written between two reports of the stage
_SLACK = 8  # tokens that a joined text may have more than its pieces
_LONG_PARAGRAPH = 20_000
"""Characters of a paragraph that are split into sentences at a time: where quotes stay open, that is slow."""


@dataclass(frozen=True)
class ShortenedSource:
    """A request whose source the model can read at once."""

    request: Request  # the request that is left to write
    parts: int = 1  # number of parts that the first source was read in
    note: str = ""  # what was done, in words


def shorten_source(
    request: Request,
    prompts: Prompts,
    write: Callable[[Sequence[Request]], list[Result]],
    report_stage: Callable[[str], None] = lambda stage: None,  # noqa: ARG005
) -> ShortenedSource:
    """Write the parts of a source that is too long, until the model can read what was written of them.

    A source that fits is left alone; one that cannot be read in parts is a SourceError. ``write`` writes requests whose
    sources the model can read, and ``report_stage`` is called with descriptions of the work.
    """
    first = size = len(prompts.encode(request))
    language = prompts.remark(request)
    parts = rounds = limit = 0
    while not prompts.fits(request, size):
        output = prompts.estimate_output(request, size)
        if not prompts.can_split(request):
            what = "An answer with its passage" if request.text.strip() else "An instruction"
            raise SourceError(
                f"The prompt has {size:,} tokens and the model reads {prompts.source_limit(output):,}. "
                f"{what} cannot be read in parts: shorten it."
            )
        limit = limit or prompts.source_limit(output)
        pieces = _part_requests(request, prompts, output)
        parts, rounds = parts or len(pieces), rounds + 1
        written: list[str] = []
        for begin in range(0, len(pieces), _AT_ONCE):
            done = f", {begin} are done" if begin else ""
            report_stage(
                f"The text has {size:,} tokens, more than the model reads at once: writing {len(pieces)} parts of it "
                f"first{done}"
            )
            written += [result.text for result in write(pieces[begin : begin + _AT_ONCE])]
        text = "\n\n".join(filter(None, written))
        if not text:
            raise SourceError("The model wrote nothing about any part of the text. Try another model, or less text.")
        request, before = replace(request, text=text, whole=request.whole or request.text), size
        size = len(prompts.encode(request))
        if size >= before:
            raise SourceError(
                f"The source has {first:,} tokens, and this model, which reads {limit:,} at once, cannot make it "
                f"shorter. Use a model with a longer context."
            )
    if not parts:
        return ShortenedSource(request)
    again = "" if rounds == 1 else f" These were too long again, so the same was done in {rounds} rounds."
    note = (
        f"The text has {first:,} tokens and the model reads {limit:,} at once: it was read in {parts} parts, each was "
        f"written shorter, and the whole was written from those.{again}"
    )
    return ShortenedSource(request, parts, join_notes(note, language))


def join_notes(*notes: str) -> str:
    """Join remarks on a text, each once."""
    joined = ""
    for note in notes:
        joined = joined if note in joined else f"{joined} {note}".strip()
    return joined


def _part_requests(request: Request, prompts: Prompts, output: int) -> list[Request]:
    """Return requests for the parts of a source, with targets in proportion that the model can read together."""
    limit, overhead = prompts.source_limit(output), prompts.overhead(request)
    least = max(1, min(_LEAST, limit // 8))
    whole = max(least, min(_FACTOR * output, (limit - overhead) * 3 // 4))
    room = min(limit, prompts.source_limit(whole)) - overhead - _SLACK
    if room < 1:
        raise SourceError(f"The model reads {limit:,} tokens, and its instruction takes {overhead:,}: no text fits.")
    texts = list(split(request.text, prompts.count_tokens, room))
    sizes = [prompts.count_tokens(text) for text in texts]
    # A title or an answer to each part would say too little; a trained model does what it has learnt.
    task = "rewrite" if request.task == "rewrite" and prompts.takes_instructions else None
    targets = [max(least, whole * size // sum(sizes)) for size in sizes]
    return [
        Request(f"{request.id}, part {number}", text, target, Unit.TOKENS, Landing.AT_MOST, task=task)
        for number, (text, target) in enumerate(zip(texts, targets, strict=True), 1)
    ]


def split(text: str, count: Callable[[str], int], most: int) -> Iterator[str]:
    """Split a text into parts of about the same size, at most so many tokens each, that hold every word of it."""
    pieces = [(piece, start, count(piece)) for piece, start in _sentences(text, count, most)]
    left = sum(size for _, _, size in pieces)
    part, filled, even = "", 0, 0.0  # even: size of a part if the rest is split evenly
    for piece, starts_paragraph, size in pieces:
        if part and (filled + size > most or filled + size / 2 > even):
            yield part
            part, left, filled = "", left - filled, 0
        if not part:
            even = left / max(1, math.ceil(left / most))
        part += ("\n\n" if starts_paragraph else " ") + piece if part else piece
        filled += size
    if part:
        yield part


def _sentences(text: str, count: Callable[[str], int], most: int) -> Iterator[tuple[str, bool]]:
    """Yield the sentences of a text, none too long, and whether each starts a paragraph."""
    for paragraph in re.split(r"\n\s*\n", text):
        stretches = _halves(paragraph, len, _LONG_PARAGRAPH)
        sentences = (sentence for stretch in stretches for sentence in split_sentences(stretch))
        pieces = (piece for sentence in sentences for piece in _halves(sentence, count, most))
        for number, piece in enumerate(pieces):
            yield piece, number == 0


def _halves(text: str, count: Callable[[str], int], most: int) -> Iterator[str]:
    """Halve a text until no piece is too long, between words if there are any."""
    if len(text) < 2 or count(text) <= most:
        yield text
        return
    middle = len(text) // 2
    spaces = [space.start() for space in re.finditer(r"\s", text)]
    cut = min(spaces, key=lambda space: abs(space - middle)) if spaces else middle
    for half in (text[:cut].strip(), text[cut:].strip()):
        if half:
            yield from _halves(half, count, most)
