"""The page of `impatience serve`: setting a length, writing, stopping, errors and keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from support import fake_server
from support.fake_server import Reply
from support.page import SOURCE, WritingPage

pytestmark = pytest.mark.browser


def test_a_pasted_text_is_written_to_the_length_of_the_slider(new_page: Callable[..., WritingPage]) -> None:
    page = new_page("", permissions=["clipboard-read", "clipboard-write"])
    page.paste(SOURCE)
    expect(page("#source-length")).to_have_text("23 words")
    target = page.drag_slider(0.7)
    assert target > 100
    page.write()
    page.wait_for_state("done")
    assert page.server.requests == [
        {"text": SOURCE, "target": {"words": target}, "task": None, "landing": "natural", "stream": True}
    ]
    assert len(page.text().split()) == target
    assert page.text().endswith(".")
    assert page("#single .count").inner_text() == str(target)
    assert f"{target} words, as requested. The model chose to end here, with a probability of 87 %" in page.report()
    page.log.assert_clean()


@pytest.mark.parametrize(
    ("unit", "target", "source_length"),
    [("characters", 240, "109 characters"), ("sentences", 2, "about 2 sentences"), ("tokens", 55, "about 24 tokens")],
)
def test_the_length_is_converted_to_each_unit(page: WritingPage, unit: str, target: int, source_length: str) -> None:
    page.select("unit", unit)
    expect(page("#length")).to_have_value(str(target))
    expect(page("#source-length")).to_have_text(source_length)
    page.select("task", "title")
    page.write()
    page.wait_for_state("done")
    assert (page.server.requests[0]["target"], page.server.requests[0]["task"]) == ({unit: target}, "title")
    assert page.report().startswith(f"{target} {unit}, as requested.")
    assert fake_server.measure(page.text(), unit) == target
    page.select("unit", "words")
    expect(page("#length")).to_have_value("40")
    page.log.assert_clean()


def test_slider_and_field_show_the_same_length(page: WritingPage) -> None:
    expect(page("#share")).to_have_text("longer than your text")
    page("#length").fill("12")
    expect(page("#slider")).to_have_attribute("aria-valuetext", "12 words")
    expect(page("#share")).to_have_text("about 52 % of your text")
    page("#slider").press("ArrowRight")
    expect(page("#length")).to_have_value("13")
    page("#slider").press("Home")
    expect(page("#length")).to_have_value("5")
    page("#slider").press("End")
    expect(page("#length")).to_have_value("750")  # the server writes 1,024 tokens
    page("#length").fill("4321")
    expect(page("#slider")).to_have_attribute("aria-valuetext", "4,321 words")
    for invalid in ("0", "2.5", ""):
        page("#length").fill(invalid)
        page.write()
        expect(page("#length:invalid")).to_be_focused()
    page("#length").fill("9")
    page.select("view", "ladder")
    page("#rungs .target input").last.fill("")
    page.write()
    expect(page("#rungs .target input:invalid")).to_be_focused()
    assert page.server.requests == []


def test_the_ladder_writes_several_lengths_side_by_side(page: WritingPage) -> None:
    page.select("view", "ladder")
    lengths = page("#rungs .target input")

    def values() -> list[int]:
        return [int(value) for value in lengths.evaluate_all("fields => fields.map(field => field.value)")]

    assert values() == [20, 40, 80, 160]
    page("#length").fill("1")
    assert values() == [1, 2, 3, 4]
    page("#length").fill("30")
    assert values() == [15, 30, 60, 120]
    page("#add-length").click()
    expect(lengths.last).to_be_focused()
    expect(page("#add-length")).to_be_hidden()
    lengths.first.fill("8")
    page.tab.get_by_role("button", name="Remove length 3").click()
    page.tab.get_by_role("button", name="Remove length 4").click()
    assert values() == [8, 30, 120]
    expect(page("#rungs .remove:visible")).to_have_count(0)
    page.write()
    expect(page("#rungs [data-state=done]")).to_have_count(3)
    assert sorted(request["target"]["words"] for request in page.server.requests) == [8, 30, 120]
    texts = page("#rungs .text").all_text_contents()
    assert [len(text.split()) for text in texts] == values()
    boxes = [card.bounding_box() for card in page("#rungs .result-card").all()]
    assert len({box["y"] for box in boxes}) == 1
    assert boxes[0]["height"] < boxes[2]["height"]
    expect(page("#status")).to_contain_text("8 words, as requested.")
    expect(page("#status")).to_contain_text("120 words, as requested.")
    page.log.assert_clean()


def test_what_to_write_is_asked_with_or_without_a_text(page: WritingPage) -> None:
    page.select("task", "rewrite")
    page("#instruction").fill(" Decline the offer. ")
    expect(page("input[name=task]:enabled")).to_have_count(0)
    page.write()
    page.wait_for_state("done")
    page("#source").fill("")
    page.write()
    page.wait_for_state("done")
    expect(page("#source-problem")).to_be_hidden()
    body = {"instruction": "Decline the offer.", "target": {"words": 40}, "landing": "natural", "stream": True}
    assert page.server.requests == [{"text": SOURCE, **body}, {"text": "", **body}]
    page("#instruction").fill(" ")
    expect(page("input[name=task]:enabled")).to_have_count(8)
    page.write()
    expect(page("#source-problem")).to_have_text("There is no text yet: paste one, or open a file.")
    page.check_accessibility()
    page.log.assert_clean()


def test_a_model_without_instructions_offers_no_field_for_them(
    new_page: Callable[..., WritingPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_server, "CAPABILITIES", {**fake_server.CAPABILITIES, "instructions": False})
    page = new_page()
    expect(page("#instruction")).to_be_hidden()
    page.write()
    page.wait_for_state("done")
    assert "instruction" not in page.server.requests[0]


def test_any_length_of_a_range_is_on_target(page: WritingPage) -> None:
    page("#use-range").click()
    expect(page("#last")).to_be_focused()
    expect(page("#last")).to_have_value("50")
    page("#length").fill("30")
    page("#last").fill("29")
    page.write()
    expect(page("#last:invalid")).to_be_focused()
    page("#last").fill("36")
    expect(page("#slider")).to_have_attribute("aria-valuetext", "30–36 words")
    for extra, report in (
        (0, "33 words, within your range of 30–36."),
        (9, "42 words, 6 more than the 30–36 you asked for. Choose At most to enforce the length."),
    ):
        landed = "missed" if extra else "natural"
        page.server.script.append(lambda handler, n=extra, how=landed: fake_server.write(handler, n, landed=how))
        page.write()
        page.tab.get_by_text(report.split(",")[0], exact=False).first.wait_for()
        assert report in page.report().replace(" The model chose to end here, with a probability of 87 %.", "")
    assert [request["target"] for request in page.server.requests] == [{"words": [30, 36]}] * 2
    expect(page("#single .ring")).to_have_attribute("aria-valuetext", "42 of 30–36 words, 6 too many")
    page("#slider").press("ArrowRight")
    expect(page("#last")).to_have_value("42")
    page("#length").fill("")
    page("#slider").press("ArrowLeft")
    expect(page("#last")).to_have_value(re.compile("^[1-9]"))
    page("#length").fill("35")
    page("#last").fill("42")
    page.select("unit", "characters")
    expect(page("#last")).to_have_value("250")
    page.check_accessibility()
    page.select("landing", "exact")
    expect(page("#last")).to_be_hidden()
    page("#use-range").click()
    expect(page("input[name=landing][value=natural]")).to_be_checked()
    page.select("view", "ladder")
    expect(page("#last")).to_be_hidden()
    expect(page("#use-range")).to_be_hidden()
    page.log.assert_clean()


def test_a_preset_sets_length_landing_and_task(page: WritingPage) -> None:
    page.tab.get_by_role("button", name="Meta description").click()
    expect(page("#source-length")).to_have_text("109 characters")
    page.write()
    page.wait_for_state("done")
    body = {"text": SOURCE, "task": "description", "target": {"characters": 160}, "landing": "at_most", "stream": True}
    assert page.server.requests == [body]
    page.tab.get_by_role("button", name="Title", exact=True).click()
    expect(page("#length")).to_have_value("10")
    expect(page("input[name=task][value=title]")).to_be_checked()
    expect(page("#landing-help")).to_have_text("The model chooses where to end, near the length.")


def test_a_preset_whose_task_is_not_offered_leaves_it_to_the_model(
    new_page: Callable[..., WritingPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_server, "CAPABILITIES", {**fake_server.CAPABILITIES, "tasks": ["summarize"]})
    page = new_page()
    page.tab.get_by_role("button", name="Meta description").click()
    page.write()
    page.wait_for_state("done")
    assert (page.server.requests[0]["task"], page.server.requests[0]["target"]) == (None, {"characters": 160})


def test_words_that_the_source_does_not_have_are_marked(page: WritingPage) -> None:
    page.server.script.append(fake_server.write_unsupported)
    page.write()
    page.wait_for_state("done")
    assert page("#single .text mark").all_inner_texts() == ["station", "railway"]
    assert page("#single .text mark").first.get_attribute("title") == "Not in the source"
    assert page.text() == fake_server.compose("words", 40)
    assert "Not in the source: railway, station." in page.report()
    page.check_accessibility()
    pieces = page.evaluate_module(
        "marked_text.js",
        "a.map(([text, ...words]) => m.markedPieces(text, words).filter(([, marked]) => marked).map(([word]) => word))",
        [["Bergen and Bergenser, in Bergen.", "Bergen"], ["A Bay of Bengal.", "Bengal", "Bay of Bengal"], ["a"]],
    )
    assert pieces == [["Bergen", "Bergen"], ["Bay of Bengal"], []]


@pytest.mark.parametrize(
    ("reply", "broken"),
    [
        (fake_server.write_text, False),
        (fake_server.write_too_long, True),
        (fake_server.write_unfinished, True),
        (fake_server.write_looping, True),
    ],
)
def test_a_text_that_is_cut_loops_or_missed_has_a_broken_ring(page: WritingPage, reply: Reply, broken: bool) -> None:
    page.server.script.append(reply)
    page.write()
    page.wait_for_state("done")
    expect(page("#single .broken")).to_be_visible(visible=broken)
    expect(page("#single .fill")).to_be_visible(visible=not broken)
    assert ("as requested" in page.report()) is not broken
    page.check_accessibility()


@pytest.mark.parametrize("clipboard", ["available", "undefined", "{ writeText: () => Promise.reject() }"])
def test_the_text_can_be_copied(new_page: Callable[..., WritingPage], clipboard: str) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.write()
    page.wait_for_state("done")
    if clipboard != "available":  # browsers offer none over plain HTTP, and may deny it
        page.tab.evaluate("window.clipboard = navigator.clipboard")
        page.tab.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }})")
    page("#single .copy").click()
    expect(page("#single .copy")).to_have_text("Copied")
    assert page.tab.evaluate("(window.clipboard ?? navigator.clipboard).readText()") == page.text()
    page.log.assert_clean()


def test_the_text_can_be_downloaded(page: WritingPage) -> None:
    page("#length").fill("20")
    page.write()
    page.wait_for_state("done")
    with page.tab.expect_download() as download:
        page("#single .download").click()
    assert download.value.suggested_filename == "text-20-words.txt"
    assert Path(download.value.path()).read_text(encoding="utf-8") == f"{page.text()}\n"
    page.log.assert_clean()


def test_everything_can_be_done_with_the_keyboard(new_page: Callable[..., WritingPage]) -> None:
    page = new_page("")
    press = page.tab.keyboard.press
    focused = "[document.activeElement.id, document.activeElement.name]"
    order = []
    for _ in range(17):
        press("Tab")
        identifier, name = page.tab.evaluate(focused)
        order.append(identifier or name)
        ring = page.tab.evaluate(
            "[document.activeElement, document.activeElement.nextElementSibling].some("
            "e => e && getComputedStyle(e).outlineStyle !== 'none')"
        )
        assert ring, f"{order[-1]} shows no focus"
        if identifier == "source":
            page.tab.keyboard.type(SOURCE)
        if name == "landing":
            press("ArrowRight")
    assert order == [
        *("view", "theme", "source", "open", "clear", "instruction", "length", "unit", "slider"),
        *("", "", "", "", "use-range"),
        *("landing", "task", "write"),
    ]
    page.server.pause_after = 5
    press("Control+Enter")
    expect(page("#single .count")).to_have_text("5")
    press("Escape")
    page.wait_for_state("stopped")
    page.server.pause_after = -1
    page("#write").focus()
    press("Enter")
    page.wait_for_state("done")
    assert [request["landing"] for request in page.server.requests] == ["exact", "exact"]
    for name in ("copy", "download"):
        press("Tab")
        assert page.tab.evaluate("document.activeElement.className").endswith(name)


def test_a_text_can_be_stopped(page: WritingPage) -> None:
    page.server.pause_after = 7
    page.write()
    expect(page("#single .count")).to_have_text("7")
    expect(page("#single .result-card")).to_have_attribute("aria-busy", "true")
    expect(page("#single .ring")).to_have_attribute("aria-valuetext", "7 of 40 words")
    assert page("#single .result-card").evaluate("card => card.style.getPropertyValue('--ratio')") == "0.175"
    expect(page("#stop")).to_be_focused()
    page("#length").fill("90")  # for the next text
    page("#stop").click()
    page.wait_for_state("stopped")
    assert page.report().startswith("Stopped at 7 words of 40.")
    assert len(page.text().split()) == 7
    expect(page("#write")).to_be_focused()
    page.server.pause_after = -1
    page.write()
    page.wait_for_state("done")
    assert len(page.text().split()) == 90
    assert page.log.failed_requests == [f"{page.server.url}v1/write"]
    assert (page.log.errors, page.log.outside_requests) == ([], [])


def test_screen_readers_hear_only_the_start_and_the_end(page: WritingPage) -> None:
    page.tab.evaluate(
        "window.spoken = []; const status = document.querySelector('#status');"
        "new MutationObserver(() => spoken.push(status.textContent)).observe(status, { childList: true })"
    )
    page.write()
    page.wait_for_state("done")
    expect(page("#write")).to_be_visible()
    assert [sentence.split(".")[0] for sentence in page.tab.evaluate("window.spoken")] == [
        "Writing",
        "40 words, as requested",
    ]
    assert page("#single [aria-live], #single [role=alert], #single [role=status]").count() == 0


@pytest.mark.parametrize(
    ("landing", "reply", "report"),
    [
        (
            "natural",
            fake_server.write_too_long,
            "43 words, 3 more than the 40 you asked for. Choose Exact or At most to enforce",
        ),
        (
            "exact",
            fake_server.write_text,
            "40 words, as requested. The length was enforced: the model's own probability of ending",
        ),
        (
            "at_most",
            fake_server.write_text,
            "20 words, within your limit of 40. The length was enforced: the model's own",
        ),
        (
            "natural",
            fake_server.write_unfinished,
            "40 words, but the text breaks off.",
        ),
        (
            "natural",
            fake_server.write_unsupported,
            "40 words, but 2 words are not in the source. The model",
        ),
        ("natural", fake_server.write_looping, "40 words, but the text repeats itself."),
    ],
)
def test_the_report_explains_length_and_ending(page: WritingPage, landing: str, reply: Reply, report: str) -> None:
    page.server.script.append(reply)
    page.select("landing", landing)
    page.write()
    page.wait_for_state("done")
    assert page.report().startswith(report)
    assert page.server.requests[0]["landing"] == landing
    assert ("removed" in page.report()) == (landing == "at_most")
    assert len(page.text().split()) == int(report.split()[0])


def test_words_that_are_not_in_the_source_are_said_once(page: WritingPage) -> None:
    report = {"length": 43, "target": 40, "unit": "words", "landed": "missed", "finished": False, "looping": False}
    report |= {"eos_probability": 0.1, "taken_back": 0, "unsupported": ["Bergen", "1998"], "note": ""}
    assert page.evaluate_module("report_text.js", "m.endingSentences(a, 'exact')", report) == (
        "Also, the text breaks off. Not in the source: Bergen, 1998."
    )


def test_a_text_over_its_length_is_shown_on_a_second_ring(page: WritingPage) -> None:
    page.server.script.append(fake_server.write_too_long)
    for label, excess in (("43 of 40 words, 3 too many", 0.075), ("40 of 40 words", 0)):
        page.write()
        page.wait_for_state("done")
        expect(page("#single .ring")).to_have_attribute("aria-valuetext", label)
        expect(page("#single .excess")).to_have_css("stroke-dasharray", re.compile(f"^{excess}(px)?, 1(px)?$"))
        page.check_accessibility()
    page.log.assert_clean()


def test_a_long_source_shows_the_stage(page: WritingPage) -> None:
    page.server.script.append(fake_server.write_in_parts)
    page.write()
    expect(page("#single .text")).to_contain_text("writing 3 parts of it first …")
    page.wait_for_state("waiting")
    page.server.resume.set()
    page.wait_for_state("done")
    assert "It was read in 3 parts" in page.report()
    assert len(page.text().split()) == 40
    page.log.assert_clean()


@pytest.mark.parametrize(
    ("reply", "message", "text"),
    [
        (fake_server.error_reply(413, "The text is too long."), "The text is too long.", ""),
        (
            fake_server.error_reply(429, "Full.", Retry_After="5"),
            "The server is busy with other texts. Try again in 5 seconds.",
            "",
        ),
        (lambda handler: handler.send(502, "<p>oops"), "The server answered with status 502.", ""),
        (fake_server.fail_midway, "The model ran out of memory. Ask for less.", "Once"),
        (fake_server.disconnect, "The connection closed before the text was complete.", "Once"),
    ],
    ids=["rejected", "busy", "no-json", "midway", "disconnected"],
)
def test_errors_are_shown_and_can_be_retried(page: WritingPage, reply: Reply, message: str, text: str) -> None:
    page.server.script.append(reply)
    page.write()
    page.wait_for_state("failed")
    assert page.report().startswith(f"{message} Try again")
    expect(page("#status")).to_have_text(message)
    assert page.text() == text
    page.tab.get_by_role("button", name="Try again").click()
    page.wait_for_state("done")
    assert len(page.text().split()) == 40
    assert (page.log.failed_requests, page.log.outside_requests) == ([], [])
    assert [error for error in page.log.errors if not error.startswith("Failed to load resource")] == []


def test_an_unreachable_server_is_reported(page: WritingPage) -> None:
    page.tab.route("**/v1/write", lambda route: route.abort())
    page.write()
    page.wait_for_state("failed")
    assert page.report().startswith("The server cannot be reached.")


def test_the_key_is_asked_for_once_and_kept_for_the_tab(new_page: Callable[..., WritingPage]) -> None:
    page = new_page(key="sesame")
    page.select("view", "ladder")
    page.write()
    expect(page("#key")).to_be_focused()
    page("#key").fill("wrong")
    page.tab.keyboard.press("Enter")
    expect(page("#key-help")).to_have_text("That key was not accepted. Try another.")
    assert page.server.requests == []
    page("#key").fill(" sesame ")
    page.tab.get_by_role("button", name="Use this key").click()
    expect(page("#rungs [data-state=done]")).to_have_count(4)
    expect(page("#key-dialog")).to_be_hidden()
    expect(page("#model")).to_have_text("Model: made-up-1.")
    stored = page.tab.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
    assert stored == [["sesame"], [], ""]
    assert page("#key").input_value() == ""
    assert [error for error in page.log.errors if "401" not in error] == []


def test_without_the_key_nothing_is_written(new_page: Callable[..., WritingPage]) -> None:
    page = new_page(key="sesame")
    page.write()
    expect(page("#key")).to_be_focused()
    page.tab.keyboard.press("Escape")
    page.wait_for_state("failed")
    assert page.report().startswith("This server needs a key.")
    assert page.server.requests == []


def test_a_late_reply_does_not_ask_again_for_a_key_that_was_cancelled(
    new_page: Callable[..., WritingPage],
) -> None:
    page = new_page(key="sesame")
    late: list[Route] = []
    page.tab.route("**/v1/write", lambda route: late.append(route), times=1)
    page.select("view", "ladder")
    page.write()
    expect(page("#key")).to_be_focused()
    page.tab.keyboard.press("Escape")
    expect(page("#rungs [data-state=failed]")).to_have_count(3)
    late[0].continue_()
    expect(page("#rungs [data-state=failed]")).to_have_count(4)
    expect(page("#key-dialog")).to_be_hidden()
    page.write()
    expect(page("#key")).to_be_focused()
