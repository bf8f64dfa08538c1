"""Fixtures shared by all tests. No test may reach the network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Output must not depend on the terminal or the locale of the machine.
os.environ.update(FORCE_COLOR="", GITHUB_ACTIONS="", NO_COLOR="", PY_COLORS="", TERMINAL_WIDTH="", TTY_COMPATIBLE="")
os.environ.update(COLUMNS="80", LINES="24", LC_ALL="C.UTF-8", TERM="xterm")
# Some processors advertise AMX but fault on it; bfloat16 products stay below it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Several tests run at a time: threads of llama.cpp that wait for each other would hold each other up.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PIP_NO_INDEX"] = "1"

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging

from impatience import attach
from impatience.cli.garbage_collection import collect_garbage_rarely
from impatience.sources import toy
from support.browser import open_browser

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("steady")
collect_garbage_rarely()
torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1"):  # type: ignore[index]
            raise AssertionError(f"a test reached for the network: {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained decoder-only model that was saved; no test changes it."""
    folder = tmp_path_factory.mktemp("toy")
    base, tokenizer = toy.build("toy-llama")
    attach(base, "pre", tokenizer=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    with open_browser() as browser:
        yield browser
