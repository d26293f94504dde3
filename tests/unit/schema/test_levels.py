"""How many settings there are, and that each is set somewhere: what nobody sets is a constant of its file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from dqnfed_flwr.config import KNOWN

ROOT = Path(__file__).parents[3]
SETTINGS, EVERYDAY = 165, 71
"""Most keys in all, and most of every day. The bounds only go down: a new key takes the place of another."""


def test_there_are_no_more_settings() -> None:
    assert len(KNOWN) <= SETTINGS
    assert sum(known.level == "everyday" for known in KNOWN.values()) <= EVERYDAY


def test_every_key_is_set_by_an_experiment_a_benchmark_a_test_or_a_page() -> None:
    assert KNOWN.keys() - {*_in_experiments(), *_in_text()} == set()


def _in_experiments() -> Iterator[str]:
    """What stands as a key, or under one, in shipped experiments and manifests of papers."""
    waiting = [yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / "dqnfed_flwr/experiments").rglob("*.yaml")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                yield str(key)
                yield from (f"{key}.{name}" for name in (inner if isinstance(inner, dict) else ()))
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _in_text() -> Iterator[str]:
    """What stands in quotes, or with a value after it, in benchmarks, tests and pages; settings.md only lists keys."""
    files = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    for file in (*files, ROOT / "README.md"):
        if file.name not in ("settings.md", Path(__file__).name):
            yield from re.findall(r"[\"'`@ ,{]([a-z][a-z0-9.-]+)(?=[\"'`=]|: )", file.read_text("utf-8"))
