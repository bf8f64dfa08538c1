"""Reads times of day in words: "half past seven", "quarter to eight", "7 in the evening"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impatience.grounding.numbers import Mention, Part

_BEFORE_HOUR = ("past", "to", "after")
_HALVES = {"morning": 0, "afternoon": 12, "evening": 12}


def spoken_time(parts: Sequence[Part], place: int, units: Mapping[str, int]) -> tuple[Mention, int] | None:
    """Return the time of day that begins at a part, and the place after it; None if there is none."""
    words = [part.folded for part in parts[place : place + 6]]
    offset, at = _minutes(words, units)
    hour = _number(words[at], units) if at < len(words) else None
    if hour is None or not 1 <= hour <= 12 or any(part.suffix for part in parts[place : place + at + 1]):
        return None
    half = _HALVES.get(words[at + 3]) if words[at + 1 : at + 3] == ["in", "the"] and len(words) > at + 3 else None
    if not at and half is None:
        return None
    hours = [hour % 12 + half] if half is not None else [hour, hour + 12]
    times = tuple((60 * one + offset) % 1440 for one in hours)
    after = place + at + 1
    return Mention(parts[place].start, parts[after - 1].end, () if at else (float(hour),), times=times), after


def _minutes(words: Sequence[str], units: Mapping[str, int]) -> tuple[int, int]:
    """Return the minutes that "half past" or "ten to" add to an hour, and how many words they are."""
    known = {"half": 30, "quarter": 15, "twenty": 20, **{word: units[word] for word in ("five", "ten")}}
    if len(words) > 2 and words[0] in known and words[1] in _BEFORE_HOUR:
        before = words[1] == "to"
        if words[0] in ("half", "quarter") or words[1] == "past":  # "ten to twelve" people are no time
            return (-1 if before else 1) * known[words[0]], 2
    return 0, 0


def _number(word: str, units: Mapping[str, int]) -> int | None:
    return int(word) if word.isascii() and word.isdigit() else units.get(word)
