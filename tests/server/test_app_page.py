"""The page that `impatience serve` shows: a person asks for a length, and the text lands on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from support import page_server
from support.page_desk import SOURCE, Desk
from support.page_server import Reply


def test_a_pasted_text_lands_on_the_length_that_was_dragged(opened: Callable[..., Desk]) -> None:
    desk = opened("", permissions=["clipboard-read", "clipboard-write"])
    desk.paste(SOURCE)
    expect(desk("#source-length")).to_have_text("23 words")
    target = desk.drag(0.7)
    assert target > 100
    desk.write()
    desk.expect_state("done")
    assert desk.server.asked == [
        {"text": SOURCE, "target": {"words": target}, "task": None, "landing": "natural", "stream": True}
    ]
    assert len(desk.text().split()) == target
    assert desk.text().endswith(".")
    assert desk("#one .count").inner_text() == str(target)
    assert f"{target} words, just as you asked. The model ended here by itself, 87 % sure" in desk.said()
    desk.seen.assert_clean()


@pytest.mark.parametrize(
    ("unit", "target", "whole"),
    [("characters", 240, "109 characters"), ("sentences", 2, "about 2 sentences"), ("tokens", 55, "about 24 tokens")],
)
def test_each_unit_has_a_length_of_its_own(desk: Desk, unit: str, target: int, whole: str) -> None:
    desk.pick("unit", unit)
    expect(desk("#length")).to_have_value(str(target))
    expect(desk("#source-length")).to_have_text(whole)
    desk.pick("task", "title")
    desk.write()
    desk.expect_state("done")
    assert (desk.server.asked[0]["target"], desk.server.asked[0]["task"]) == ({unit: target}, "title")
    assert desk.said().startswith(f"{target} {unit}, just as you asked.")
    assert page_server.measure(desk.text(), unit) == target
    desk.pick("unit", "words")
    expect(desk("#length")).to_have_value("40")
    desk.seen.assert_clean()


def test_slider_and_field_are_kept_in_step(desk: Desk) -> None:
    expect(desk("#share")).to_have_text("longer than your text")
    desk("#length").fill("12")
    expect(desk("#slider")).to_have_attribute("aria-valuetext", "12 words")
    expect(desk("#share")).to_have_text("about 52 % of your text")
    desk("#slider").press("ArrowRight")
    expect(desk("#length")).to_have_value("13")
    desk("#slider").press("Home")
    expect(desk("#length")).to_have_value("5")
    desk("#slider").press("End")
    expect(desk("#length")).to_have_value("750")  # the server writes 1,024 tokens
    desk("#length").fill("4321")
    expect(desk("#slider")).to_have_attribute("aria-valuetext", "4,321 words")
    for wrong in ("0", "2.5", ""):
        desk("#length").fill(wrong)
        desk.write()
        expect(desk("#length:invalid")).to_be_focused()
    desk("#length").fill("9")
    desk.pick("view", "ladder")
    desk("#rungs .aim input").last.fill("")
    desk.write()
    expect(desk("#rungs .aim input:invalid")).to_be_focused()
    assert desk.server.asked == []


def test_the_ladder_writes_several_lengths_side_by_side(desk: Desk) -> None:
    desk.pick("view", "ladder")
    lengths = desk("#rungs .aim input")

    def values() -> list[int]:
        return [int(value) for value in lengths.evaluate_all("all => all.map(one => one.value)")]

    assert values() == [20, 40, 80, 160]
    desk("#length").fill("1")
    assert values() == [1, 2, 3, 4]
    desk("#length").fill("30")
    assert values() == [15, 30, 60, 120]
    desk("#more").click()
    expect(lengths.last).to_be_focused()
    expect(desk("#more")).to_be_hidden()
    lengths.first.fill("8")
    desk.page.get_by_role("button", name="Remove length 3").click()
    desk.page.get_by_role("button", name="Remove length 4").click()
    assert values() == [8, 30, 120]
    expect(desk("#rungs .remove:visible")).to_have_count(0)
    desk.write()
    expect(desk("#rungs [data-state=done]")).to_have_count(3)
    assert sorted(ask["target"]["words"] for ask in desk.server.asked) == [8, 30, 120]
    texts = desk("#rungs .text").all_text_contents()
    assert [len(text.split()) for text in texts] == values()
    boxes = [sheet.bounding_box() for sheet in desk("#rungs .sheet").all()]
    assert len({box["y"] for box in boxes}) == 1
    assert boxes[0]["height"] < boxes[2]["height"]
    expect(desk("#status")).to_contain_text("8 words, just as you asked.")
    expect(desk("#status")).to_contain_text("120 words, just as you asked.")
    desk.seen.assert_clean()


@pytest.mark.parametrize("clipboard", ["there", "undefined", "{ writeText: () => Promise.reject() }"])
def test_the_text_can_be_copied(opened: Callable[..., Desk], clipboard: str) -> None:
    desk = opened(permissions=["clipboard-read", "clipboard-write"])
    desk.write()
    desk.expect_state("done")
    if clipboard != "there":  # over plain HTTP a browser has none for pages, and it may refuse the one it has
        desk.page.evaluate("window.clipboard = navigator.clipboard")
        desk.page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }})")
    desk("#one .copy").click()
    expect(desk("#one .copy")).to_have_text("Copied")
    assert desk.page.evaluate("(window.clipboard ?? navigator.clipboard).readText()") == desk.text()
    desk.seen.assert_clean()


def test_the_text_can_be_downloaded(desk: Desk) -> None:
    desk("#length").fill("20")
    desk.write()
    desk.expect_state("done")
    with desk.page.expect_download() as download:
        desk("#one .download").click()
    assert download.value.suggested_filename == "text-20-words.txt"
    assert Path(download.value.path()).read_text(encoding="utf-8") == f"{desk.text()}\n"
    desk.seen.assert_clean()


def test_everything_can_be_done_with_the_keyboard(opened: Callable[..., Desk]) -> None:
    desk = opened("")
    press = desk.page.keyboard.press
    focused = "[document.activeElement.id, document.activeElement.name]"
    order = []
    for _ in range(11):
        press("Tab")
        found, name = desk.page.evaluate(focused)
        order.append(found or name)
        ring = desk.page.evaluate(
            "[document.activeElement, document.activeElement.nextElementSibling].some("
            "e => e && getComputedStyle(e).outlineStyle !== 'none')"
        )
        assert ring, f"{order[-1]} shows no focus"
        if found == "source":
            desk.page.keyboard.type(SOURCE)
        if name == "landing":
            press("ArrowRight")
    assert order == [
        *("view", "theme", "source", "open", "clear", "length", "unit", "slider", "landing", "task", "write"),
    ]
    desk.server.hold = 5
    press("Control+Enter")
    expect(desk("#one .count")).to_have_text("5")
    press("Escape")
    desk.expect_state("stopped")
    desk.server.hold = -1
    desk("#write").focus()
    press("Enter")
    desk.expect_state("done")
    assert [ask["landing"] for ask in desk.server.asked] == ["exact", "exact"]
    for name in ("copy", "download"):
        press("Tab")
        assert desk.page.evaluate("document.activeElement.className").endswith(name)


def test_a_text_can_be_stopped(desk: Desk) -> None:
    desk.server.hold = 7
    desk.write()
    expect(desk("#one .count")).to_have_text("7")
    expect(desk("#one .sheet")).to_have_attribute("aria-busy", "true")
    expect(desk("#one .ring")).to_have_attribute("aria-valuetext", "7 of 40 words")
    assert desk("#one .sheet").evaluate("sheet => sheet.style.getPropertyValue('--ratio')") == "0.175"
    expect(desk("#stop")).to_be_focused()
    desk("#length").fill("90")  # is for the next text
    desk("#stop").click()
    desk.expect_state("stopped")
    assert desk.said().startswith("Stopped at 7 words of 40.")
    assert len(desk.text().split()) == 7
    expect(desk("#write")).to_be_focused()
    desk.server.hold = -1
    desk.write()
    desk.expect_state("done")
    assert len(desk.text().split()) == 90
    assert desk.seen.failed == [f"{desk.server.url}v1/write"]
    assert (desk.seen.errors, desk.seen.elsewhere) == ([], [])


def test_only_the_start_and_the_end_are_read_out(desk: Desk) -> None:
    desk.page.evaluate(
        "window.read = []; new MutationObserver(() => window.read.push(document.querySelector('#status').textContent))"
        ".observe(document.querySelector('#status'), { childList: true })"
    )
    desk.write()
    desk.expect_state("done")
    expect(desk("#write")).to_be_visible()
    assert [said.split(".")[0] for said in desk.page.evaluate("window.read")] == [
        "Writing",
        "40 words, just as you asked",
    ]
    assert desk("#one [aria-live], #one [role=alert], #one [role=status]").count() == 0


@pytest.mark.parametrize(
    ("landing", "reply", "said"),
    [
        (
            "natural",
            page_server.too_long,
            "43 words, 3 more than the 40 you asked for. Choose Exact or At most to hold",
        ),
        (
            "exact",
            page_server.well,
            "40 words, just as you asked. It was held to your length: the model gave an end here a",
        ),
        (
            "at_most",
            page_server.well,
            "20 words, within your limit of 40. It was held to your length: the model gave an",
        ),
    ],
)
def test_how_it_landed_is_said_in_plain_words(desk: Desk, landing: str, reply: Reply, said: str) -> None:
    desk.server.script.append(reply)
    desk.pick("landing", landing)
    desk.write()
    desk.expect_state("done")
    assert desk.said().startswith(said)
    assert desk.server.asked[0]["landing"] == landing
    assert ("taken back" in desk.said()) == (landing == "at_most")
    assert len(desk.text().split()) == int(said.split()[0])


def test_what_is_too_long_goes_on_a_second_lap(desk: Desk) -> None:
    desk.server.script.append(page_server.too_long)
    for said, lap in (("43 of 40 words, 3 too many", 0.075), ("40 of 40 words", 0)):
        desk.write()
        desk.expect_state("done")
        expect(desk("#one .ring")).to_have_attribute("aria-valuetext", said)
        expect(desk("#one .lap")).to_have_css("stroke-dasharray", re.compile(f"^{lap}(px)?, 1(px)?$"))
        desk.check()
    desk.seen.assert_clean()


def test_a_long_source_shows_what_is_being_done(desk: Desk) -> None:
    desk.server.script.append(page_server.in_parts)
    desk.write()
    expect(desk("#one .text")).to_contain_text("writing 3 parts of it first …")
    desk.expect_state("waiting")
    desk.server.go.set()
    desk.expect_state("done")
    assert "It was read in 3 parts" in desk.said()
    assert len(desk.text().split()) == 40
    desk.seen.assert_clean()


@pytest.mark.parametrize(
    ("reply", "said", "left"),
    [
        (page_server.refuse(413, "The text is too long."), "The text is too long.", ""),
        (
            page_server.refuse(429, "Full.", Retry_After="5"),
            "The server is busy with other texts. Try again in 5 seconds.",
            "",
        ),
        (lambda handler: handler.send(502, "<p>oops"), "The server answered with 502.", ""),
        (page_server.fail_midway, "The model ran out of memory. Ask for less.", "Once"),
        (page_server.break_off, "The connection ended before the text did.", "Once"),
    ],
    ids=["refused", "busy", "no-json", "midway", "broken-off"],
)
def test_failures_are_told_and_can_be_tried_again(desk: Desk, reply: Reply, said: str, left: str) -> None:
    desk.server.script.append(reply)
    desk.write()
    desk.expect_state("failed")
    assert desk.said().startswith(f"{said} Try again")
    expect(desk("#status")).to_have_text(said)
    assert desk.text() == left
    desk.page.get_by_role("button", name="Try again").click()
    desk.expect_state("done")
    assert len(desk.text().split()) == 40
    assert (desk.seen.failed, desk.seen.elsewhere) == ([], [])
    assert [error for error in desk.seen.errors if not error.startswith("Failed to load resource")] == []


def test_a_server_that_is_gone_is_told(desk: Desk) -> None:
    desk.page.route("**/v1/write", lambda route: route.abort())
    desk.write()
    desk.expect_state("failed")
    assert desk.said().startswith("The server cannot be reached.")


def test_a_key_is_asked_for_once_and_kept_for_the_tab(opened: Callable[..., Desk]) -> None:
    desk = opened(key="sesame")
    desk.pick("view", "ladder")
    desk.write()
    expect(desk("#key")).to_be_focused()
    desk("#key").fill("wrong")
    desk.page.keyboard.press("Enter")
    expect(desk("#key-why")).to_have_text("That key was not accepted. Try another.")
    assert desk.server.asked == []
    desk("#key").fill(" sesame ")
    desk.page.get_by_role("button", name="Use it").click()
    expect(desk("#rungs [data-state=done]")).to_have_count(4)
    expect(desk("#key-dialog")).to_be_hidden()
    expect(desk("#model")).to_have_text("The model is made-up-1.")
    kept = desk.page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
    assert kept == [["sesame"], [], ""]
    assert desk("#key").input_value() == ""
    assert [error for error in desk.seen.errors if "401" not in error] == []


def test_without_the_key_nothing_is_written(opened: Callable[..., Desk]) -> None:
    desk = opened(key="sesame")
    desk.write()
    expect(desk("#key")).to_be_focused()
    desk.page.keyboard.press("Escape")
    desk.expect_state("failed")
    assert desk.said().startswith("Without its key this server writes nothing.")
    assert desk.server.asked == []


def test_whoever_declines_to_give_a_key_is_not_asked_again_by_an_answer_that_comes_late(
    opened: Callable[..., Desk],
) -> None:
    desk = opened(key="sesame")
    late: list[Route] = []
    desk.page.route("**/v1/write", lambda route: late.append(route), times=1)
    desk.pick("view", "ladder")
    desk.write()
    expect(desk("#key")).to_be_focused()
    desk.page.keyboard.press("Escape")
    expect(desk("#rungs [data-state=failed]")).to_have_count(3)
    late[0].continue_()
    expect(desk("#rungs [data-state=failed]")).to_have_count(4)
    expect(desk("#key-dialog")).to_be_hidden()
    desk.write()
    expect(desk("#key")).to_be_focused()
