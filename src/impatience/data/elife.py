"""The eLife ladder: one article, texts by people at about 12, 26, 72, 150 and 346 words.

    rung          reads
    title         abstract
    impact        abstract
    assessment    abstract and introduction
    abstract      introduction
    digest        abstract and introduction

The few articles without an abstract are read by their introduction. ``meta["rung"]`` names the rung, and so does the
end of the id; ``elife:all`` gives every rung of every article.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from impatience.data._built import BuiltSet
from impatience.data.base import Example, make_example, pick

READS = {
    "title": ("abstract",),
    "impact": ("abstract",),
    "assessment": ("abstract", "introduction"),
    "abstract": ("introduction",),
    "digest": ("abstract", "introduction"),
}


class Elife(BuiltSet):
    """A set of which each record holds several targets."""

    def _examples(self, row: dict[str, Any], part: str, where: str) -> Iterator[Example]:
        article, introduction, targets, meta = (pick(row, name, where) for name in ("id", "source", "targets", "meta"))
        texts = {"introduction": introduction, "abstract": targets.get("abstract")}
        for rung, reads in READS.items():
            if rung in targets and part in (rung, "all"):
                source = " ".join(texts[name] for name in reads if texts[name]) or introduction
                yield make_example(f"{article}-{rung}", source, targets[rung], meta | {"rung": rung}, where)


DATASET = Elife(
    name="elife",
    stem="elife_ladder",
    summary="Research article to title, impact statement, assessment, abstract or digest: 12 to 346 words",
    licence="CC-BY-4.0, CC-BY-3.0 or CC0-1.0, by article",
    parts=(*READS, "all"),
    part_key="rung",
)
