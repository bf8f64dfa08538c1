"""Posts on how the US government builds its web sites, each to its title, deck and summary.

``meta["rung"]`` and the end of the id name the rung; ``govnews:all`` gives every rung of every post.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from impatience.data._built import BuiltSet
from impatience.data.base import Example

RUNGS = ("title", "deck", "summary")


class GovNews(BuiltSet):
    """A set with a record for each rung of a post."""

    def _examples(self, row: dict[str, Any], part: str, where: str) -> Iterator[Example]:
        for example in super()._examples(row, part, where):
            if part in ("all", example.meta.get("rung")):
                yield example


DATASET = GovNews(
    name="govnews",
    summary="Post on digital services of the US government to its title, deck or summary: 8 to 48 words",
    licence="CC0-1.0",
    parts=(*RUNGS, "all"),
    part_key="rung",
)
