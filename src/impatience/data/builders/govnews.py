"""Posts from checkouts of GSA/digitalgov.gov and 18F/18f.gsa.gov: prose to title, deck and summary."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from impatience.data.builders._writing import SplitWriter, find_files, word_count
from impatience.errors import DataError

REPOSITORIES = {"GSA/digitalgov.gov": "content/news", "18F/18f.gsa.gov": "content/posts"}  # and the folder of the posts
SOURCE_CHARACTERS = 9000
FEWEST_WORDS = 120  # of a post
FIELDS = {"title": "title", "deck": "deck", "summary": "summary", "excerpt": "summary"}  # of the front matter; its rung

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FENCE = re.compile(r"^---\s*$", re.MULTILINE)
_MARKUP = (  # in the order in which they are replaced
    (re.compile(r"\{\{[<%].*?[%>]\}\}|\{%.*?%\}|<!--.*?-->", re.DOTALL), " "),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"<[^>]+>"), " "),
)
_LINES = (
    (re.compile(r"^[#>*+\-|\s]+", re.MULTILINE), ""),
    (re.compile(r"[*_`]{1,3}"), ""),
    (re.compile(r"\n\s*\n+"), "\n\n"),
    (re.compile(r"[ \t]+"), " "),
)


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``govnews.*`` from a folder that holds each of ``REPOSITORIES`` at ``owner/name``."""
    with SplitWriter(out, "govnews") as writer:
        for name, folder in REPOSITORIES.items():
            for file in find_files(checkout / name, f"{folder}/**/*.md", name):
                path = file.relative_to(checkout / name).as_posix()
                try:
                    for record in _records(file.read_text("utf-8", errors="replace"), path):
                        writer.write(record)
                except DataError as reason:
                    writer.drop(str(reason))
    return writer.counts()


def _records(page: str, path: str) -> Iterator[dict[str, Any]]:
    """Yield a record for each usable field of a post, or raise a DataError with the reason to drop the post."""
    key = hashlib.sha256(path.encode()).hexdigest()
    split = _split(int(key[:4], 16) % 100)
    parts = _FENCE.split(page, maxsplit=2)
    if len(parts) < 3:
        raise DataError("no front matter")
    try:
        head = yaml.load(parts[1], _LOADER)
    except (yaml.YAMLError, ValueError):
        raise DataError("bad front matter") from None
    if not isinstance(head, dict):
        raise DataError("bad front matter")
    source = _plain(parts[2])
    if word_count(source) < FEWEST_WORDS:
        raise DataError("post too short")
    for field, rung in FIELDS.items():
        target = _plain(str(head.get(field) or ""))
        if word_count(target) >= 3 and not target.lower().startswith("http"):
            meta = {"rung": rung, "licence": "CC0-1.0", "split": split}
            yield {"id": f"{key[:12]}-{rung}", "source": source[:SOURCE_CHARACTERS], "target": target, "meta": meta}


def _split(bucket: int) -> str:
    """Return the split of one of 100 buckets; the last six are kept back for a final check of what was claimed."""
    if bucket >= 94:
        raise DataError("kept back")
    return "train" if bucket < 84 else "validation" if bucket < 88 else "test"


def _plain(text: str) -> str:
    """Return a text without markup and short codes; lines and paragraphs stay."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = html.unescape(text)
    for pattern, replacement in _LINES:
        text = pattern.sub(replacement, text)
    return text.strip()
