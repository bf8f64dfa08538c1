"""Numbers as people write them: in digits of many formats, in words, as dates and as times of day.

A *mention* is a number in a text with all the values that it may mean: "3.5 m" is 3.5 (metres) or 3,500,000.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from impatience.grounding.words import fold

PART = re.compile(
    r"(?P<date>\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{4}\b)"
    r"|(?P<time>\b\d{1,2}:\d{2}(?::\d{2})?(?:\s?(?:[ap]\.?m|[AP]\.?M)\b)?"
    r"|\b\d{1,2}(?:\.\d{2})?\s?(?:[ap]\.?m|[AP]\.?M)\b(?!\.?\w))"
    r"|(?P<number>\d{1,3}(?:[  \u2009\u202f]\d{3})+(?!\d)|\d+(?:[.,'’]\d+)*)(?P<suffix>[^\W\d_]*)(?P<code>[\w]*)"
    r"|(?P<fraction>[½⅓⅔¼¾])"
    r"|(?P<word>[^\W\d_](?:[^\W\d_]|[\u0300-\u036f])*)(?P<tail>\d\w*)?"
)
"""A part of a text: a date, a time, a number in digits, or a word; ``code`` and ``tail`` are of names like H5N1."""

_GROUPS = re.compile(r"\d{1,3}(?:[,  \u2009\u202f'’]\d{3})+")


@dataclass(frozen=True)
class Part:
    """A match of ``PART``, with the word folded."""

    kind: str  # "date", "time", "number", "fraction" or "word"
    text: str
    folded: str
    start: int
    end: int
    suffix: str = ""  # letters that follow the digits at once: "m", "th", "s", "km"
    code: bool = False  # whether letters and digits are mixed: H5N1


@dataclass(frozen=True)
class Mention:
    """A number in a text."""

    start: int
    end: int
    values: tuple[float, ...]  # each of them would do
    parts: tuple[float, ...] = ()  # or all of these
    days: tuple[tuple[int, int], ...] = ()  # of a date: days and their months, one of which has to be there too
    times: tuple[int, ...] = ()  # minutes of the day, one of which would do
    span: tuple[float, float] | None = None  # or any number from the first to the last: a decade, "hundreds"
    rounded: bool = False  # whether it may be a rounded one: "about 1,000", "3.5 million"


def parts_of(text: str) -> list[Part]:
    """Split a text into words and numbers."""
    found = []
    for match in PART.finditer(text):
        suffix, code = match["suffix"] or "", bool(match["code"] or match["tail"])
        kind = next(k for k in ("date", "time", "number", "fraction", "word") if match[k] is not None)
        folded = fold(match["word"]) if kind == "word" and not code else fold(match.group())
        if kind == "number" and not code:
            folded = match["number"]
        found.append(Part(kind, match.group(), folded, match.start(), match.end(), fold(suffix), code))
    return found


def digits_values(number: str) -> tuple[float, ...]:
    """Return what digits may mean: "1.000" is one or one thousand."""
    if _GROUPS.fullmatch(number):
        return (float(re.sub(r"\D", "", number)),)
    dots, commas = number.count("."), number.count(",")
    if dots + commas == 0:
        return (float(re.sub(r"\D", "", number)),)
    if dots and commas:
        decimal = max(number.rfind("."), number.rfind(","))
        whole, rest = (re.sub(r"\D", "", half) for half in (number[:decimal], number[decimal + 1 :]))
        return (float(f"{whole}.{rest}"),)
    if dots == 1 or commas == 1:
        whole, _, rest = re.sub("['’]", "", number).replace(",", ".").partition(".")
        values = [float(f"{whole}.{rest}")]
        if dots and len(rest) == 3:
            values.append(float(whole + rest))
        return tuple(values)
    if dots > 1 and all(len(group) == 3 for group in number.split(".")[1:]):
        return (float(number.replace(".", "")),)
    return ()


class KnownNumbers:
    """The numbers of a source."""

    def __init__(
        self, mentions: Sequence[Mention], more: Sequence[float] = (), days: Iterable[tuple[float, int]] = ()
    ) -> None:
        counts = [one for one in mentions if not one.times or any(value % 1 for value in one.values)]
        dates = {date for one in mentions for date in one.days}
        values = {value for one in counts for value in (*one.values, *one.parts)} | {*more}
        values |= {float(day) for day, _ in dates}
        self.values = frozenset(values)
        self.spans = frozenset(mention.span for mention in mentions if mention.span)
        self.times = frozenset(time for mention in mentions for time in mention.times)
        self.hours = frozenset(float(hour) for time in self.times for hour in (time // 60, (time // 60 - 1) % 12 + 1))
        self.days = frozenset[tuple[float, int]]({*days, *dates})  # (2, 3) is 2 March
        self.months = frozenset(month for _, month in dates)  # of dates in digits
        self._sorted = sorted(values)

    def has(self, mention: Mention) -> bool:
        """Check whether the source has a number, in any writing."""
        if not self.values.isdisjoint(mention.values):
            return True
        if not (self.times.isdisjoint(mention.times) if mention.times else self.hours.isdisjoint(mention.values)):
            return True
        if mention.parts and self.values.issuperset(mention.parts):
            return not mention.days or any(self._has_day(*date) for date in mention.days)
        if mention.span and (mention.span in self.spans or self._between(*mention.span)):
            return True
        return any(self._rounds(value, mention.rounded) for value in mention.values)

    def _has_day(self, day: int, month: int) -> bool:
        """Check for a day of a month; in a source that names no such days, both numbers will do."""
        return (day, month) in self.days or (not self.days and self.values.issuperset((day, month)))

    def _between(self, low: float, high: float) -> bool:
        return bisect_left(self._sorted, low) < bisect_right(self._sorted, high)

    def _rounds(self, value: float, freely: bool) -> bool:
        """Check whether a value is a rounded one of the source; without a hedge only decimals are dropped."""
        if not 0 < value < 1e15:
            return False
        near = self._sorted[bisect_left(self._sorted, value - 1) : bisect_right(self._sorted, value + 1)]
        decimals = len(str(value).partition(".")[2].rstrip("0"))
        if any(known % 1 and round(known, decimals) == value for known in near):
            return True
        digits = len(str(int(value)).rstrip("0")) if value >= 10 else 9
        if not freely or digits > 3:
            return False
        margin = (0.25, 0.06, 0.006)[digits - 1] * value
        return self._between(value - margin, value + margin)
