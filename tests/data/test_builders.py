"""Builders: the records that each one makes from a checkout."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from impatience.data import DATASETS, load
from impatience.data._built import BuiltSet
from impatience.data.builders import BUILDERS, SPLITS, SplitWriter, split_of
from impatience.errors import DataError

STEMS = {"elife": "elife_ladder"}


def put(folder: Path, name: str, content: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def records(out: Path, name: str) -> list[dict[str, Any]]:
    rows = []
    for split in SPLITS:
        with lzma.open(out / f"{STEMS.get(name, name)}.{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines]
        assert {row["meta"]["split"] for row in found} <= {split}
        rows += found
    return rows


def words(count: int, word: str = "word") -> str:
    """A text of sentences of ten words, each of its own."""
    return " ".join(f"{'W' if i % 10 == 0 else 'w'}{word}{i}{'.' if i % 10 == 9 else ''}" for i in range(count))


def test_every_set_that_needs_building_has_a_builder() -> None:
    built = {
        name for name, dataset in DATASETS.items() if isinstance(dataset, BuiltSet) or getattr(dataset, "benchmark", 0)
    }
    assert set(BUILDERS) == built >= {"elife", "fairytale_qg", "xsum", "compression", "lifebench_lite"}


@pytest.mark.parametrize("name", BUILDERS)
def test_folder_that_is_no_checkout_is_refused_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    put(tmp_path, "checkout/README.txt", "nothing here")
    put(tmp_path, f"out/{name}.train.jsonl.xz", "an older file")
    with pytest.raises(DataError, match="is not a checkout of"):
        BUILDERS[name](tmp_path / "checkout", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == [f"{name}.train.jsonl.xz"]


def test_splits_do_not_change() -> None:
    assert [split_of(name) for name in ("elife-00012", "elife-00049", "elife-00003")] == ["validation", "test", "train"]
    assert split_of("Immune_system", 48) == "test"


def test_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    def fill(count: int, fail: bool) -> dict[str, int]:
        with SplitWriter(tmp_path / "new", "x") as writer:
            for number in range(count):
                writer.write({"id": str(number), "meta": {"split": "train"}})
            writer.drop("short")
            if fail:
                raise RuntimeError("stopped")
        return writer.counts()

    with pytest.raises(RuntimeError, match="stopped"):
        fill(3, fail=True)
    assert list((tmp_path / "new").iterdir()) == []
    assert fill(2, fail=False) == {"train": 2, "validation": 0, "test": 0, "dropped: short": 1}
    before = {file: file.read_bytes() for file in (tmp_path / "new").iterdir()}
    assert sorted(file.name for file in before) == sorted(f"x.{split}.jsonl.xz" for split in SPLITS)
    with pytest.raises(RuntimeError, match="stopped"):
        fill(9, fail=True)
    with pytest.raises(DataError, match="no usable record"):
        fill(0, fail=False)
    assert {file: file.read_bytes() for file in (tmp_path / "new").iterdir()} == before


def test_scitldr_has_a_record_for_each_reference(tmp_path: Path) -> None:
    papers = {
        "train": [
            {"paper_id": "p", "title": "T", "source": ["One. ", " Two."], "target": [" a  short\ntext here", "no"]}
        ],
        "dev": [{"paper_id": "q", "source": ["One. Two."], "target": ["A short text here", "another short text here"]}],
        "test": [{"paper_id": "r", "source": ["Three."], "target": ["a short text here"]}],
    }
    for name, lines in papers.items():
        put(tmp_path, f"SciTLDR-Data/SciTLDR-A/{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    counts = BUILDERS["scitldr"](tmp_path, tmp_path / "out")
    assert counts == {"train": 1, "validation": 1, "test": 1, "dropped: duplicate": 1, "dropped: short": 1}
    first, second, third = records(tmp_path / "out", "scitldr")
    meta = {"title": "T", "reference": 0, "split": "train", "licence": "Apache-2.0"}
    assert first == {"id": "p-0", "source": "One. Two.", "target": "a short text here", "meta": meta}
    assert (second["id"], second["meta"]["reference"]) == ("q-1", 1)
    assert load("scitldr", "test", data_dir=tmp_path / "out")[0].target == third["target"]


def test_squad_qg_is_read_from_explorer_pages(tmp_path: Path) -> None:
    def question(name: str, text: str, *answers: str) -> str:
        spans = "".join(f'<li><span class="answer">{answer}</span></li>' for answer in answers)
        return f'<div class="qa-wrap" data-id="{name}"><strong class="question">{text}</strong>{spans}</div>'

    page = '<div class="para-wrap"><pre> Salt &amp; water make brine. </pre>'
    page += question("q1", "What do salt &amp;\n water make?", "brine", "brine.", "make brine", "brine.")
    page += question("q2", "What?", "brine") + question("q1", "What is made of it?", "brine")
    page += question("q3", "Is there an answer here?") + "</div>"
    put(tmp_path, "explore/1.1/dev/Brine_1.html", page)
    put(tmp_path, "explore/1.1/dev/index.html", page.replace("q1", "q9"))
    counts = BUILDERS["squad_qg"](tmp_path, tmp_path / "out")
    assert counts.pop("dropped: duplicate, short or without answer") == 3
    assert sum(counts.values()) == counts[split_of("Brine_1", 48)] == 1
    (record,) = records(tmp_path / "out", "squad_qg")
    assert record["id"] == "q1"
    assert record["source"] == "answer: brine. context: Salt & water make brine."
    assert record["target"] == "What do salt & water make?"
    assert record["meta"]["answers"] == ["brine", "brine.", "make brine"]
    assert record["meta"]["answer_start"] == 19


def test_fairytale_qg_joins_questions_with_their_sections(tmp_path: Path) -> None:
    base = "data-by-train-split"
    header = "question_id,question,answer1,cor_section,attribute1,ex-or-im1,local-or-sum\n"
    questions = [
        '1,Who lived  there.,a king,"1,2",character,explicit,summary',
        "2,who lived there?,A King,2,character,explicit,local",
        "3,Who?,a king,1,character,explicit,local",
        "4,Who was not there?,,1,character,explicit,local",
        "5,Who was far away?,a fox,7,character,explicit,local",
    ]
    for folder in ("train", "val", "test"):
        put(tmp_path, f"{base}/questions/{folder}/tale-{folder}-questions.csv", header + "\n".join(questions))
        story = b'\xef\xbb\xbfSection , text\n1,"Once,\nthere"\n2,lived a k\xefng.\n'.replace(b", text", b",text")
        put(tmp_path, f"{base}/section-stories/{folder}/tale-{folder}-story.csv", story)
    put(tmp_path, f"{base}/questions/train/lost-questions.csv", header)
    counts = BUILDERS["fairytale_qg"](tmp_path, tmp_path / "out")
    assert counts == {
        **{"train": 1, "validation": 1, "test": 1, "dropped: duplicate": 3, "dropped: no story": 1},
        **{"dropped: section not found": 3, "dropped: short question or no answer": 6},
    }
    record = records(tmp_path / "out", "fairytale_qg")[1]
    assert record["id"] == "tale-val-1"
    assert record["source"] == "answer: a king context: Once, there lived a k�ng."
    assert record["target"] == "Who lived there?"
    assert record["meta"]["sections"] == ["1", "2"]
    assert record["meta"]["scope"] == "summary"


PAGE = """---
title: "Locks | Made-up docs"
description: 'Learn more about: How locks keep two writers apart'
---
# Locks

