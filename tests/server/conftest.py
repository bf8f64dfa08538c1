"""Fixtures of the server's tests: a tiny writer, a running server with a client, and the page of a fake server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from impatience import Writer
from impatience.server.service import Service
from support.serving import Client, make_writer, running


@pytest.fixture(scope="session")
def writer() -> Writer:
    return make_writer()


@pytest.fixture(scope="module")
def server(writer: Writer) -> Iterator[tuple[Client, Service]]:
    with running(writer) as (client, service, _):
        yield client, service


@pytest.fixture
def client(server: tuple[Client, Service]) -> Client:
    return server[0]


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens the page of a fake server."""
    from support.page import page_opener

    with page_opener(browser) as new_page:
        yield new_page


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    """The page of a fake server, with a source text on it."""
    return new_page()
