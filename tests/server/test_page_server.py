"""The page with a real server and a tiny model."""

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
from support.page import TIMEOUT, WritingPage
from support.serving import KEY, NAME, eventually, running
from support.toys import CORPUS

pytestmark = pytest.mark.browser

SOURCE = " ".join(CORPUS[:6])


@pytest.fixture
def new_page(browser: Any, writer: Writer) -> Iterator[Any]:
    """A function that starts a server and opens its page."""
    with ExitStack() as stack:

        def start(access: Access | None = None, **options: Any) -> WritingPage:
            client, *_ = stack.enter_context(running(writer, access=access))
            clipboard = ["clipboard-read", "clipboard-write"]
            tab, log = stack.enter_context(open_page(browser, permissions=clipboard, **options))
            tab.set_default_timeout(TIMEOUT)
            tab.goto(f"{client.address}/")
            return WritingPage(tab, log, client)

        yield start


def write_alone(writer: Writer, target: int) -> str:
    """Write the source to a number of words without a server."""
    return writer.write_many([Request("", SOURCE, target, landing=Landing.EXACT)])[0].text


def test_a_text_is_pasted_written_to_the_length_of_the_slider_and_copied(new_page: Any, writer: Writer) -> None:
    page: WritingPage = new_page()
    expect(page("#model")).to_have_text(f"Model: {NAME}.")
    page.paste(SOURCE)
    expect(page("#source-length")).to_have_text(f"{len(SOURCE.split())} words")
    target = page.drag_slider(0.45)
    assert target > 40
    page.select("landing", "exact")
    page.write()
    page.wait_for_state("done")
    assert page.text() == write_alone(writer, target)
    assert len(page.text().split()) == target
    assert page("#single .count").inner_text() == str(target)
    assert page.report().startswith(f"{target} words, but the text breaks off.")
    page.check_accessibility()
    page("#single .copy").click()
    expect(page("#single .copy")).to_have_text("Copied")
    assert page.tab.evaluate("navigator.clipboard.readText()") == page.text()
    page.log.assert_clean()


def test_the_count_grows_piece_by_piece_to_that_of_the_report(new_page: Any) -> None:
    page: WritingPage = new_page()
    page("#source").fill(SOURCE)
    page.tab.evaluate(
        "window.counts = []; const count = document.querySelector('#single .count');"
        "new MutationObserver(() => counts.push(count.textContent)).observe(count, { childList: true })"
    )
    for landing in ("exact", "at_most"):
        page.select("landing", landing)
        page.write()
        page.wait_for_state("done")
        reply = page.server.write(SOURCE, landing, words=40).json
        assert page.text() == reply["text"]
        assert page("#single .count").inner_text() == str(reply["report"]["length"])
        assert page.report().startswith(f"{reply['report']['length']} word")
    counts = [int(count) for count in page.tab.evaluate("window.counts")]
    assert len(set(counts)) > 10, "the count grew"
    page.log.assert_clean()


def test_the_ladder_writes_all_lengths(new_page: Any, writer: Writer) -> None:
    page: WritingPage = new_page()
    page("#source").fill(SOURCE)
    page.select("landing", "exact")
    page.select("view", "ladder")
    page("#length").fill("10")
    page.write()
    expect(page("#rungs [data-state=done]")).to_have_count(4)
    assert page("#rungs .text").all_text_contents() == [write_alone(writer, target) for target in (5, 10, 20, 40)]
    assert page("#rungs .count").all_inner_texts() == ["5", "10", "20", "40"]
    page.check_accessibility()
    page.log.assert_clean()


def test_a_rejected_request_shows_the_reason_and_a_stopped_one_frees_its_slot(new_page: Any, writer: Writer) -> None:
    page: WritingPage = new_page()
    page("#source").fill(SOURCE)
    page("#length").fill("5000")
    page.write()
    page.wait_for_state("failed")
    assert page.report().startswith("5,000 words are more than this model can write")
    page.check_accessibility()
    page.select("unit", "tokens")
    page("#length").fill("800")
    page.select("landing", "exact")
    steps, stopped = [], threading.Event()

    def step(*_: Any) -> None:
        steps.append(1)
        assert len(steps) < 50 or stopped.wait(30)

    hook = writer.model.base.register_forward_hook(step)
    page.write()
    page.wait_for_state("writing")
    page("#stop").click()
    page.wait_for_state("stopped")
    assert page.report().startswith("Stopped at ")
    assert 0 < len(page.text().split()) < 50
    eventually(lambda: b"impatience_requests_open 0.0" in page.server("/metrics").body)
    stopped.set()
    page("#length").fill("9")
    page.write()
    page.wait_for_state("done")
    hook.remove()
    assert page("#single .count").inner_text() == "9"
    assert len(steps) < 100, "the stopped text was not written on"


def test_a_text_is_written_after_the_key_is_entered(new_page: Any) -> None:
    page: WritingPage = new_page(Access(key=KEY), color_scheme="dark")
    page("#source").fill(SOURCE)
    page.select("landing", "exact")
    page.write()
    expect(page("#key")).to_be_focused()
    page.check_accessibility()
    page("#key").fill(KEY)
    page.tab.keyboard.press("Enter")
    page.wait_for_state("done")
    assert page.report().startswith("40 words, ")
    expect(page("#model")).to_have_text(f"Model: {NAME}.")
    assert [error for error in page.log.errors if "401" not in error] == []
    assert (page.log.failed_requests, page.log.outside_requests) == ([], [])