{body}
"""
MARKDOWN = """A **lock** keeps *two* writers apart,
as [the guide](a/b(c).md) says &amp; <xref:Made.Up.Lock.Take%2A> shows.

<!-- not
this -->
| no | table |

```csharp
no code
```

> [!NOTE]
> - A note is read.

![no picture](a.png)
Applies to: nothing that is read
"""


def test_msdocs_joins_prose_with_its_description(tmp_path: Path) -> None:
    first, second = "dotnet/docs", "MicrosoftDocs/sql-docs"
    put(
        tmp_path,
        f"{first}/docs/lock.md",
        "\ufeff" + PAGE.format(body=MARKDOWN + "\n" + words(100)).replace("\n", "\r\n"),
    )
    others = {
        "includes/x.md": PAGE,
        "none.md": words(200),
        "broken.md": PAGE.replace("title: ", "title: ["),
        "bare.md": PAGE.replace("description", "about"),
        "brief.md": PAGE.replace("How locks keep two writers apart", "Locks"),
        "marked.md": PAGE.replace("How locks keep", "How `locks` keep"),
        "cut.md": PAGE.replace("writers apart", "writers apart,"),
        "titled.md": PAGE.replace("Locks |", "How locks keep two writers apart |"),
        "short.md": PAGE.replace("{body}", "Short."),
        "again.md": PAGE,
        "same.md": PAGE.replace("How locks", "How all locks").replace("{body}", MARKDOWN + "\n" + words(100)),
        "copied.md": PAGE.replace("How locks", "How good locks").replace(
            "{body}", words(100, "x") + " How good locks keep two writers apart."
        ),
        "included.md": PAGE.replace("{body}", "[!INCLUDE [a](b.md)] and some more words here\n\n" * 4 + words(100)),
        "included-too.md": PAGE.replace("{body}", "Now see [!INCLUDE [a](b.md)] and some more\n\n" * 4 + words(100)),
    }
    for name, page in others.items():
        put(tmp_path, f"{second}/docs/{name}", page.replace("{body}", words(100, "y")))
    counts = BUILDERS["msdocs"](tmp_path, tmp_path / "out")
    assert {why.removeprefix("dropped: "): count for why, count in counts.items() if why not in SPLITS} == {
        **{"no front matter": 1, "bad front matter": 1, "no description": 1, "description length": 1},
        **{"markup in description": 1, "description unfinished": 1, "description is the title": 1},
        **{"body too short": 1, "duplicate description": 2, "duplicate body": 1, "description copied from body": 1},
        **{"includes in text": 1},
    }
    (record,) = records(tmp_path / "out", "msdocs")
    assert record["id"] == "dotnet/docs:docs/lock.md"
    assert record["target"] == "How locks keep two writers apart."
    assert record["source"] == (
        "A lock keeps two writers apart, as the guide says & Take shows. A note is read. " + words(100)
    )
    assert record["meta"]["title"] == "Locks | Made-up docs"


POST = """---
title: "Made-up forms: what we learned"
deck: ''
summary: 'We *tested* three [forms](a/b) with people &amp; found that short ones win'
excerpt: https://a.example/three-words
---
{{< card src="a.jpg" >}}
## Why forms

