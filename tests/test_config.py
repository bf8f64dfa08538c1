"""Options: plain values become dataclasses, and a value that does not fit is refused in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from impatience.config import accepted, build, option
from impatience.errors import OptionError


@dataclass(frozen=True)
class Inner:
    rank: int = option(1, "rank")


@dataclass(frozen=True)
class Options:
    name: str
    steps: int | None = option(None, "steps")
    rate: float = option(1.0, "rate")
    share: Annotated[float, Field(ge=0, le=1)] = option(0.5, "share")
    fast: bool = option(False, "fast")
    kind: Literal["a", "b"] = option("a", "kind")
    names: str | tuple[str, ...] = option((), "names")
    pair: tuple[float, float] = option((0.0, 1.0), "pair")
    inner: Inner | None = option(None, "inner")
    rest: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "x":
            raise OptionError("name: choose another.")


def test_plain_values_are_built_into_nested_dataclasses() -> None:
    rest = {"layers": [1, 2], "deep": {"x": None}}
    content = {"name": "n", "steps": 3, "names": ["u", "v"], "pair": [1, 2], "inner": {"rank": 4}, "rest": rest}
    assert build(Options, content, "here") == Options(
        "n", 3, names=("u", "v"), pair=(1.0, 2.0), inner=Inner(4), rest=rest
    )
    assert build(Options, {"name": "n"}, "here") == Options("n")


@pytest.mark.parametrize("value", ["1e-5", 1e-5])
def test_a_number_may_be_text_as_yaml_reads_it(value: object) -> None:
    assert build(Options, {"name": "n", "rate": value, "pair": [value, 1]}, "here").rate == 1e-5


BAD = {
    "unknown": ({"naem": "n"}, "here: 'naem' is not known. Did you mean 'name'? Known: name, steps,"),
    "unknown inside": ({"name": "n", "inner": {"rnk": 1}}, "here: inner: 'rnk' is not known. Did you mean 'rank'?"),
    "missing": ({}, "here: name is missing: give text."),
    "text for a number": (
        {"name": "n", "steps": "abc"},
        "here: steps: 'abc' is not accepted; give a whole number, or leave it out.",
    ),
    "digits for a number": ({"name": "n", "steps": "3"}, "here: steps: '3' is not accepted; give a whole number"),
    "a fraction": ({"name": "n", "steps": 3.0}, "here: steps: 3.0 is not accepted; give a whole number"),
    "true for a whole number": ({"name": "n", "steps": True}, "here: steps: True is not accepted"),
    "true for a number": (
        {"name": "n", "rate": True, "share": "0.1"},
        "here: rate: True is not accepted; give a number.",
    ),
    "word for a number": ({"name": "n", "rate": "fast"}, "here: rate: 'fast' is not accepted; give a number."),
    "not a number": ({"name": "n", "rate": math.nan}, "here: rate: nan is not accepted; it must be a finite number."),
    "out of bounds": (
        {"name": "n", "share": 2},
        "here: share: 2 is not accepted; it must be less than or equal to 1.",
    ),
    "out of bounds as text": (
        {"name": "n", "share": "2e0"},
        "here: share: '2e0' is not accepted; it must be less than",
    ),
    "number for true": ({"name": "n", "fast": 1}, "here: fast: 1 is not accepted; give true or false."),
    "number for text": ({"name": 7}, "here: name: 7 is not accepted; give text."),
    "unknown word": ({"name": "n", "kind": "c"}, "here: kind: 'c' is not accepted; give `a` or `b`."),
    "number in a list": (
        {"name": "n", "names": ["u", 1]},
        "here: names: ['u', 1] is not accepted; give text or a list of text.",
    ),
    "short pair": ({"name": "n", "pair": [1]}, "here: pair: [1] is not accepted; give 2 numbers."),
    "value for a mapping": (
        {"name": "n", "inner": 7},
        "here: inner: 7 is not accepted; give a mapping with rank, or leave it out.",
    ),
    "no mapping": ([1], "here: [1] is not accepted; give a mapping with name, steps,"),
    "own check": ({"name": "x"}, "here: name: choose another."),
}


@pytest.mark.parametrize("case", BAD)
def test_a_value_that_does_not_fit_is_refused(case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(OptionError) as caught:
        build(Options, content, "here")
    assert str(caught.value).startswith(message)


def test_accepted_values_are_named_in_words() -> None:
    assert accepted(int | None) == "a whole number or null"
    assert accepted(tuple[int, ...]) == "a list of whole numbers"
