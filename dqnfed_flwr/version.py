"""Version of the package, also where it lies on the path without being installed, and the commit of a checkout."""

from __future__ import annotations

import subprocess
import tomllib
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
    """Of the code that is run: as the pyproject.toml beside it says, or the distribution; `UNKNOWN` without either.

    The app of a run brings code and pyproject.toml along, and another version may be installed where it runs.
    """
    if found := _beside(ROOT / "pyproject.toml"):
        return found
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN


def _beside(project: Path) -> str:
    """The version that a project file gives this package; empty if it is none of its own."""
    try:
        found = tomllib.loads(project.read_text("utf-8"))["project"]
        return str(found["version"]) if found["name"] == DISTRIBUTION else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


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