- ![no picture](a.png) Forms are **long**.


{% include x.html %}<!-- not this -->
"""


def test_govnews_has_a_record_for_each_rung_of_a_post(tmp_path: Path) -> None:
    first, second = "GSA/digitalgov.gov/content/news", "18F/18f.gsa.gov/content/posts"
    put(tmp_path, f"{first}/2014/03/forms.md", POST + words(130))
    put(tmp_path, f"{second}/decked.md", POST.replace("deck: ''", "deck: Three short words") + words(2000))
    others = {
        "brief": POST,
        "bare": words(200),
        "broken": POST.replace("title: ", "title: [") + words(130),
        "listed": "---\n- a\n---\n" + words(130),
    }
    for name, page in others.items():
        put(tmp_path, f"{second}/{name}.md", page)
    buckets = {}
    for number in range(200):
        path = f"content/posts/{number}.md"
        buckets[path] = int(hashlib.sha256(path.encode()).hexdigest()[:4], 16) % 100
        put(tmp_path, f"18F/18f.gsa.gov/{path}", "---\ntitle: One made-up title\n---\n" + words(120, str(number)))
    put(tmp_path, "18F/18f.gsa.gov/pages/about.md", POST + words(130))
    counts = BUILDERS["govnews"](tmp_path, tmp_path / "out")
    kept_back = sum(bucket >= 94 for bucket in buckets.values())
    assert kept_back
    assert {why.removeprefix("dropped: "): count for why, count in counts.items() if why not in SPLITS} == {
        **{"bad front matter": 2, "no front matter": 1, "post too short": 1, "kept back": kept_back},
    }
    found = records(tmp_path / "out", "govnews")
    assert len(found) == 2 + 3 + 200 - kept_back
    key = hashlib.sha256(b"content/news/2014/03/forms.md").hexdigest()[:12]
    title, summary = (record for record in found if record["id"].startswith(key))
    assert title["target"] == "Made-up forms: what we learned"
    assert title["source"] == "Why forms\nForms are long.\n" + words(130)
    assert summary["target"] == "We tested three forms with people & found that short ones win"
    assert summary["meta"] == {"rung": "summary", "licence": "CC0-1.0", "split": title["meta"]["split"]}
    (deck,) = (record for record in found if record["id"].endswith("-deck"))
    assert (deck["target"], len(deck["source"])) == ("Three short words", 9000)
    assert {row["meta"]["split"] for row in found} == set(SPLITS)
    summaries = load("govnews:summary", summary["meta"]["split"], data_dir=tmp_path / "out")
    assert summary["target"] in {example.target for example in summaries}
    assert {example.meta["rung"] for example in summaries} == {"summary"}


def article(introduction: str, **texts: str) -> str:
    """A small article; ``texts`` are impact, abstract, digest, assessment, title, licence and kind."""
    texts = {"title": "A title", "kind": "research-article", "licence": "licenses/by/4.0/", "impact": ""} | texts
    digest = (
        f'<abstract abstract-type="plain-language-summary"><title>Digest</title>{texts.get("digest", "")}</abstract>'
    )
    report = f'<sub-article article-type="editor-report"><body>{texts.get("assessment", "")}</body></sub-article>'
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE article PUBLIC "-//MADE UP//DTD//EN" "made-up.dtd">
<article article-type="{texts["kind"]}" xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:m="urn:math"><front>
<article-meta><article-id pub-id-type="doi" specific-use="version">10.1/1.2</article-id>
<article-id pub-id-type="doi">10.1/1</article-id>
<article-categories><subj-group subj-group-type="heading"><subject>Cell <italic>Biology</italic></subject></subj-group>
</article-categories><title-group><article-title>{texts["title"]}</article-title></title-group>
<pub-date><year>2021</year></pub-date><permissions><license xlink:href="http://a.example/{texts["licence"]}"/></permissions>
<abstract>{texts.get("abstract", "")}</abstract>{digest if "digest" in texts else ""}
<custom-meta-group><custom-meta><meta-name>Author impact statement</meta-name><meta-value>{texts["impact"]}</meta-value>
</custom-meta></custom-meta-group></article-meta></front>
<body><sec sec-type="methods"><p>Methods.</p></sec><sec><title>Introduction</title>{introduction}</sec></body>
{report if "assessment" in texts else ""}</article>"""


