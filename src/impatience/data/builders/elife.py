"""The eLife ladder from a checkout of elifesciences/elife-article-xml: one record for each article."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from impatience.data.builders._jats import FORMULA, Article, read_article
from impatience.data.builders._writing import SplitWriter, find_files, normalized, one_line, split_of, word_count

ORIGIN = "elifesciences/elife-article-xml at 72034a54"
SOURCE_WORDS = 700
_FILE = re.compile(r"(articles/elife|preprints/elife-preprint)-(\d+)-v(\d+)\.xml")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9‘“\"(])")
_ADMINISTRATIVE = re.compile(
    r"(Funding|Funded by|Clinical trial|Trial registration|Registration|ClinicalTrials|DOI:|"
    r"This (work|study|research) was (funded|supported)|The (work|study) was (funded|supported)|"
    r"Editorial note|\[Editors)",
    re.IGNORECASE,
)
_EMPTY_BRACKETS = re.compile(
    r"\s*\((?:for (?:a |an |recent )?(?:review|reviews|example)|reviewed (?:in|by)|see(?: also)?|e\.g\.?|i\.e\.?|and|"
    r"or|but see|and references therein|[,;.\s])*[\s,;.]*\)"
)


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``elife_ladder.*`` from the latest version of every article, or of its preprint."""
    with SplitWriter(out, "elife_ladder") as writer:
        ladder = _Ladder(writer)
        for number, file in _latest(checkout):
            try:
                article = read_article(file)
            except ParseError:
                writer.drop("not XML")
                continue
            if article and article.kind in ("research-article", "review-article"):
                ladder.add(number, file.relative_to(checkout).as_posix(), article)
    return writer.counts()


def _latest(checkout: Path) -> list[tuple[str, Path]]:
    """Return number and file of the latest version of every article; published versions before preprints."""
    best: dict[int, tuple[bool, int, str, Path]] = {}
    for file in find_files(checkout, "*/elife-*.xml", ORIGIN):
        if match := _FILE.fullmatch(file.relative_to(checkout).as_posix()):
            version = (match[1] == "articles/elife", int(match[3]), match[2], file)
            best[int(match[2])] = max(version, best.get(int(match[2]), version))
    files = [best[number][2:] for number in sorted(best)]
    # Two processes took turns to make the published sets; of two equal texts the first in this order stays.
    return files[::2] + files[1::2]


class _Ladder:
    """Collects the usable rungs of each article."""

    def __init__(self, writer: SplitWriter) -> None:
        self.writer = writer
        self.seen: set[tuple[str, str]] = set()

    def add(self, number: str, path: str, article: Article) -> None:
        """Write the record of an article with an introduction and at least two rungs besides its title."""
        if not article.abstract or not article.licences:
            self.writer.drop("no abstract or licence")
            return
        abstract = _without_administration(_tidy(article.abstract))
        introduction = _opening_and_close(article.introduction, SOURCE_WORDS)
        room = SOURCE_WORDS - word_count(abstract)
        both = (
            f"{abstract} {_opening_and_close(article.introduction, room)}"
            if room > 0
            else _clip([abstract], SOURCE_WORDS)
        )
        # Each rung: source (only for the checks), text, fewest and most words, fewest words of the source.
        rungs = {
            "impact": (abstract, article.impact.strip(), 5, 60, 60),
            "assessment": (both, _without_notes(article.assessment), 20, 260, 60),
            "abstract": (introduction, _without_administration(one_line(" ".join(article.abstract))), 40, 400, 150),
            "digest": (both, one_line(" ".join(article.digest)), 100, 650, 60),
        }
        targets = {name: rung[1] for name, rung in rungs.items() if rung[1] and self._is_usable(name, *rung)}
        if word_count(introduction) < 150 or len(targets) < 2:
            self.writer.drop("short introduction or under two rungs")
            return
        title = article.title.replace(FORMULA, "")
        meta = _meta(article) | {"title": title, "split": split_of(f"elife-{number}"), "file": path}
        self.writer.write({"id": number, "source": introduction, "targets": targets | {"title": title}, "meta": meta})

    def _is_usable(self, rung: str, source: str, target: str, fewest: int, most: int, fewest_source: int) -> bool:
        key = (rung, normalized(target))
        if FORMULA in target:
            reason = "formula"
        elif not fewest <= word_count(target) <= most:
            reason = "length"
        elif word_count(source) < fewest_source:
            reason = "source too short"
        elif not re.search(r"[a-z0-9%.!?”’\")]$", target):
            reason = "unfinished"
        elif key in self.seen:
            reason = "duplicate"
        else:
            self.seen.add(key)
            reason = "copied from source" if key[1] in normalized(source) else ""
        if reason:
            self.writer.drop(f"{rung}: {reason}")
        return not reason


def _meta(article: Article) -> dict[str, Any]:
    licence = article.licences[0]
    name = "CC0-1.0" if "zero" in licence else "CC-BY-" + licence.rstrip("/").split("/")[-1]
    return {"doi": article.doi, "year": article.year, "subjects": article.subjects, "licence": name}


def _without_notes(paragraphs: list[str]) -> str:
    texts = [text for text in paragraphs if not re.match(r"\[?Editors?['’]? note", text)]
    return re.sub(r"\s*\[Editors['’]? note:.*?\]\s*", " ", one_line(" ".join(texts))).strip()


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if sentence]


def _tidy(paragraphs: list[str]) -> str:
    """Join paragraphs, without formulas and empty brackets of citations."""
    text = _EMPTY_BRACKETS.sub("", " ".join(paragraphs).replace(FORMULA, ""))
    return one_line(re.sub(r"\s+([,.;:)])", r"\1", text))


def _without_administration(text: str) -> str:
    return " ".join(sentence for sentence in _sentences(text) if not _ADMINISTRATIVE.match(sentence))


def _clip(paragraphs: list[str], words: int) -> str:
    """Return the first whole sentences of a text, within a number of words."""
    chosen: list[str] = []
    for sentence in _sentences(_tidy(paragraphs)):
        words -= word_count(sentence)
        if words < 0:
            break
        chosen.append(sentence)
    return " ".join(chosen)


def _opening_and_close(paragraphs: list[str], words: int) -> str:
    """Return an introduction within a number of words: its opening, then its last paragraph, with the findings."""
    if len(paragraphs) < 2 or word_count(_tidy(paragraphs)) <= words:
        return _clip(paragraphs, words)
    close = _clip(paragraphs[-1:], words // 2)
    return f"{_clip(paragraphs[:-1], words - word_count(close))} {close}".strip()
