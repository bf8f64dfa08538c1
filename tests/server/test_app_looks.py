"""The page that `impatience serve` shows: what it reads, how it looks, and that everybody can use it."""

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
from support import page_server
from support.page_desk import Desk
from support.page_server import APP

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LARGE = {"viewport": {"width": 1120, "height": 780}}
LOOKS = {
    "light": LARGE,
    "dark": {**LARGE, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 800}},
}


def test_a_text_file_is_read(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Fünf Wörter\n\nsind das hier", encoding="utf-8")
    desk("#file").set_input_files(tmp_path / "notes.md")
    expect(desk("#source")).to_have_value("# Fünf Wörter\n\nsind das hier")
    expect(desk("#source-length")).to_have_text("6 words")
    (tmp_path / "notes.txt").write_bytes(b"\xff\xfe\x00\x80")
    desk("#file").set_input_files(tmp_path / "notes.txt")
    expect(desk("#source-problem")).to_have_text(
        "notes.txt could not be read as text. Give a .txt or .md file in UTF-8."
    )
    (tmp_path / "long.txt").write_text("far " * 20_001)
    desk("#file").set_input_files(tmp_path / "long.txt")
    expect(desk("#source-problem")).to_have_text(
        "long.txt has 20,001 characters or more; the server reads 20,000 at most."
    )
    expect(desk("#source")).to_have_value("# Fünf Wörter\n\nsind das hier")
    desk("#clear").click()
    expect(desk("#source")).to_be_focused()
    expect(desk("#source-problem")).to_be_hidden()


@pytest.mark.parametrize(("name", "kind", "taken"), [("a.txt", "text/plain", True), ("a.png", "image/png", False)])
def test_a_file_can_be_dropped(opened: Callable[..., Desk], name: str, kind: str, taken: bool) -> None:
    desk = opened("")
    transfer = desk.page.evaluate_handle(
        "([name, type]) => { const dropped = new DataTransfer();"
        " dropped.items.add(new File(['Dropped.'], name, { type })); return dropped; }",
        [name, kind],
    )
    desk("#source").dispatch_event("dragover", {"dataTransfer": transfer})
    expect(desk("#drop.over")).to_have_count(1)
    desk("#source").dispatch_event("drop", {"dataTransfer": transfer})
    expect(desk("#drop.over")).to_have_count(0)
    expect(desk("#source")).to_have_value("Dropped." if taken else "")
    expect(desk("#source-problem")).to_be_visible(visible=not taken)


def test_nothing_is_asked_without_a_text_or_with_too_much(opened: Callable[..., Desk]) -> None:
    desk = opened("")
    desk.write()
    expect(desk("#source-problem")).to_have_text("There is no text yet: paste one, or open a file.")
    expect(desk("#source")).to_be_focused()
    desk("#source").fill("far " * 6000)
    desk.write()
    expect(desk("#source-problem")).to_have_text("This text has 23,999 characters; the server reads 20,000 at most.")
    assert desk.server.asked == []
    desk.expect_state("empty")
    desk.seen.assert_clean()


def test_what_the_server_cannot_do_is_not_offered(opened: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"units": ["characters", "tokens"], "tasks": ["summarize"], "landings": ["natural", "exact"]}
    monkeypatch.setattr(page_server, "SKILLS", {**few, "max_target_tokens": 64})
    desk = opened()
    for group, values in {"unit": few["units"], "task": ["", "summarize"], "landing": few["landings"]}.items():
        offered = [one for one in desk(f"input[name={group}]").all() if one.is_visible()]
        assert [one.get_attribute("value") for one in offered] == values
    desk("#slider").press("End")
    expect(desk("#length")).to_have_value("280")
    expect(desk("input[value=characters]")).to_be_checked()


def test_colours_follow_the_system_until_they_are_chosen(opened: Callable[..., Desk]) -> None:
    desk = opened(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = desk.page.evaluate(paper)
    toggle = desk.page.get_by_role("button", name="Dark colours")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    light = desk.page.evaluate(paper)
    assert light != dark
    desk.page.reload()
    assert desk.page.evaluate(paper) == light
    desk.page.emulate_media(color_scheme="light")
    toggle.click()
    assert desk.page.evaluate(paper) == dark


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_motion_is_reduced_where_that_is_wished(opened: Callable[..., Desk], motion: str) -> None:
    desk = opened(reduced_motion=motion)
    desk.server.hold = 3
    desk.write()
    expect(desk("#one .text span")).to_have_count(3)
    moves = desk.page.evaluate(
        "[getComputedStyle(document.querySelector('#one .text span')).animationName !== 'none',"
        " getComputedStyle(document.querySelector('#one .fill')).transitionDuration !== '0s']"
    )
    assert moves == [motion == "no-preference"] * 2


@pytest.mark.parametrize("look", LOOKS)
def test_everybody_can_use_it(opened: Callable[..., Desk], look: str, tmp_path: Path) -> None:
    """Axe finds nothing serious, nothing scrolls sideways, and the pictures of the documentation can be taken again."""
    desk = opened("", **LOOKS[look], reduced_motion="reduce")
    desk.check()
    desk("#example").click()
    expect(desk("#clear")).to_be_visible()
    desk.server.hold = 27
    desk.write()
    expect(desk("#one .count")).to_have_text("27")
    desk.check()
    if look == "dark":
        picture(desk, "page-dark.png", tmp_path)
    desk.server.go.set()
    desk.expect_state("done")
    desk.check()
    if look != "dark":
        desk.page.mouse.move(0, 0)
        picture(desk, f"page-{look}.png", tmp_path)
    desk.pick("view", "ladder")
    desk.pick("unit", "characters")
    assert desk("#rungs").evaluate(
        "rungs => [...rungs.querySelectorAll('header')].every(e => e.scrollWidth <= e.clientWidth)"
    )
    desk.pick("unit", "words")
    desk("#rungs .remove").last.click()
    desk("#rungs .aim input").last.fill("65")
    desk.write()
    expect(desk("#rungs [data-state=done]")).to_have_count(3)
    desk.check()
    if look == "light":
        desk("h1").click()
        picture(desk, "page-ladder.png", tmp_path)
    desk.server.key = "sesame"
    desk.write()
    expect(desk("#key")).to_be_focused()
    desk.check()
    desk.page.keyboard.press("Escape")
    expect(desk("#rungs [data-state=failed]")).to_have_count(3)
    desk.check()


def picture(desk: Desk, name: str, elsewhere: Path) -> None:
    """Take a picture, for the documentation where UPDATE_SNAPSHOTS is set."""
    file = (IMAGES if os.environ.get("UPDATE_SNAPSHOTS") else elsewhere) / name
    desk.page.screenshot(path=file, full_page=True)


def test_the_page_counts_as_the_library_does(opened: Callable[..., Desk]) -> None:
    texts = [
        "",
        "  ",
        "one",
        " a\u00a0b\u2003c\n\nd\x1ce\x85f ",
        "zero\u200bwidth \ufeffmark",
        "🌊🌊 e\u0301 日本語",
        "\ta-b c",
    ]
    desk = opened()
    for unit in ("words", "characters"):
        counted = desk.module("lengths.js", f"a.map(text => m.count(text, '{unit}'))", texts)
        assert counted == [measure(text, Unit(unit)) for text in texts]


def test_the_curve_is_the_signal(opened: Callable[..., Desk]) -> None:
    """At r it is the pair of components at the place x = r."""
    width, pulsation = 200, 22 * torch.pi
    ratios = torch.arange(width // 2) / (width / 2)
    signal = progress_ratio(ratios[None], width, pulsation)[0]
    paths = opened().module("signal.js", "[m.EVEN, m.ODD]")
    for offset, path in enumerate(paths):
        points = {float(x): float(y) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)}
        drawn = torch.tensor([(40 - points[6.0 * place]) / 34 for place in range(width // 2)])
        expected = torch.stack([signal[place, 2 * place + offset] for place in range(width // 2)])
        assert torch.allclose(drawn, expected, atol=1e-3)


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    html = (APP / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    for file in APP.iterdir():
        text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//\w+\.\w|@import|url\(|eval\(|innerHTML", text), file.name
        assert len(text.splitlines()) < 300, file.name
    assert set(re.findall(r'"/static/([^"]+)"', html)) <= {file.name for file in APP.iterdir()}
