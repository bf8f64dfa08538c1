"""Hardware, versions and commit, for every report and run."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from impatience.version import __version__


def environment() -> dict[str, Any]:
    """Return hardware, versions and commit as plain values."""
    import torch
    import transformers

    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
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


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
