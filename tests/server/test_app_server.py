"""The page and the real server: a person drags a length, and the text that a model writes lands on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import expect

from impatience import Request, Writer
from impatience.lengths import Landing
from impatience.server import Access
from support.browser import open_page
from support.page_desk import PATIENCE, Desk
from support.serving import KEY, NAME, eventually, make_writer, running
from support.toys import CORPUS

SOURCE = " ".join(CORPUS[:6])


@pytest.fixture(scope="module")
def writer() -> Writer:
    return make_writer()


@pytest.fixture
def opened(browser: Any, writer: Writer) -> Iterator[Any]:
    """Yield what opens the page of a server that is started for it."""
    with ExitStack() as stack:

        def open_it(access: Access | None = None, **options: Any) -> Desk:
            client, *_ = stack.enter_context(running(writer, access=access))
            allowed = ["clipboard-read", "clipboard-write"]
            page, seen = stack.enter_context(open_page(browser, permissions=allowed, **options))
            page.set_default_timeout(PATIENCE)
            page.goto(f"{client.address}/")
            return Desk(page, seen, client)

        yield open_it


def words(writer: Writer, target: int) -> str:
    """Return what the model writes of the source without a server."""
    return writer.write_many([Request("", SOURCE, target, landing=Landing.EXACT)])[0].text


def test_a_text_is_pasted_dragged_to_a_length_written_and_copied(opened: Any, writer: Writer) -> None:
    desk: Desk = opened()
    expect(desk("#model")).to_have_text(f"The model is {NAME}.")
    desk.paste(SOURCE)
    expect(desk("#source-length")).to_have_text(f"{len(SOURCE.split())} words")
    target = desk.drag(0.45)
    assert target > 40
    desk.pick("landing", "exact")
    desk.write()
    desk.expect_state("done")
    assert desk.text() == words(writer, target)
    assert len(desk.text().split()) == target
    assert desk("#one .count").inner_text() == str(target)
    assert desk.said().startswith(f"{target} words, just as you asked. It was held to your length")
    desk.check()
    desk("#one .copy").click()
    expect(desk("#one .copy")).to_have_text("Copied")
    assert desk.page.evaluate("navigator.clipboard.readText()") == desk.text()
    desk.seen.assert_clean()


def test_pieces_come_one_by_one_and_end_on_the_count_that_the_report_gives(opened: Any) -> None:
    desk: Desk = opened()
    desk("#source").fill(SOURCE)
    desk.page.evaluate(
        "window.counts = []; new MutationObserver(() => counts.push(document.querySelector('#one .count').textContent))"
        ".observe(document.querySelector('#one .count'), { childList: true })"
    )
    for landing in ("natural", "at_most"):
        desk.pick("landing", landing)
        desk.write()
        desk.expect_state("done")
        reply = desk.server.write(SOURCE, landing, words=40).json
        assert desk.text() == reply["text"]
        assert desk("#one .count").inner_text() == str(reply["report"]["length"])
        assert desk.said().startswith(f"{reply['report']['length']} word")
    counts = [int(count) for count in desk.page.evaluate("window.counts")]
    assert len(set(counts)) > 10, "it was seen to grow"
    desk.seen.assert_clean()


def test_the_ladder_is_written_at_once(opened: Any, writer: Writer) -> None:
    desk: Desk = opened()
    desk("#source").fill(SOURCE)
    desk.pick("landing", "exact")
    desk.pick("view", "ladder")
    desk("#length").fill("10")
    desk.write()
    expect(desk("#rungs [data-state=done]")).to_have_count(4)
    assert desk("#rungs .text").all_text_contents() == [words(writer, target) for target in (5, 10, 20, 40)]
    assert desk("#rungs .count").all_inner_texts() == ["5", "10", "20", "40"]
    desk.check()
    desk.seen.assert_clean()


def test_a_refused_text_says_why_and_a_stopped_one_frees_its_place(opened: Any, writer: Writer) -> None:
    desk: Desk = opened()
    desk("#source").fill(SOURCE)
    desk("#length").fill("5000")
    desk.write()
    desk.expect_state("failed")
    assert desk.said().startswith("5,000 words are more than this model can write")
    desk.check()
    desk.pick("unit", "tokens")
    desk("#length").fill("800")
    desk.pick("landing", "exact")
    steps, stopped = [], threading.Event()

    def step(*_: Any) -> None:
        steps.append(1)
        assert len(steps) < 50 or stopped.wait(30)

    hook = writer.model.base_model.register_forward_hook(step)
    desk.write()
    desk.expect_state("writing")
    desk("#stop").click()
    desk.expect_state("stopped")
    assert desk.said().startswith("Stopped at ")
    assert 0 < len(desk.text().split()) < 50
    eventually(lambda: b"impatience_requests_open 0.0" in desk.server("/metrics").body)
    stopped.set()
    desk("#length").fill("9")
    desk.write()
    desk.expect_state("done")
    hook.remove()
    assert desk("#one .count").inner_text() == "9"
    assert len(steps) < 100, "nobody wrote for the one that had left"


def test_the_key_of_a_server_opens_the_page(opened: Any) -> None:
    desk: Desk = opened(Access(key=KEY), color_scheme="dark")
    desk("#source").fill(SOURCE)
    desk.pick("landing", "exact")
    desk.write()
    expect(desk("#key")).to_be_focused()
    desk.check()
    desk("#key").fill(KEY)
    desk.page.keyboard.press("Enter")
    desk.expect_state("done")
    assert desk.said().startswith("40 words, just as you asked.")
    expect(desk("#model")).to_have_text(f"The model is {NAME}.")
    assert [error for error in desk.seen.errors if "401" not in error] == []
    assert (desk.seen.failed, desk.seen.elsewhere) == ([], [])