def test_elife_collects_the_usable_rungs(tmp_path: Path) -> None:
    cited = (
        "<p>Cells&nbsp;grow (<xref>One, 2001</xref>; <xref>Two, 2002</xref>) fast, see <xref>Figure 1</xref>."
        "<fig><p>not this</p></fig> "
        "At <inline-formula><m:math><m:mi>p = 3</m:mi></m:math></inline-formula> they stop.</p>"
    )
    whole = article(
        f"{cited}<boxed-text><p>nor this</p></boxed-text><p>{words(800)}</p><p>Here we show {words(20, 'z')}</p>",
        title="Cells <italic>stop</italic>",
        impact="Cells grow until they stop, and then they rest",
        abstract=f"<p>{words(90, 'a')} Funding: none was given.</p><p>DOI: http://x.example</p>",
        digest=f"<p>{words(60, 'd')}</p><p>{words(60, 'e')}</p>",
        assessment=f"<p>[Editors' note: not this.]</p><p>{words(30, 's')}</p>",
        licence="publicdomain/zero/1.0/",
    )
    put(tmp_path, "articles/elife-00012-v1.xml", whole.replace("Cells", "Early cells"))
    put(tmp_path, "articles/elife-00012-v2.xml", whole)
    put(tmp_path, "preprints/elife-preprint-00012-v9.xml", whole.replace("Cells", "Draft cells"))
    formula = "<inline-formula><m:math>a/b + c/d = e/f</m:math></inline-formula>"
    small = {"impact": "Small cells grow faster than large ones do.", "abstract": f"<p>{words(80, 'b')}</p>"}
    put(tmp_path, "preprints/elife-preprint-00030-v1.xml", article(f"<p>{words(160, 'i')}</p>", **small))
    others = {
        "00040": article(f"<p>{words(160, 'j')}</p>", **small | {"abstract": f"<p>{words(80, 'c')}</p>"}),
        "00041": article(f"<p>{words(160, 'k')}</p>", **small, kind="correction"),
        "00042": article(f"<p>{words(160, 'l')}</p>", impact="There is no abstract of this one."),
        "00043": article(f"<p>{words(160, 'm')}</p>", impact="Too short.", abstract=f"<p>{words(70)} {formula}</p>"),
        "00044": "<article><front>",
        "00045": "<article/>",
    }
    for number, xml in others.items():
        put(tmp_path, f"articles/elife-{number}-v1.xml", xml)
    counts = BUILDERS["elife"](tmp_path, tmp_path / "out")
    assert {why.removeprefix("dropped: "): count for why, count in counts.items() if why not in SPLITS} == {
        **{"impact: duplicate": 1, "impact: length": 1, "abstract: formula": 1, "not XML": 1},
        **{"no abstract or licence": 1, "short introduction or under two rungs": 2},
    }
    full, part = sorted(records(tmp_path / "out", "elife"), key=lambda record: str(record["id"]))
    assert full["source"].startswith("Cells grow fast, see Figure 1. At p = 3 they stop. Wword0 ")
    assert full["source"].endswith("Here we show " + words(20, "z"))
    assert len(full["source"].split()) <= 700
    assert full["targets"] == {
        "impact": "Cells grow until they stop, and then they rest",
        "assessment": words(30, "s"),
        "abstract": words(90, "a"),
        "digest": f"{words(60, 'd')} {words(60, 'e')}",
        "title": "Cells stop",
    }
    assert full["meta"] == {
        **{"doi": "10.1/1", "year": "2021", "subjects": ["Cell Biology"], "licence": "CC0-1.0"},
        **{"title": "Cells stop", "split": "validation", "file": "articles/elife-00012-v2.xml"},
    }
    assert (part["id"], part["meta"]["licence"], set(part["targets"])) == (
        "00040",  # every other article first, so that of two equal texts the one of 00030 is left out
        "CC-BY-4.0",
        {"impact", "abstract", "title"},
    )
    examples = load("elife:all", "validation", data_dir=tmp_path / "out")
    assert "00012-digest" in {example.id for example in examples}
