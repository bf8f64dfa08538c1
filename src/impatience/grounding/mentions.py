"""Reads the numbers of a text: in digits, in words, as shares, dates, times of day and decades."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from unicodedata import category

from impatience.grounding.clock import spoken_time
from impatience.grounding.numbers import Mention, Part, digits_values
from impatience.grounding.words import table

_EN = {word: value for value, word in enumerate(table("units")["en"])}
_TENS = {word: 10 * value for value, word in enumerate(table("tens")["en"], start=2)}
_ORDINALS = {word: value for value, word in enumerate(table("ordinals"), start=1)} | {"thirtieth": 30, "hundredth": 100}
_WORDS = {
    language: {word: value for value, word in enumerate(table("units")[language]) if value > 1}
    | {word: 10 * value for value, word in enumerate(words, start=2)}
    for language, words in table("tens").items()
}
_SCALES = {
    "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "dozen": 12.0, "tausend": 1e3,
    "millionen": 1e6, "mio": 1e6, "milliarde": 1e9, "milliarden": 1e9, "mrd": 1e9, "mille": 1e3, "millions": 1e6,
    "milliard": 1e9, "milliards": 1e9, "mil": 1e3, "millon": 1e6, "millones": 1e6, "bn": 1e9, "mn": 1e6, "tn": 1e12,
    "m": 1e6, "k": 1e3, "b": 1e9, "lakh": 1e5, "crore": 1e7,
}  # fmt: skip
_CURRENCIES = frozenset(("eur", "usd", "gbp", "chf", "nok", "sek", "dkk", "jpy", "inr", "cny", "aud", "cad", "rs"))
_VAGUE = {"dozens": (13, 999), "hundreds": (100, 99_999), "thousands": (1e3, 1e7), "millions": (1e6, 1e10)}
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fifth": 5, "fifths": 5, "sixths": 6,
    "tenth": 10, "tenths": 10, "eighths": 8,
}  # fmt: skip
_GLYPHS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4)}
_HEDGES = frozenset(table("hedges"))
_CLOCK = re.compile(r"([01]?\d|2[0-3])\.[0-5]\d")
_NOON = {"noon": 720, "midday": 720, "midnight": 0}


def mentions_of(parts: Sequence[Part], text: str, languages: Iterable[str] = ()) -> list[Mention]:
    """Return the numbers of a text, in digits and in words; the words are English and those of the languages."""
    words = {word: value for language in languages for word, value in _WORDS.get(language, {}).items()}
    found, place = [], 0
    while place < len(parts):
        mention, after = _mention(parts, place, text, words)
        if mention is not None:
            found.append(_of_many(mention, parts, place))
        place = max(after, place + 1)
    return found


def _of_many(mention: Mention, parts: Sequence[Part], place: int) -> Mention:
    """Return a number that is also the share that it ends: "one in five"."""
    if place < 2 or parts[place - 1].folded != "in" or len(mention.values) != 1 or not 2 <= mention.values[0] <= 100:
        return mention
    word = parts[place - 2].folded
    part = float(word) if word.isascii() and word.isdigit() and len(word) < 3 else _EN.get(word, 0)
    if not 0 < part < mention.values[0]:
        return mention
    return replace(mention, values=(*mention.values, *_share(part, mention.values[0])))


def _mention(parts: Sequence[Part], place: int, text: str, words: dict[str, int]) -> tuple[Mention | None, int]:
    part = parts[place]
    if part.kind in ("word", "number") and (spoken := spoken_time(parts, place, _EN)) is not None:
        return spoken
    if part.kind == "date":
        return _date(part), place + 1
    if part.kind == "time":
        return _time(part), place + 1
    if part.kind == "fraction":
        return Mention(part.start, part.end, _share(*_GLYPHS[part.text])), place + 1
    if part.kind == "number" and part.code:
        return None, place + 1
    if part.kind == "number" and part.suffix in ("s", "er", "ern", "ies") and len(part.folded) in (2, 4):
        year = int(part.folded)
        if year == 1000:
            return Mention(part.start, part.end, (1e3,), span=_VAGUE["thousands"]), place + 1
        if year % 10 == 0:  # the 1990s, the 90s, die 1990er
            span = (year, year + (9 if year % 100 or len(part.folded) == 2 else 99))
            spans = span if len(part.folded) == 4 else (1900 + year, 1909 + year)
            return Mention(part.start, part.end, (float(year), 1900.0 + year), span=spans), place + 1
    if part.kind == "number":
        return _digits(parts, place, text)
    return _words(parts, place, text, words)


def _date(part: Part) -> Mention:
    a, b, c = (int(number) for number in re.split(r"[-./]", part.text))
    year, orders = (a, [(c, b)]) if a > 31 else (c, [(a, b), (b, a)])
    days = tuple((day, month) for day, month in orders if 1 <= month <= 12 and 1 <= day <= 31)
    if not days:  # a code
        return Mention(part.start, part.end, (), (float(a), float(b), float(c)))
    return Mention(part.start, part.end, (), (float(year),), days)


def _time(part: Part) -> Mention:
    numbers = [int(number) for number in re.findall(r"\d+", part.text)]
    hour, minute = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if half := re.search(r"[ap](?=\.?m)", part.text.lower()):
        hour = hour % 12 + (12 if half.group() == "p" else 0)
    bare = (float(numbers[0]),) if minute == 0 else ()
    return Mention(part.start, part.end, bare, times=(hour * 60 + minute,))


def _digits(parts: Sequence[Part], place: int, text: str) -> tuple[Mention | None, int]:
    """Read digits, with a scale that follows: "3.5 million", "3.5m"."""
    part, after, scale = parts[place], place + 1, part_scale(parts, place, text)
    values = digits_values(part.folded)
    if not values:  # a version, an IP address
        return Mention(part.start, part.end, (), tuple(map(float, re.findall(r"\d+", part.folded)))), after
    end, times = part.end, tuple[int, ...]()
    if scale is None and not part.suffix and _CLOCK.fullmatch(part.folded):  # 14.30 may be half past two
        hour, minute = map(int, part.folded.split("."))
        times = (hour * 60 + minute,)
    if scale is not None:
        by, sure, after = scale
        scaled = tuple(value * by for value in values)
        values = scaled if sure else values + scaled
        end = parts[after - 1].end
    elif (century := _century(parts, place, text)) is not None:
        values += (century + values[0],)
    elif (factor := _range_scale(parts, place, text)) is not None:
        values += tuple(value * factor for value in values)
    return Mention(part.start, end, values, times=times, rounded=scale is not None or _is_hedged(parts, place)), after


def part_scale(parts: Sequence[Part], place: int, text: str) -> tuple[float, bool, int] | None:
    """Return the scale after digits, whether it is surely one, and the place after it.

    "3m" may be metres, "3b" a part of a figure and "3K" kelvin, but not after a currency.
    """
    part, after = parts[place], place + 1
    unit = part.suffix
    if not unit:
        if not _joined(parts, place + 1, text):
            return None
        unit, after = parts[place + 1].folded, place + 2
    if unit not in _SCALES:
        return None
    sure = len(unit) > 1 or (part.suffix == "k" and part.text.endswith("k")) or _is_money(parts, place, text)
    return (_SCALES[unit], sure, after) if part.suffix or sure or unit == "m" else None


def _is_money(parts: Sequence[Part], place: int, text: str) -> bool:
    """Check for a currency before a number: "€4", "EUR 4"."""
    before = text[max(0, parts[place].start - 2) : parts[place].start].rstrip()[-1:]
    return (before != "" and category(before) == "Sc") or (place > 0 and parts[place - 1].folded in _CURRENCIES)


def _range_scale(parts: Sequence[Part], place: int, text: str) -> float | None:
    """Return the scale of the end of a range: "3-4 million" begins with three million, too."""
    if place + 1 < len(parts) and parts[place + 1].kind == "number" and not parts[place].suffix:
        between = text[parts[place].end : parts[place + 1].start].strip()
        if between and all(mark in "-–" or category(mark) == "Sc" for mark in between):
            found = part_scale(parts, place + 1, text)
            return found[0] if found and found[1] else None
    return None


def _century(parts: Sequence[Part], place: int, text: str) -> float | None:
    """Return the hundreds of the second year of "1914-18" or "2019/20"."""
    part, before = parts[place], parts[place - 1]
    if place and len(part.folded) == 2 and part.folded.isdigit() and re.fullmatch(r"[12]\d{3}", before.text):
        year = 100.0 * (int(before.text) // 100)
        if text[before.end : part.start] in ("-", "–", "/") and year + int(part.folded) > int(before.text):
            return year
    return None


def _is_hedged(parts: Sequence[Part], place: int) -> bool:
    return any(parts[before].folded in _HEDGES for before in range(max(0, place - 2), place))


def _joined(parts: Sequence[Part], place: int, text: str) -> bool:
    """Check whether a word follows the part before it at once, after a space or a hyphen."""
    if not 0 < place < len(parts) or parts[place].kind != "word":
        return False
    return text[parts[place - 1].end : parts[place].start].strip() in ("", "-", "‑")


class _InWords:
    """A number in words, read one word after the other: "two hundred and five", "half a million", "two-thirds"."""

    def __init__(self, words: dict[str, int]) -> None:
        self.words = words
        self.total, self.current, self.last = 0.0, 0.0, ""

    @property
    def value(self) -> float:
        return self.total + self.current

    def take(self, word: str, following: str) -> bool:
        """Take the next word; False if it does not belong to the number."""
        if word == "and":
            known = following in _EN or following in _TENS or following in _ORDINALS
            return known and self.last in ("hundred", "scale")
        if word in ("a", "an"):
            return not self.last and (following in _SCALES or following in _PARTS) and self._add(1, "units")
        if word in _TENS:
            return self.last in ("", "hundred", "scale") and self._add(_TENS[word], "tens")
        if word in _ORDINALS and self.last in ("tens", "hundred", "scale"):
            return self._add(_ORDINALS[word], "ordinal")
        if word in _SCALES and len(word) > 3 and self.last != "ordinal":
            return self._scale(_SCALES[word])
        value = _EN.get(word, self.words.get(word))
        if value is None:
            return False
        fits = self.last in ("", "hundred", "scale") or (self.last == "tens" and 0 < value < 10)
        return fits and self._add(value, "units")

    def _add(self, value: float, kind: str) -> bool:
        self.current, self.last = self.current + value, kind
        return True

    def _scale(self, scale: float) -> bool:
        self.current = (self.current or 1) * scale
        if scale < 1000:
            self.last = "hundred"
            return True
        self.total, self.current, self.last = self.total + self.current, 0.0, "scale"
        return True


def _words(parts: Sequence[Part], place: int, text: str, words: dict[str, int]) -> tuple[Mention | None, int]:
    """Read a number in words."""
    number, after, scaled = _InWords(words), place, False
    while after < len(parts) and (after == place or _joined(parts, after, text)):
        word = parts[after].folded
        if word in _PARTS and number.last in ("units", "tens") and (word != "third" or number.value == 1):
            more = (3.0,) if word == "third" else ()
            return Mention(parts[place].start, parts[after].end, _share(number.value, _PARTS[word]) + more), after + 1
        if not number.take(word, parts[after + 1].folded if after + 1 < len(parts) else ""):
            break
        scaled |= number.last in ("hundred", "scale")
        after += 1
    value, after, halved = _halved(parts, after, text, number.value if after > place else None)
    scaled |= halved
    if after == place:
        return _single(parts[place], place)
    dimensional = after < len(parts) and parts[after].folded == "dimensional"
    if value == 1 or dimensional:  # "one" is mostly no number
        return None, after
    rounded = scaled or _is_hedged(parts, place)
    return Mention(parts[place].start, parts[after - 1].end, (value,), rounded=rounded), after


def _halved(parts: Sequence[Part], place: int, text: str, value: float | None) -> tuple[float, int, bool]:
    """Read what makes a half of a number: "half a million"; after a value "and a half", also before a scale.

    Return the value, the place after it, and whether a scale was read.
    """
    half = ("half", "a") if value is None else ("and", "a", "half")
    after = place + len(half)
    if any(
        at >= len(parts) or parts[at].folded != word or (at > place and not _joined(parts, at, text))
        for at, word in enumerate(half, start=place)
    ):
        return value or 0.0, place, False
    whole = (value or 0.0) + 0.5
    scale = _SCALES.get(parts[after].folded) if after < len(parts) and len(parts[after].folded) > 3 else None
    if scale is not None and _joined(parts, after, text):
        return whole * scale, after + 1, True
    return (whole, after, False) if value is not None else (0.0, place, False)


def _single(part: Part, place: int) -> tuple[Mention | None, int]:
    """Read a word that is a number by itself."""
    word = part.folded
    if part.kind != "word":
        return None, place + 1
    if word in _NOON:
        return Mention(part.start, part.end, (12.0,), times=(_NOON[word],)), place + 1
    if word in _VAGUE:
        return Mention(part.start, part.end, (_SCALES.get(word[:-1], 0.0),), span=_VAGUE[word]), place + 1
    if word == "half":
        return Mention(part.start, part.end, (*_share(1, 2), 2.0)), place + 1
    if word in _ORDINALS and _ORDINALS[word] > 2:
        return Mention(part.start, part.end, (float(_ORDINALS[word]), *_share(1, _ORDINALS[word]))), place + 1
    return None, place + 1


def _share(number: float, of: float) -> tuple[float, ...]:
    """Return a fraction, also in per cent."""
    share = number / of
    return (round(share, 4), round(100 * share, 1), float(round(100 * share)), float(int(100 * share)))
