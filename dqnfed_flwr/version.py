"""Version of the package, also where it lies on the path without being installed, and the commit of a checkout."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "dqnfed-flwr"
UNKNOWN = "0+unknown"
ROOT = Path(__file__).parents[1]
PATIENCE = 10.0
"""Seconds that git may take."""


@cache
def package_version() -> str:
    """As the installed distribution says; `UNKNOWN` where there is none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN


@cache
def package_commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout that the package is run from, with `+` for changes; None if it is installed.

    Looked up once in a process: later changes of the checkout do not concern the code that it has loaded.
    """
    if not (root / ".git").exists():
        return None
    head, changes = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain")
    return head and head + ("+" if changes else "")


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
