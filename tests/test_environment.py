"""The description of hardware, versions and commit in every report."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from impatience import environment


def test_environment_names_hardware_versions_and_commit() -> None:
    facts = environment.environment()
    assert json.loads(json.dumps(facts)) == facts
    for name in ("cpu", "cores", "threads", "system", "python", "torch", "transformers", "impatience"):
        assert facts[name], name
    assert facts["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", facts["commit"])


def test_no_git_means_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert environment.environment()["commit"] is None
