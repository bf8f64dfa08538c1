"""The web page of ``impatience serve``, open in a browser: actions of a reader, and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from support import fake_server
from support.browser import PageLog, open_page

SOURCE = "The lighthouse at Orm has no keeper now. A lamp of its own looks after it, and the gulls look after the lamp."

TIMEOUT = 20_000
"""Milliseconds to wait for the page; long, for busy machines."""
expect.set_options(timeout=TIMEOUT)


@dataclass
class WritingPage:
    """An open page.

    Attributes:
        tab: Page of Playwright.
        log: Errors and requests of the page.
        server: Server of the page: a ``FakeServer``, or a client of a real one.
    """

    tab: Any
    log: PageLog
    server: Any

    def __call__(self, selector: str) -> Any:
        return self.tab.locator(selector)

    def select(self, name: str, value: str) -> None:
        self(f"input[name={name}][value={value}]").check()

    def paste(self, text: str) -> None:
        """Paste a text as the source; the page must be allowed to use the clipboard."""
        self.tab.evaluate("text => navigator.clipboard.writeText(text)", text)
        self("#source").focus()
        self.tab.keyboard.press("ControlOrMeta+v")

    def drag_slider(self, share: float) -> int:
        """Drag the slider to a share of its width, from 0 to 1, and return the length it sets."""
        box = self("#slider").bounding_box()
        middle = box["y"] + box["height"] / 2
        thumb = box["x"] + box["width"] * float(self("#slider").evaluate("slider => slider.value / slider.max"))
        self.tab.mouse.move(thumb, middle)
        self.tab.mouse.down()
        self.tab.mouse.move(box["x"] + share * box["width"], middle, steps=5)
        self.tab.mouse.up()
        return int(self("#length").input_value())

    def write(self) -> None:
        self("#write").click()

    def wait_for_state(self, state: str) -> None:
        self(f"#single .result-card[data-state={state}]").wait_for()

    def report(self) -> str:
        """Return the sentences below the text, and the names of the buttons there."""
        return " ".join(self("#single .report").inner_text().split())

    def text(self) -> str:
        return str(self("#single .text").text_content())

    def check_accessibility(self) -> None:
        """Check the page as it is now: axe finds nothing serious, and nothing scrolls sideways."""
        violations = Axe().run(self.tab).response["violations"]
        serious = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
        assert [(violation["id"], violation["nodes"][0]["html"]) for violation in serious] == []
        assert self.tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    def evaluate_module(self, name: str, expression: str, argument: Any = None) -> Any:
        """Evaluate an expression of ``m``, one of the page's modules, and ``a``, the argument."""
        code = f"async a => {{ const m = await import('/static/{name}'); return {expression}; }}"
        return self.tab.evaluate(code, argument)


@contextmanager
def page_opener(browser: Any) -> Iterator[Callable[..., WritingPage]]:
    """Yield a function that opens the page of a fake server.

    It takes the source text, the key of the server, and options of the browser context.
    """
    with ExitStack() as stack:
        server = stack.enter_context(fake_server.serve())

        def new_page(source: str = SOURCE, key: str | None = None, **options: Any) -> WritingPage:
            server.key = key
            tab, log = stack.enter_context(open_page(browser, **options))
            tab.set_default_timeout(TIMEOUT)
            tab.goto(server.url)
            if not key:
                tab.locator("#model", has_text="Model: made-up-1.").wait_for()
            if source:
                tab.locator("#source").fill(source)
            return WritingPage(tab, log, server)

        yield new_page
