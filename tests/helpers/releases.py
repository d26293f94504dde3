"""Another release of this package, as if it were installed: the same code under another version."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from dqnfed_flwr.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PACKAGES = ("dqnfed_flwr", "server_app", "client_app")


def next_patch() -> str:
    """The version after the one that is installed."""
    major, minor, patch = version(DISTRIBUTION).split(".")
    return f"{major}.{minor}.{int(patch) + 1}"


def release(place: Path, number: str) -> Path:
    """Lay out version `number` in a folder that goes to the front of PYTHONPATH; its apps have another hash."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    about = place / f"{DISTRIBUTION.replace('-', '_')}-{number}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {number}\n")
    return place
