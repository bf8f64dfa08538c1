"""The development set of SQuAD 1.1 from a checkout of rajpurkar/SQuAD-explorer (branch gh-pages).

That repository does not hold the data, but explorer pages that show every passage, question and answer.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from impatience.data._templates import answer_and_context
from impatience.data.builders._writing import SplitWriter, find_files, one_line, split_of, word_count

ORIGIN = "rajpurkar/SQuAD-explorer at e0c66cfe (branch gh-pages)"
_PASSAGE = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)
_QUESTION = re.compile(r'<strong class="question">(.*?)</strong>', re.DOTALL)
_ANSWER = re.compile(r'<span class="answer">(.*?)</span>', re.DOTALL)


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``squad_qg.*``, split by article so that no passage is in two splits.

    Of several answers the most frequent is used, and of equally frequent ones the shortest.
    """
    seen: set[str] = set()
    with SplitWriter(out, "squad_qg") as writer:
        for page in find_files(checkout, "explore/1.1/dev/**/*.html", ORIGIN):
            if page.name == "index.html":
                continue
            for record in _questions(page.read_text(encoding="utf-8"), page.stem):
                if record["id"] in seen or word_count(record["target"]) < 3 or not record["meta"]["answer"]:
                    writer.drop("duplicate, short or without answer")
                else:
                    seen.add(record["id"])
                    writer.write(record)
    return writer.counts()


def _questions(page: str, title: str) -> Iterator[dict[str, Any]]:
    split = split_of(title, buckets=48)
    for number, block in enumerate(page.split('<div class="para-wrap">')[1:]):
        passage = html.unescape(_first(_PASSAGE, block))
        for item in block.split('<div class="qa-wrap" data-id="')[1:]:
            answers = Counter(map(html.unescape, _ANSWER.findall(item)))
            best = max(answers, key=lambda answer: (answers[answer], -len(answer)), default="")
            yield {
                "id": item[: item.index('"')],
                "source": answer_and_context(best, passage.strip()),
                "target": one_line(html.unescape(_first(_QUESTION, item))),
                "meta": {
                    "title": title,
                    "paragraph": number,
                    "answer": best,
                    "answer_start": passage.find(best),
                    "answers": sorted(answers),
                    "split": split,
                    "licence": "CC-BY-SA-4.0",
                },
            }


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
