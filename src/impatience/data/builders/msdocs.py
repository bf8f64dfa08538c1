"""Documentation pages from checkouts of dotnet/docs and MicrosoftDocs/sql-docs: prose to the page's description."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from impatience.data.builders._writing import SplitWriter, find_files, normalized, one_line, split_of, word_count
from impatience.errors import DataError

REPOSITORIES = {"dotnet/docs": "b7779bff", "MicrosoftDocs/sql-docs": "5937893c"}
SOURCE_WORDS = 500
INCLUDE = "\x03"  # replaces an include of another file

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SKIPPED = re.compile(
    r"/(includes|media|toc|samples|release-notes|whats-new)/|/(TOC|toc|index|README|readme)\.md$|managed-reference/",
    re.IGNORECASE,
)
_PAGE = re.compile(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*\r?\n(.*)", re.DOTALL)
_NOT_PROSE = re.compile(
    r"(#|\||:::|\[!(INCLUDE|VIDEO|code)|!\[|---|===|\*\*\*|\[[^\]]+\]:|> *\[!|"
    r"<(table|tr|td|th|img|a |br|details|summary|/))",
    re.IGNORECASE,
)
_MARKUP: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),
    (re.compile(r"\[!INCLUDE\s*(\[[^\]]*\])?\s*\([^)]*\)\]?", re.IGNORECASE), INCLUDE),
    (re.compile(r"\[([^\]]*)\]\((?:[^()]|\([^)]*\))*\)"), r"\1"),
    (re.compile(r"\[([^\]]*)\]\[[^\]]*\]"), r"\1"),
    (re.compile(r"<xref:([^>?]+)[^>]*>"), lambda match: _member(match[1])),
    (re.compile(r"<https?://[^>]+>|https?://\S+"), " "),
    (re.compile(r"<[^>]{1,200}>"), " "),
    (re.compile(r"(\*\*|__|`+)(.+?)\1"), r"\2"),
    (re.compile(r"(?<![\w*])[*_](?!\s)([^*_\n]+?)[*_](?![\w*])"), r"\1"),
]
_STOCK = re.compile(r"(Applies to|APPLIES TO|Feedback|Next steps|See also)")


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``msdocs.*`` from a folder that holds each of ``REPOSITORIES`` at ``owner/name``."""
    seen: set[tuple[str, str]] = set()
    with SplitWriter(out, "msdocs") as writer:
        for name, commit in REPOSITORIES.items():
            for file in find_files(checkout / name, "**/*.md", f"{name} at {commit}"):
                path = file.relative_to(checkout / name).as_posix()
                if _SKIPPED.search("/" + path):
                    continue
                try:
                    writer.write(_record(file.read_bytes().decode("utf-8-sig", "replace"), name, path, seen))
                except DataError as reason:
                    writer.drop(str(reason))
    return writer.counts()


def _record(page: str, repository: str, path: str, seen: set[tuple[str, str]]) -> dict[str, Any]:
    """Return the record of a page, or raise a DataError with the reason to drop it."""
    if not (match := _PAGE.match(page)):
        raise DataError("no front matter")
    try:
        head = yaml.load(match[1], _LOADER)
    except (yaml.YAMLError, ValueError):
        raise DataError("bad front matter") from None
    if not isinstance(head, dict) or not head.get("description"):
        raise DataError("no description")
    title = one_line(str(head.get("title", "")))
    description = _description(head["description"], title)
    source = _prose(match[2].replace("\r\n", "\n"))
    target, beginning = normalized(description), normalized(source)[:400]
    if ("target", target) in seen:
        raise DataError("duplicate description")
    if ("source", beginning) in seen:
        raise DataError("duplicate body")
    if target in normalized(source):
        raise DataError("description copied from body")
    seen |= {("target", target), ("source", beginning)}
    meta = {"title": title, "repo": repository, "licence": "CC-BY-4.0", "split": split_of(repository + path)}
    return {"id": f"{repository}:{path}", "source": source, "target": description, "meta": meta}


def _description(given: object, title: str) -> str:
    text = one_line(str(given)).strip('"').strip()
    text = re.sub(r"^(Learn more about:|Describes?:)\s*", "", text)
    if not 6 <= word_count(text) <= 80:
        raise DataError("description length")
    if re.search(r"[<>{}|]|\]\(|&[a-z]+;|`", text):
        raise DataError("markup in description")
    if not text.endswith((".", "!", "?")):
        if text.endswith(("…", ",")):
            raise DataError("description unfinished")
        text += "."
    heading = normalized(title.split("|")[0])
    if heading and normalized(text) == heading:
        raise DataError("description is the title")
    return text


def _prose(markdown: str) -> str:
    """Return the first whole paragraphs of a page, within ``SOURCE_WORDS``."""
    paragraphs = _paragraphs(markdown)
    if sum(paragraph.count(INCLUDE) for paragraph in paragraphs) > 3:
        raise DataError("includes in text")
    chosen: list[str] = []
    words = 0
    for paragraph in (paragraph.replace(INCLUDE, "") for paragraph in paragraphs):
        if words + word_count(paragraph) > SOURCE_WORDS:
            break
        chosen.append(paragraph)
        words += word_count(paragraph)
    if words < 80:
        raise DataError("body too short")
    return re.sub(r"\s+", " ", " ".join(chosen))


def _paragraphs(markdown: str) -> list[str]:
    """Return the paragraphs of a page, without headings, tables, code, pictures and markup."""
    markdown = re.sub(r"<!--.*?-->", " ", markdown, flags=re.DOTALL)
    markdown = re.sub(r"^([ \t]*)(```|~~~).*?^[ \t]*\2[ \t]*$", "\n", markdown, flags=re.DOTALL | re.MULTILINE)
    text = "\n".join(line for raw in markdown.splitlines() if (line := _line(raw.strip())) is not None)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = html.unescape(text).replace("\\", "")
    paragraphs = map(one_line, re.split(r"\n\s*\n", text))
    return [
        paragraph
        for paragraph in paragraphs
        if word_count(paragraph) >= 4 and not paragraph.startswith("{") and not _STOCK.match(paragraph)
    ]


def _line(line: str) -> str | None:
    """Return the prose of a line, nothing where a paragraph ends, or None to skip the line."""
    if not line or line.startswith("#"):
        return ""
    if _NOT_PROSE.match(line):
        return None
    return re.sub(r"^([-*+]|\d+[.)])\s+", "", re.sub(r"^>+\s*", "", line))


def _member(reference: str) -> str:
    """Return the name that a cross reference points to, without namespace and arguments."""
    return reference.split(".")[-1].replace("%2A", "").replace("*", "").split("(")[0]
