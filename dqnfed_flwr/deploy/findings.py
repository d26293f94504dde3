"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a finding counts."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at, and what to do about it where it is not well."""

    level: Level
    what: str
    mend: str = ""


Findings = Iterator[Finding]


def failed(findings: list[Finding]) -> bool:
    """Whether anything must be mended."""
    return any(finding.level is Level.FAILURE for finding in findings)
