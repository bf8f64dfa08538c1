"""The page of `impatience serve`: source files, colours, motion, accessibility and pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from impatience.lengths import Unit, measure
from impatience.signals import progress_ratio
from support import fake_server
from support.page import SOURCE, WritingPage

pytestmark = pytest.mark.browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LARGE = {"viewport": {"width": 1120, "height": 780}}
LOOKS = {
    "light": LARGE,
    "dark": {**LARGE, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 800}},
}


def test_a_text_file_can_be_opened(page: WritingPage, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Fünf Wörter\n\nsind das hier", encoding="utf-8")
    page("#file").set_input_files(tmp_path / "notes.md")
    expect(page("#source")).to_have_value("# Fünf Wörter\n\nsind das hier")
    expect(page("#source-length")).to_have_text("6 words")
    (tmp_path / "notes.txt").write_bytes(b"\xff\xfe\x00\x80")
    page("#file").set_input_files(tmp_path / "notes.txt")
    expect(page("#source-problem")).to_have_text(
        "notes.txt could not be read as text. Use a .txt or .md file in UTF-8."
    )
    (tmp_path / "long.txt").write_text("far " * 20_001)
    page("#file").set_input_files(tmp_path / "long.txt")
    expect(page("#source-problem")).to_have_text(
        "long.txt has 20,001 characters or more; the server accepts 20,000 at most."
    )
    expect(page("#source")).to_have_value("# Fünf Wörter\n\nsind das hier")
    page("#clear").click()
    expect(page("#source")).to_be_focused()
    expect(page("#source-problem")).to_be_hidden()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "notes.txt is empty."),
        (b"\xef\xbb\xbf \n\t", "notes.txt is empty."),
        (b"PK\x03\x04\x00\x00", "notes.txt could not be read as text. Use a .txt or .md file in UTF-8."),
        (None, "notes.txt could not be read as text. Use a .txt or .md file in UTF-8."),
    ],
    ids=["empty", "blank", "binary", "gone"],
)
def test_a_file_without_text_leaves_the_text_alone(
    page: WritingPage, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"A text." if content is None else content)
    if content is None:  # as if the file was removed or changed since it was chosen
        page.tab.evaluate("() => { Blob.prototype.arrayBuffer = () => Promise.reject(new DOMException()); }")
    page("#file").set_input_files(file)
    expect(page("#source-problem")).to_have_text(problem)
    expect(page("#source")).to_have_value(SOURCE)
    page.write()
    page.wait_for_state("done")
    assert page.server.requests[0]["text"] == SOURCE


@pytest.mark.parametrize(
    ("name", "content_type", "accepted"), [("a.txt", "text/plain", True), ("a.png", "image/png", False)]
)
def test_a_file_can_be_dropped(
    new_page: Callable[..., WritingPage], name: str, content_type: str, accepted: bool
) -> None:
    page = new_page("")
    transfer = page.tab.evaluate_handle(
        "([name, type]) => { const dropped = new DataTransfer();"
        " dropped.items.add(new File(['Dropped.'], name, { type })); return dropped; }",
        [name, content_type],
    )
    page("#source").dispatch_event("dragover", {"dataTransfer": transfer})
    expect(page("#drop.drag-over")).to_have_count(1)
    page("#source").dispatch_event("drop", {"dataTransfer": transfer})
    expect(page("#drop.drag-over")).to_have_count(0)
    expect(page("#source")).to_have_value("Dropped." if accepted else "")
    expect(page("#source-problem")).to_be_visible(visible=not accepted)


def test_a_pdf_is_read_by_the_server(page: WritingPage, tmp_path: Path) -> None:
    for name, content in (("a.pdf", b"%PDF-1.4"), ("bad.pdf", b"nonsense"), ("large.pdf", b"%PDF-" + b"0" * 60_000)):
        (tmp_path / name).write_bytes(content)
    page("#file").set_input_files(tmp_path / "a.pdf")
    expect(page("#source")).to_have_value("The text of a.pdf.")
    expect(page("#source-length")).to_have_text("4 words")
    page("#file").set_input_files(tmp_path / "bad.pdf")
    expect(page("#source-problem")).to_have_text("'bad.pdf' cannot be read as a PDF.")
    page("#file").set_input_files(tmp_path / "large.pdf")
    expect(page("#source-problem")).to_have_text("large.pdf has 0.06 MB; the server accepts 0.05 MB at most.")
    (tmp_path / "a.html").write_text("<p>x")
    page("#file").set_input_files(tmp_path / "a.html")
    expect(page("#source-problem")).to_have_text("This server reads no HTML files. Copy the text, and paste it.")
    expect(page("#source")).to_have_value("The text of a.pdf.")


def test_a_pdf_asks_for_the_key(new_page: Callable[..., WritingPage], tmp_path: Path) -> None:
    page = new_page("", key="sesame")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4")
    page.tab.evaluate("sessionStorage.setItem('impatience-key', 'sesame')")
    page.tab.reload()
    expect(page("#model")).to_have_text("Model: made-up-1.")
    page.server.key = "another"
    page("#file").set_input_files(tmp_path / "a.pdf")
    expect(page("#key")).to_be_focused()
    page("#key").fill("another")
    page.tab.keyboard.press("Enter")
    expect(page("#source")).to_have_value("The text of a.pdf.")


def test_nothing_is_sent_without_a_text_or_with_too_much(new_page: Callable[..., WritingPage]) -> None:
    page = new_page("")
    page.write()
    expect(page("#source-problem")).to_have_text("There is no text yet: paste one, or open a file.")
    expect(page("#source")).to_be_focused()
    page("#source").fill("far " * 6000)
    page.write()
    expect(page("#source-problem")).to_have_text("This text has 23,999 characters; the server accepts 20,000 at most.")
    assert page.server.requests == []
    page.wait_for_state("empty")
    page.log.assert_clean()


def test_only_what_the_model_supports_is_offered(
    new_page: Callable[..., WritingPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    supported = {"units": ["characters", "tokens"], "tasks": ["summarize"], "landings": ["natural", "exact"]}
    monkeypatch.setattr(fake_server, "CAPABILITIES", {**supported, "max_target_tokens": 64})
    page = new_page()
    for group, values in {
        "unit": supported["units"],
        "task": ["", "summarize"],
        "landing": supported["landings"],
    }.items():
        radios = [radio for radio in page(f"input[name={group}]").all() if radio.is_visible()]
        assert [radio.get_attribute("value") for radio in radios] == values
    page("#slider").press("End")
    expect(page("#length")).to_have_value("280")
    expect(page("input[value=characters]")).to_be_checked()


def test_colours_follow_the_system_until_they_are_chosen(new_page: Callable[..., WritingPage]) -> None:
    page = new_page(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.tab.evaluate(paper)
    toggle = page.tab.get_by_role("button", name="Dark colours")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    light = page.tab.evaluate(paper)
    assert light != dark
    page.tab.reload()
    assert page.tab.evaluate(paper) == light
    page.tab.emulate_media(color_scheme="light")
    toggle.click()
    assert page.tab.evaluate(paper) == dark


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_motion_follows_the_system_setting(new_page: Callable[..., WritingPage], motion: str) -> None:
    page = new_page(reduced_motion=motion)
    page.server.pause_after = 3
    page.write()
    expect(page("#single .text span")).to_have_count(3)
    moves = page.tab.evaluate(
        "[getComputedStyle(document.querySelector('#single .text span')).animationName !== 'none',"
        " getComputedStyle(document.querySelector('#single .fill')).transitionDuration !== '0s']"
    )
    assert moves == [motion == "no-preference"] * 2


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_is_accessible(new_page: Callable[..., WritingPage], look: str, tmp_path: Path) -> None:
    """Check each state of the page, and take the pictures of the documentation."""
    page = new_page("", **LOOKS[look], reduced_motion="reduce")
    page.check_accessibility()
    page("#example").click()
    expect(page("#clear")).to_be_visible()
    page.server.pause_after = 27
    page.write()
    expect(page("#single .count")).to_have_text("27")
    page.check_accessibility()
    if look == "dark":
        take_picture(page, "page-dark.png", tmp_path)
    page.server.resume.set()
    page.wait_for_state("done")
    page.check_accessibility()
    if look != "dark":
        page.tab.mouse.move(0, 0)
        take_picture(page, f"page-{look}.png", tmp_path)
    page("#instruction").fill("Ask the council for lamps")
    page("#use-range").click()
    page.server.script.append(fake_server.write_unsupported)
    page.write()
    page("#single mark").first.wait_for()
    page.check_accessibility()
    page("#instruction").fill("")
    page.select("view", "ladder")
    page.select("unit", "characters")
    assert page("#rungs").evaluate(
        "rungs => [...rungs.querySelectorAll('header')].every(e => e.scrollWidth <= e.clientWidth)"
    )
    page.select("unit", "words")
    page("#rungs .remove").last.click()
    page("#rungs .target input").last.fill("65")
    page.write()
    expect(page("#rungs [data-state=done]")).to_have_count(3)
    page.check_accessibility()
    if look == "light":
        page("h1").click()
        take_picture(page, "page-ladder.png", tmp_path)
    page.server.key = "sesame"
    page.write()
    expect(page("#key")).to_be_focused()
    page.check_accessibility()
    page.tab.keyboard.press("Escape")
    expect(page("#rungs [data-state=failed]")).to_have_count(3)
    page.check_accessibility()


def take_picture(page: WritingPage, name: str, folder: Path) -> None:
    """Take a picture; with UPDATE_SNAPSHOTS, for the documentation."""
    file = (IMAGES if os.environ.get("UPDATE_SNAPSHOTS") else folder) / name
    page.tab.screenshot(path=file, full_page=True)


def test_the_page_counts_as_the_library_does(new_page: Callable[..., WritingPage]) -> None:
    texts = [
        "",
        "  ",
        "one",
        " a\u00a0b\u2003c\n\nd\x1ce\x85f ",
        "zero\u200bwidth \ufeffmark",
        "🌊🌊 e\u0301 日本語",
        "\ta-b c",
    ]
    page = new_page()
    for unit in ("words", "characters"):
        counted = page.evaluate_module("lengths.js", f"a.map(text => m.count(text, '{unit}'))", texts)
        assert counted == [measure(text, Unit(unit)) for text in texts]


def test_the_curve_shows_the_signal(new_page: Callable[..., WritingPage]) -> None:
    """The curve at r is the pair of components at x = r."""
    width, pulsation = 200, 22 * torch.pi
    ratios = torch.arange(width // 2) / (width / 2)
    signal = progress_ratio(ratios[None], width, pulsation)[0]
    paths = new_page().evaluate_module("signal_curve.js", "[m.COSINE_PATH, m.SINE_PATH]")
    for offset, path in enumerate(paths):
        points = {float(x): float(y) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)}
        drawn = torch.tensor([(40 - points[6.0 * index]) / 34 for index in range(width // 2)])
        expected = torch.stack([signal[index, 2 * index + offset] for index in range(width // 2)])
        assert torch.allclose(drawn, expected, atol=1e-3)
