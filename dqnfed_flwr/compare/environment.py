"""What a comparison ran on: versions, machine, and the commit of a checkout."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dqnfed_flwr.engine.run import usable_cores
from dqnfed_flwr.version import DISTRIBUTION, package_version

LIBRARIES = ("flwr", "torch", "numpy", "scipy")
ROOT = Path(__file__).parents[2]
PATIENCE = 10.0
"""Seconds that git may take."""


def environment() -> dict[str, Any]:
    """Versions, platform, processor, cores, accelerator and commit, in what JSON can hold."""
    return {
        "versions": {
            DISTRIBUTION: package_version(),
            **{name: version(name) for name in LIBRARIES},
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "accelerator": _accelerator(),
        "commit": commit(),
    }


def commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout that the package is run from, with `+` for changes; None if it is installed."""
    if not (root / ".git").exists():
        return None
    head, changes = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain")
    return head and head + ("+" if changes else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
