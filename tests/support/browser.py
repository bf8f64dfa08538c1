"""A real Chromium for tests, without a window and without the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOCAL = ("file:", "data:", "blob:", "about:", "http://127.0.0.1", "http://localhost")


def chromium() -> str:
    """Return the executable: what IMPATIENCE_CHROMIUM names, or one on the path."""
    named = os.environ.get("IMPATIENCE_CHROMIUM")
    found = shutil.which(named) if named else shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, (
        f"Tests of pages need Chromium, and {named or 'none'} was found: apt-get install chromium, "
        "or set IMPATIENCE_CHROMIUM to an executable."
    )
    return found


@dataclass
class Seen:
    """What a page did: errors it logged or raised, requests that failed, and those that went elsewhere."""

    errors: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        assert (self.errors, self.failed, self.elsewhere) == ([], [], [])


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium with a profile of its own, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[tuple[Any, Seen]]:
    """Open an empty page in a fresh context that can reach nothing but this machine.

    Args:
        browser: From ``open_browser``.
        **options: Of the context, e.g. ``color_scheme="dark"`` or ``viewport={"width": 390, "height": 800}``.
    """
    seen = Seen()
    context = browser.new_context(**options)

    def guard(route: Any) -> None:
        url = route.request.url
        if url.startswith(LOCAL):
            route.continue_()
        else:
            seen.elsewhere.append(url)
            route.abort()

    context.route("**/*", guard)
    page = context.new_page()
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("requestfailed", lambda request: seen.failed.append(request.url))
    try:
        yield page, seen
    finally:
        context.close()
