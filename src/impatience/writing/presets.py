"""Presets: the lengths of texts that people often need, for the command line and the page."""

from __future__ import annotations

from dataclasses import dataclass

from impatience.errors import OptionError
from impatience.lengths import Landing, Unit
from impatience.registry import nearest


@dataclass(frozen=True)
class Preset:
    """The length of a kind of text, how it ends, and the task that asks for it."""

    length: int
    unit: Unit
    landing: Landing
    task: str  # name in ``TASKS``

    def __str__(self) -> str:
        """Return the length in words, e.g. "160 characters at most"."""
        return f"{self.length} {self.unit}{' at most' if self.landing is Landing.AT_MOST else ''}"


PRESETS = {
    "meta-description": Preset(160, Unit.CHARACTERS, Landing.AT_MOST, "description"),
    "post": Preset(280, Unit.CHARACTERS, Landing.AT_MOST, "post"),
    "abstract": Preset(250, Unit.WORDS, Landing.NATURAL, "abstract"),
    "title": Preset(10, Unit.WORDS, Landing.NATURAL, "title"),
}


def find_preset(name: str) -> Preset:
    """Return a preset by its name."""
    if name not in PRESETS:
        raise OptionError(f"There is no preset {name!r}.{nearest(name, PRESETS)} There are: {', '.join(PRESETS)}.")
    return PRESETS[name]
