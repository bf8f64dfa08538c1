"""Hardware, versions and commit, for every report and run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from impatience.registry import is_installed
from impatience.version import __version__

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def environment() -> dict[str, Any]:
    """Return hardware, versions and commit as plain values; a library that is not installed has None."""
    threads, gpu = thread_count(), None
    if is_installed("torch"):
        import torch

        threads = torch.get_num_threads()
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    llama = _version("xllamacpp")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "llama.cpp": llama and f"in xllamacpp {llama}",
        "impatience": __version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit of this checkout, with ``-dirty`` if files have changed; None outside a checkout."""
    file = Path(__file__).resolve()
    run = partial(subprocess.run, cwd=file.parent, capture_output=True, text=True, check=True)
    try:
        run(["git", "ls-files", "--error-unmatch", file.name])  # fails in the repository of another project
        return str(run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).stdout).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def thread_count() -> int:
    """Return the number of processors that this process may use, or what ``OMP_NUM_THREADS`` says."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    if sys.platform != "linux":
        return os.cpu_count() or 1
    return min(len(os.sched_getaffinity(0)), _quota())


def _quota() -> int:
    """Return the number of processors that a container may use, rounded up; many where there is no limit."""
    try:
        most, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, -(-int(most) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 16


def _version(package: str) -> str | None:
    return version(package) if is_installed(package) else None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
