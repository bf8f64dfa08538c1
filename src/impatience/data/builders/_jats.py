"""Reading eLife articles in JATS XML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.entities import name2codepoint
from pathlib import Path
from xml.etree.ElementTree import Element, XMLParser, parse

FORMULA = "\x03"  # replaces a formula that is not plain text
_OPEN, _CLOSE = "\x01", "\x02"

_LINK = "{http://www.w3.org/1999/xlink}href"
_FIGURES = {"fig", "fig-group", "graphic", "label", "media", "object-id", "supplementary-material"}
_NOT_PROSE = {"code", "disp-formula", "disp-quote", "fn", "list-item-label", "preformat"}
_DROPPED = _FIGURES | _NOT_PROSE | {"boxed-text", "table", "table-wrap"}
_PLAIN_FORMULA = re.compile(r"[\w.,+\-−=<>≤≥×%°±µμαβγδ ]{1,12}")
_CITATION = re.compile(rf"\s*[(\[][^()\[\]]*{_OPEN}[^()\[\]]*[)\]]")


@dataclass
class Article:
    """One article; its longer texts are lists of paragraphs."""

    kind: str | None = None  # type in JATS, e.g. "research-article"
    doi: str | None = None
    year: str | None = None
    title: str = ""
    subjects: list[str] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)  # links to its licences, sorted
    impact: str = ""
    abstract: list[str] = field(default_factory=list)
    digest: list[str] = field(default_factory=list)
    assessment: list[str] = field(default_factory=list)
    introduction: list[str] = field(default_factory=list)


def read_article(file: Path) -> Article | None:
    """Return the article in a file, or None if the file describes none."""
    parser = XMLParser()
    parser.entity.update({name: chr(point) for name, point in name2codepoint.items()})
    root = parse(file, parser).getroot()
    front = root.find("front/article-meta")
    if front is None:
        return None
    article = Article(kind=root.get("article-type"), title=_clean(front.find("title-group/article-title")))
    dois = [item.text for item in front.findall("article-id[@pub-id-type='doi']") if not item.get("specific-use")]
    article.doi = dois[0] if dois else None
    article.year = front.findtext("pub-date/year")
    headings = front.findall("article-categories/subj-group[@subj-group-type='heading']/subject")
    article.subjects = ["".join(heading.itertext()) for heading in headings]
    article.licences = sorted({item.get(_LINK) or "" for item in front.findall("permissions/license")})
    for abstract in front.findall("abstract"):
        kind = abstract.get("abstract-type")
        if kind is None:
            article.abstract = list(_paragraphs(abstract))
        elif kind in ("executive-summary", "plain-language-summary"):
            article.digest = list(_paragraphs(abstract))
    for item in front.findall("custom-meta-group/custom-meta"):
        value = item.find("meta-value")
        if value is not None and (item.findtext("meta-name") or "").strip().lower() == "author impact statement":
            article.impact = _clean(value)
    for part in [*root.findall("sub-article"), *root.findall("response")]:
        body = part.find("body")
        if part.get("article-type") == "editor-report" and body is not None:
            article.assessment = list(_paragraphs(body))
    article.introduction = next((list(_paragraphs(part)) for part in root.findall("body/sec") if _is_intro(part)), [])
    return article


def _is_intro(section: Element) -> bool:
    return (section.get("sec-type") or "").startswith("intro") or _clean(section.find("title")).lower().startswith(
        "introduction"
    )


def _paragraphs(node: Element) -> Iterator[str]:
    """Yield the outermost paragraphs below a node, without those in figures, tables and boxes."""
    for child in node:
        if child.tag == "p":
            text = _clean(child)
            if text and not re.match(r"DOI:\s*http", text):
                yield text
        elif child.tag not in _DROPPED:
            yield from _paragraphs(child)


def _clean(element: Element | None) -> str:
    """Return the text of an element on one line, without citations in brackets."""
    if element is None:
        return ""
    text = "".join(_pieces(element))
    for _ in range(3):
        text = _CITATION.sub("", text)
    text = text.replace(_OPEN, "").replace(_CLOSE, "")
    return re.sub(r"\s+([,.;:])", r"\1", re.sub(r"\s+", " ", text).strip())


def _pieces(element: Element) -> Iterator[str]:
    """Yield the text inside an element, citations marked and formulas replaced."""
    yield element.text or ""
    for child in element:
        tag = child.tag.split("}")[-1]
        if tag == "xref":
            yield from (_OPEN, *child.itertext(), _CLOSE)
        elif tag in ("inline-formula", "math", "tex-math"):
            formula = "".join(child.itertext()).strip()
            yield formula if _PLAIN_FORMULA.fullmatch(formula) else FORMULA
        elif tag not in _DROPPED:
            yield from _pieces(child)
            if tag == "break":
                yield " "
        yield child.tail or ""
