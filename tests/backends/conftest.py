"""Tiny models in both backends, made once for all tests here."""

from __future__ import annotations

import pytest

from support.gguf_models import Pair, new_pair


@pytest.fixture(scope="session", params=["llama", "qwen2", "qwen3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return new_pair(tmp_path_factory.mktemp("gguf"), request.param)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return new_pair(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return new_pair(tmp_path_factory.mktemp("plain"), method="none")
