"""Paragraphs: joins the lines of the pages of a document, which break wherever a line is full.

A line break stays where the next word would have fitted on the line and does not begin in lower case: there the author
broke the line, after a heading or at the end of a paragraph. A hyphen at the end of a line goes if the document has
the joined word elsewhere, or neither the hyphenated word nor both of its parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from impatience.lengths import STOPS, unspaced

_FULL = 0.9  # share of the width that a line may fall short of it by chance
_BULLET = re.compile(r"[•‣▪●◦]")
_ITEM = re.compile(r"[–—*-]\s|\d{1,3}[.)]\s|[a-z]\)\s")  # may also stand in a sentence
_BEFORE_ITEM = tuple(f"{STOPS}:;")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_SOFT = "\u00ad"
_LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"})  # signs of a font, not letters
_HYPHENS = ("-", "\u2010", _SOFT)
_JOINING = ("and", "or", "to", "und", "oder", "bis", "et", "ou")
"""Words before which a hyphen stands for a part of a word that comes later: "pre- and post-war"."""


def join_lines(pages: Sequence[str]) -> str:
    """Return the text of pages, with a blank line between paragraphs and no other line breaks."""
    lines = [line for page in pages for line in _lines(page, numbered=len(pages) > 1)]
    if not lines:
        return ""
    known = Counter(_whole_words(line for line, _ in lines))
    widths = sorted(len(line) for line, _ in lines)
    width = widths[int(0.95 * len(widths))]
    text = ""
    for (line, _), (following, blank) in pairwise(lines):
        text += f"{line}\n\n" if _ends_paragraph(line, following, blank, width) else _before(line, following, known)
    return f"{text}{lines[-1][0]}".replace(_SOFT, "").translate(_LIGATURES)


def _lines(page: str, *, numbered: bool) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a page that are not blank, and whether a blank one comes before; without a page number."""
    lines = [" ".join(line.split()) for line in page.strip().splitlines()]
    for place in (0, -1):
        if numbered and lines and lines[place].strip("-– ").isdigit():
            del lines[place]
    blank = False
    for line in lines:
        if line:
            yield line, blank
        blank = not line


def _whole_words(lines: Iterable[str]) -> Iterator[str]:
    """Yield the words of lines in lower case, without the halves around a hyphen at the end of a line."""
    broken = False
    for line in lines:
        words = _WORD.findall(line.lower())
        yield from words[broken : len(words) - _hyphenated(line)]
        broken = _hyphenated(line)


def _ends_paragraph(line: str, following: str, blank: bool, width: int) -> bool:
    """Check whether a paragraph ends with a line."""
    stopped = line.endswith(_BEFORE_ITEM)
    if _BULLET.match(following) or (_ITEM.match(following) and stopped):
        return True
    if following[0].islower() or _hyphenated(line):
        return blank and stopped
    word = 0 if unspaced(following[0]) else len(following.split()[0])
    return blank or len(line) + 1 + word <= _FULL * width


def _hyphenated(text: str) -> bool:
    return text.endswith(_HYPHENS) and text[-2:-1].isalnum()


def _before(line: str, following: str, known: Counter[str]) -> str:
    """Return a line as it stands before the one that follows it in its paragraph: with a space, or less its hyphen."""
    if not _hyphenated(line):
        return line if unspaced(line[-2:]) and unspaced(following[:2]) else f"{line} "
    whole = line[:-1]
    if line.endswith(_SOFT):
        return whole
    ends, begins = re.search(r"[^\W\d_]+$", whole), re.match(r"[^\W\d_]+", following)
    if ends is None or begins is None:
        return line  # between numbers, e.g. 2019-2020
    first, last = ends[0].lower(), begins[0].lower()
    in_compound = following[len(last) : len(last) + 1] == "-"
    if last in _JOINING and not in_compound:
        return f"{line} "
    if known[f"{first}{last}"] and begins[0].islower():
        return whole
    compound = in_compound or known[f"{first}-{last}"] or (known[first] and known[last])
    return line if compound or not begins[0].islower() else whole
