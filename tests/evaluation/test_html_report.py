"""The page of a comparison, read by a parser and opened in a real browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impatience.evaluation.comparison import compare
from impatience.evaluation.html_report import choose_samples, render_page
from impatience.evaluation.load_reports import LoadedReport, load
from support.browser import chromium, open_page
from support.made_up_reports import predictions, save

EVIL = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)> & \"quoted\""
FIGURES = 5


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedReport, ...]:
    root = tmp_path_factory.mktemp("reports")
    texts = [predictions(seed, 4.0 + 4 * seed, 45, high=150) for seed in range(2)]
    texts = [
        [
            replace(one, text=f"{EVIL} {one.text}", source=EVIL, references=(EVIL,), unsupported=(EVIL, "1998"))
            for one in some
        ]
        for some in texts
    ]
    paths = [save(root / "a", f"A {EVIL}", texts[0]), save(root / "b", "B", texts[1])]
    return load(paths)


@pytest.fixture(scope="module")
def html(reports: tuple[LoadedReport, ...]) -> str:
    return render_page(compare(reports), reports)


class Tags(HTMLParser):
    """Collects every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_runs_no_script_and_fetches_nothing(html: str) -> None:
    tags = Tags(html)
    assert tags.all("script") == []
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    addresses = [attributes.get(name) for _, attributes in tags.found for name in ("src", "href") if name in attributes]
    assert all(address and address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert "url(" not in html
    assert "@import" not in html


def test_tables_are_escaped_and_mark_the_best(html: str) -> None:
    (heading,) = re.findall(r'<th scope="col" class="number">(A [^/]*)&lt;/script', html)[:1]
    assert heading.startswith("A &lt;script&gt;document.title = &#39;taken&#39;")
    assert re.search(r'<th scope="row">A &lt;script&gt;', html)
    assert re.search(r'<td class="number"><strong>[\d.]+</strong> <small>\[[\d.]+, [\d.]+\]</small></td>', html)


def test_each_text_names_the_words_that_its_source_does_not_have(html: str) -> None:
    assert html.count("not in the source: &lt;script&gt;") >= 2
    assert re.search(r"not in the source: [^<]*, 1998", html)


def test_the_page_is_accessible(html: str) -> None:
    tags = Tags(html)
    assert tags.all("html") == [{"lang": "en"}]
    assert len(tags.all("title")) == len(tags.all("h1")) == len(tags.all("main")) == 1
    images = tags.all("img")
    assert len(images) == FIGURES
    assert all(image["alt"] and image["alt"].endswith(".") for image in images)
    assert all(head.get("scope") in ("col", "row") for head in tags.all("th"))
    assert len(tags.all("caption")) == len(tags.all("table")) > 6
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in tags.all("a")} <= {f"#{name}" for name in ids}


def test_the_same_reports_give_the_same_page(html: str, reports: tuple[LoadedReport, ...]) -> None:
    assert render_page(compare(reports), reports) == html


def test_the_page_shows_the_setup(html: str) -> None:
    for fact in ("5" * 64, "ladder (rungs=title impact digest)", "words", "abc1234", "Made Up 9"):
        assert fact in html


def test_samples_are_the_worst_first_and_none_twice(reports: tuple[LoadedReport, ...]) -> None:
    chosen = choose_samples(reports, 4)
    assert [one.anchor for one in chosen] == ["worst", "loops", "unfinished", "samples"]
    worst = np.max([one.rows.errors for one in reports], axis=0)
    assert sorted(worst[list(chosen[0].indices)], reverse=True) == sorted(worst, reverse=True)[:4]
    assert worst[chosen[0].indices[0]] == worst.max()
    places = [place for one in chosen for place in one.indices]
    assert len(places) == len(set(places))
    for place in chosen[1].indices:
        assert any(one.rows.numbers("looping")[place] for one in reports)
    for place in chosen[2].indices:
        assert any(not one.rows.values("ended")[place] for one in reports)
    targets = reports[0].rows.numbers("target")[list(chosen[3].indices)]
    assert (np.diff(targets) >= 0).all()


def test_perfect_reports_have_no_worst_cases(tmp_path: Path) -> None:
    texts = [
        replace(one, length=one.target, ended=True, finished=True, text="All is well.")
        for one in predictions(0, 0.0, 3, high=30)
    ]
    perfect = load([save(tmp_path / "a", "A", texts, metrics=("length",))])
    assert [(one.anchor, len(one.indices)) for one in choose_samples(perfect)] == [("samples", 3)]
    assert "Evaluation of A" in render_page(compare(perfect), perfect)


@pytest.mark.slow
def test_the_title_lists_three_names_and_the_page_all(reports: tuple[LoadedReport, ...]) -> None:
    many: Sequence[LoadedReport] = [replace(reports[1], name=f"model {n}") for n in range(12)]
    shown = render_page(compare(many), many)
    assert "<title>Comparison of model 0, model 1, model 2 and 9 more</title>" in shown
    assert "model 11" in shown


@pytest.mark.browser
@pytest.mark.parametrize(
    "options",
    [{}, {"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}],
    ids=["light", "dark", "phone"],
)
def test_the_page_works_in_a_browser(options: dict[str, Any], html: str, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "comparison.html"
    file.write_text(html, encoding="utf-8")
    with open_page(browser, **options) as (shown, seen):
        shown.goto(file.as_uri())
        seen.assert_clean()
        assert shown.title().startswith("Comparison of A <script>")
        widths = shown.eval_on_selector_all("img", "images => images.map(image => image.naturalWidth)")
        assert len(widths) == FIGURES
        assert min(widths) > 500
        assert shown.locator("table").count() > 6
        assert shown.locator("article.sample").count() == 20
        assert EVIL in shown.locator(".text").first.inner_text()
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        back, ink = shown.evaluate(
            "[...'01'].map((_, n) => getComputedStyle(document.body)[['backgroundColor', 'color'][n]])"
        )
        assert contrast(back, ink) >= 7


def contrast(*colors: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted(map(luminance, colors))
    return (high + 0.05) / (low + 0.05)


def test_a_missing_browser_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPATIENCE_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(AssertionError, match="apt-get install chromium"):
        chromium()
