"""A real, headless Chromium for tests, without access to the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FLAGS = (
    "--no-sandbox",  # Chromium does not run as root in its sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOCAL_URLS = ("file:", "data:", "blob:", "about:", "http://127.0.0.1", "http://localhost")


def chromium() -> str:
    """Return the path of Chromium: the one that IMPATIENCE_CHROMIUM names, or one on the PATH."""
    named = os.environ.get("IMPATIENCE_CHROMIUM")
    path = shutil.which(named) if named else shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, (
        f"Tests of pages need Chromium, and {named or 'chromium'} was not found: apt-get install chromium, "
        "or set IMPATIENCE_CHROMIUM to an executable."
    )
    return path


@dataclass
class PageLog:
    """Errors that a page logged or raised, requests that failed, and requests to other machines."""

    errors: list[str] = field(default_factory=list)
    failed_requests: list[str] = field(default_factory=list)
    outside_requests: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        assert (self.errors, self.failed_requests, self.outside_requests) == ([], [], [])


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium with a new profile, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[tuple[Any, PageLog]]:
    """Open an empty page in a new context that can reach only this machine.

    Args:
        browser: Browser from ``open_browser``.
        **options: Options of the context, e.g. ``color_scheme="dark"`` or ``viewport={"width": 390, "height": 800}``.
    """
    log = PageLog()
    context = browser.new_context(**options)

    def guard(route: Any) -> None:
        url = route.request.url
        if url.startswith(LOCAL_URLS):
            route.continue_()
        else:
            log.outside_requests.append(url)
            route.abort()

    context.route("**/*", guard)
    page = context.new_page()
    page.on("console", lambda message: log.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: log.errors.append(str(error)))
    page.on("requestfailed", lambda request: log.failed_requests.append(request.url))
    try:
        yield page, log
    finally:
        context.close()
