"""Options of ``write`` and ``batch`` that say how long a text is, and how it ends."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from impatience.errors import OptionError
from impatience.lengths import Length, Unit, parse_length

Asked = tuple[Length, Unit] | float  # a length or range, or a share of the source's length

_UNITS = {
    "--words": Unit.WORDS,
    "--chars": Unit.CHARACTERS,
    "--sentences": Unit.SENTENCES,
    "--tokens": Unit.TOKENS,
}

Words = Annotated[
    str | None,
    Option(metavar="N", help="Length in words; 20,60 writes a text of each length, 120-160 one inside the range."),
]
Chars = Annotated[str | None, Option(metavar="N", help="Length in characters.")]
Sentences = Annotated[str | None, Option(metavar="N", help="Length in sentences.")]
Tokens = Annotated[str | None, Option(metavar="N", help="Length in tokens of the model.")]
Ratio = Annotated[str | None, Option(metavar="R", help="Length as a share of the source's length, e.g. 0.2.")]
Natural = Annotated[bool, Option("--natural", help="Let the model end by itself; the default.")]
Exact = Annotated[bool, Option("--exact", help="Force the text to end exactly at the length.")]
AtMost = Annotated[bool, Option("--at-most", help="Never exceed the length.")]


def parse_lengths(*values: str | None) -> list[Asked]:
    """Return the lengths asked for."""
    names = [*_UNITS, "--ratio"]
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if len(given) != 1:
        raise OptionError(f"Give the length once, with one of {', '.join(names)}; got {', '.join(given) or 'none'}.")
    ((name, text),) = given.items()
    if name == "--ratio":
        return [_ratio(part) for part in text.split(",")]
    return [(length, _UNITS[name]) for length in _lengths(text, name)]


def _lengths(text: str, option: str) -> list[Length]:
    lengths = [parse_length(part) for part in text.split(",")]
    for length in lengths:
        first, last = length if isinstance(length, tuple) else (length, length)
        if not isinstance(first, int) or not 1 <= first <= last:
            raise OptionError(
                f"{option} {text}: give whole numbers of at least 1, separated by commas, or a range, e.g. 120-160."
            )
    return lengths


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise OptionError(f"--ratio {text}: give a share of the source's length, above 0 and at most 10, e.g. 0.2.")
    return value


def chosen_landing(natural: bool, exact: bool, at_most: bool) -> str:
    """Return the landing whose option is given, or else the natural one."""
    chosen = [name for name, on in (("natural", natural), ("exact", exact), ("at_most", at_most)) if on]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join('--' + name.replace('_', '-') for name in chosen)}: choose one.")
    return chosen[0] if chosen else "natural"
