"""The command ``serve`` before it listens."""

from __future__ import annotations

import sys

import pytest

import impatience
from impatience.cli.serve import import_server
from impatience.errors import OptionError


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
