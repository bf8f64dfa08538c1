"""Judges how a text ended: whether it is finished, whether it loops, and how it landed.

This file defines three words, for all of the package:

    finished   The text was ended, not cut by a limit, and its last sentence is whole: it ends in a full stop, or its
               like, that the landing did not add. Where the model itself chose to end, a title, an item of a list, the
               name below a letter, a line of a table or code, and a text in Thai or Lao, which have no full stop, are
               whole too; so are ends that a splitter would read on from, as "in the U.S." and "left…", and emoji or
               the mark of a footnote after a full stop.
    looping    The text repeats itself; see ``looping``.
    landed     "natural": on target (with ``at_most``: not over it), ended by the model itself, finished, not looping.
               "forced": on target too, but the landing made it so, or it breaks off inside a sentence, or it loops.
               "missed": off target, or cut by a limit.
"""

from __future__ import annotations

import re
from typing import Literal

from impatience.lengths import CLOSERS, SENTENCE_END, STOPS, ends_sentence
from impatience.looping import is_looping

Landed = Literal["natural", "forced", "missed"]

_NO_STOP = re.compile(
    r"(^|\n)\s*([-*+•‣▪]|\d+[.)])\s+\S[^\n]*$|,[ \t]*\n\s*\S[^\n]{0,60}$|[|`]\s*$|[\u0e01-\u0eff]\s*$"
)
"""Ends that need no full stop: an item of a list, the name below "Best regards,", a line of a table, code, and Thai or
Lao."""
_READS_ON = re.compile(r"\b(Drs?|Mrs?|Ms|Prof|vs|Gen|Sen|Rep|Gov|Lt|Capt|e\.g|i\.e|cf|Fig|approx|incl|z\.B)\.$")
"""Abbreviations that end no sentence: a name or an example follows."""
_AFTER_STOP = re.compile(
    rf"(?<=[{STOPS}{re.escape(CLOSERS)}*_])"
    "(?:[\\s*_†‡\u00b9\u00b2\u00b3\u200d\u2070-\u2079\u2600-\u27bf\u2b00-\u2bff\ufe0e\ufe0f\U0001f000-\U0001faff]|\\[\\d{1,3}\\])+$"
)
"""Emoji, marks of footnotes and of Markdown, that stand after a full stop."""
_EMPHASIS = "*_"
"""Marks of Markdown that may follow a full stop."""


def judge(text: str, *, own_end: bool, ended: bool, on_target: bool, title: bool = False) -> tuple[bool, bool, Landed]:
    """Return whether a text is finished, whether it loops, and how it landed.

    A long text takes some milliseconds, so it is judged where it is made or changed, and not again.

    Args:
        text: The text.
        own_end: Whether the model itself chose to end there.
        ended: Whether it was ended; False if a limit cut it, or the landing added its full stop.
        on_target: Whether it is on target, and no limit cut it.
        title: Whether it is a title, which needs no whole sentence.
    """
    finished, looping = ended and is_whole(text, own_end=own_end, title=title), is_looping(text)
    return finished, looping, judge_landing(on_target, own_end and finished, looping)


def is_whole(text: str, *, own_end: bool, title: bool = False) -> bool:
    """Check whether the end of a text that was ended is that of a whole one."""
    said = text.strip().rstrip(_EMPHASIS)
    return ends_sentence(said) or (own_end and (title or bool(_NO_STOP.search(text)) or _stops(said)))


def _stops(text: str) -> bool:
    """Check for a full stop at the end of a text that goes no further, also that of an abbreviation."""
    text = _AFTER_STOP.sub("", text).rstrip(_EMPHASIS)
    return bool(SENTENCE_END.search(text)) and not _READS_ON.search(text)


def judge_landing(on_target: bool, natural_end: bool, looping: bool) -> Landed:
    """Return how a text landed; its end is natural if the model itself chose it, and it is finished."""
    if not on_target:
        return "missed"
    return "natural" if natural_end and not looping else "forced"
