"""The strategy that asks an instruct model for a length, and may hold it to that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impatience.data import MOST
from impatience.errors import OptionError
from impatience.lengths import Unit
from impatience.strategies import STRATEGIES
from support.generators import generator, requests, strategy


@pytest.mark.parametrize(
    ("within", "asked"),
    [((1, 9), "at most 9"), ((7, MOST), "at least 7"), ((6, 9), "from 6 to 9"), (None, "exactly 8")],
)
def test_the_prompt_names_what_is_on_target(within: tuple[int, int] | None, asked: str) -> None:
    (request,) = requests(Unit.WORDS, (8,))
    told = STRATEGIES["prompted"]().instruction(generator("llama"), replace(request, within=within))
    assert told == f"Write {asked} words, and nothing but the text itself."


def test_a_prompted_text_can_be_held_to_its_target() -> None:
    own = generator("llama")
    asked = [replace(request, within=(1, 9)) for request in requests(Unit.WORDS, (1, 2))]
    ways = ("nothing", "truncate", "forced_eos")
    free, cut, forced = (strategy("prompted", then=then).write(own, asked) for then in ways)
    for request, whole, short, exact in zip(asked, free, cut, forced, strict=True):
        assert whole.text.startswith(short.text)
        assert short.length == min(whole.length, request.target)
        assert exact.length == request.target
    assert any(result.length > request.target for result, request in zip(free, asked, strict=True))
    with pytest.raises(OptionError, match="then='stop': give one of nothing, truncate, forced_eos"):
        STRATEGIES["prompted"](then="stop")
