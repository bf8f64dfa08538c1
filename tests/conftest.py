"""Fixtures shared by all tests. No test may reach the network."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Some processors advertise AMX but fault on it; bfloat16 products stay below it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging

from impatience.alignment import Evaluated, load
from made_up_reports import family

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("steady")
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
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three made-up reports; a test that changes one makes a copy."""
    return family(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="session")
def evaluated(folders: list[Path]) -> tuple[Evaluated, ...]:
    return load(folders)
