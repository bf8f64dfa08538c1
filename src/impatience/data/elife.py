"""The eLife ladder: five texts by people for each article, of about 12, 26, 72, 150 and 346 words.

    rung          reads
    title         abstract
    impact        abstract
    assessment    abstract and introduction
    abstract      introduction
    digest        abstract and introduction

For the few articles without an abstract, the introduction is read instead. ``meta["rung"]`` and the end of the id
name the rung; ``elife:all`` gives every rung of every article.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from impatience.data._built import BuiltSet
from impatience.data.base import Example, get_column, make_example

READS = {
    "title": ("abstract",),
    "impact": ("abstract",),
    "assessment": ("abstract", "introduction"),
    "abstract": ("introduction",),
    "digest": ("abstract", "introduction"),
}


class Elife(BuiltSet):
    """A set with several targets in each record."""

    def _examples(self, row: dict[str, Any], part: str, where: str) -> Iterator[Example]:
        article, introduction, targets, meta = (get_column(row, k, where) for k in ("id", "source", "targets", "meta"))
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
