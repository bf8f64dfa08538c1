"""The page that `impatience serve` shows, open in a browser: what a person does with it, and what axe says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from support import page_server
from support.browser import Seen, open_page

SOURCE = "The lighthouse at Orm has no keeper now. A lamp of its own looks after it, and the gulls look after the lamp."

PATIENCE = 20_000
"""Milliseconds after which something that should happen has not; long, for machines that do much else."""
expect.set_options(timeout=PATIENCE)


@dataclass
class Desk:
    """An open page, what it did, and the server it talks to, which is a stand-in unless a test says otherwise."""

    page: Any
    seen: Seen
    server: Any

    def __call__(self, selector: str) -> Any:
        return self.page.locator(selector)

    def pick(self, name: str, value: str) -> None:
        self(f"input[name={name}][value={value}]").check()

    def paste(self, text: str) -> None:
        """Paste a text as the source; the page must be allowed to use the clipboard."""
        self.page.evaluate("text => navigator.clipboard.writeText(text)", text)
        self("#source").focus()
        self.page.keyboard.press("ControlOrMeta+v")

    def drag(self, place: float) -> int:
        """Drag the slider to a place, from 0 to 1, and return the length that is there."""
        box = self("#slider").bounding_box()
        middle = box["y"] + box["height"] / 2
        thumb = box["x"] + box["width"] * float(self("#slider").evaluate("slider => slider.value / slider.max"))
        self.page.mouse.move(thumb, middle)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + place * box["width"], middle, steps=5)
        self.page.mouse.up()
        return int(self("#length").input_value())

    def write(self) -> None:
        self("#write").click()

    def expect_state(self, state: str) -> None:
        self(f"#one .sheet[data-state={state}]").wait_for()

    def said(self) -> str:
        """Return what is said below the text, and the names of the buttons there."""
        return " ".join(self("#one .end").inner_text().split())

    def text(self) -> str:
        return str(self("#one .text").text_content())

    def check(self) -> None:
        """Everybody can use the page as it is now: axe finds nothing serious, and nothing scrolls sideways."""
        found = Axe().run(self.page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
        assert self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    def module(self, name: str, use: str, argument: Any = None) -> Any:
        """Use a module of the page's own: ``use`` is an expression of ``m``, the module, and ``a``, the argument."""
        return self.page.evaluate(f"async a => {{ const m = await import('/static/{name}'); return {use}; }}", argument)


@contextmanager
def desks(browser: Any) -> Iterator[Callable[..., Desk]]:
    """Yield what opens the page with a source on it, a key of the server, and options of a browser context."""
    with ExitStack() as stack:
        server = stack.enter_context(page_server.serve())

        def open_it(source: str = SOURCE, key: str | None = None, **options: Any) -> Desk:
            server.key = key
            page, seen = stack.enter_context(open_page(browser, **options))
            page.set_default_timeout(PATIENCE)
            page.goto(server.url)
            if not key:
                page.locator("#model", has_text="The model is made-up-1.").wait_for()
            if source:
                page.locator("#source").fill(source)
            return Desk(page, seen, server)

        yield open_it
