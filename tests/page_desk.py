"""The page that `impatience serve` shows, open in a browser and talking to a stand-in for the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import expect

import page_server
from browser import Seen, open_page
from page_server import Server

SOURCE = "The lighthouse at Orm has no keeper now. A lamp of its own looks after it, and the gulls look after the lamp."

PATIENCE = 20_000
"""Milliseconds after which something that should happen has not; long, for machines that do much else."""
expect.set_options(timeout=PATIENCE)


@dataclass
class Desk:
    """An open page, what it did, and the server it talks to."""

    page: Any
    seen: Seen
    server: Server

    def __call__(self, selector: str) -> Any:
        return self.page.locator(selector)

    def pick(self, name: str, value: str) -> None:
        self(f"input[name={name}][value={value}]").check()

    def write(self) -> None:
        self("#write").click()

    def expect_state(self, state: str) -> None:
        self(f"#one .sheet[data-state={state}]").wait_for()

    def said(self) -> str:
        """Return what is said below the text, and the names of the buttons there."""
        return " ".join(self("#one .end").inner_text().split())

    def text(self) -> str:
        return str(self("#one .text").text_content())

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
