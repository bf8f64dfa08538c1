"""The command ``serve`` before it listens."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest

import impatience
from impatience import server
from impatience.cli.serve import import_server
from impatience.errors import OptionError
from impatience.writing import writer
from support.command_line import run


@pytest.mark.parametrize("package", ["fastapi", "prometheus_client", "uvicorn"])
def test_a_missing_package_brings_the_whole_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("impatience.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(impatience, "server", raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=rf'A server needs the package {package}: pip install -e "\.\[serve\]"'):
        import_server()


def test_each_option_sets_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(writer, "load", lambda *_, **__: None)
    monkeypatch.setattr(server, "listen", lambda *_: nullcontext())
    monkeypatch.setattr(server, "create_app", lambda *arguments: given.append(arguments[2]))
    monkeypatch.setattr(server, "serve", lambda *_: None)
    options = "--requests 1 --budget 2 --max-source 3 --max-target 4 --max-body 5 --seconds 6"
    run("serve", "--quiet", monkeypatch=monkeypatch)
    run("serve", "--quiet", *options.split(), monkeypatch=monkeypatch)
    assert given == [
        server.Limits(),
        server.Limits(
            **{"requests": 1, "budget": 2, "source_characters": 3, "target_tokens": 4, "body_bytes": 5, "seconds": 6}
        ),
    ]
