"""Results as a generator builds them: judged by their texts."""

from __future__ import annotations

from typing import Any

from impatience import Result, Unit
from impatience.judging import judge


def judged(
    text: str,
    length: int,
    target: int,
    unit: Unit = Unit.WORDS,
    *,
    ended: bool = True,
    title: bool = False,
    **facts: Any,
) -> Result:
    """A text that the model ended itself or a limit cut, and how it landed unless ``landed`` says so."""
    on_target = ended and length == target
    finished, looping, landed = judge(text, own_end=ended, ended=ended, on_target=on_target, title=title)
    values = {"landed": landed, "eos_probability": 0.5, "finished": finished, "looping": looping, "own_end": ended}
    return Result(length=length, target=target, unit=unit, text=text, ended=ended, **(values | facts))
