"""What a check finds, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dqnfed_flwr.errors import ConfigError


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
    fix: str = ""


Findings = Iterator[Finding]


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, what)


def warning(what: str, fix: str) -> Finding:
    """Something to look at."""
    return Finding(Level.WARNING, what, fix)


def failure(what: str, fix: str) -> Finding:
    """Something that keeps the federation from working, or its secrets from being secret."""
    return Finding(Level.FAILURE, what, fix)


def failed(findings: Sequence[Finding]) -> bool:
    """Whether anything must be fixed."""
    return any(finding.level is Level.FAILURE for finding in findings)


def guarded(findings: Findings, fix: str) -> Findings:
    """Findings about keys, certificates or data; what cannot be read is a finding too, in place of all of them."""
    try:
        yield from list(findings)
    except PermissionError as error:
        yield failure(
            f"{error.filename} cannot be read by this user",
            "run this as the owner of the folder; if you are, `chown` the file as root",
        )
    except (OSError, ConfigError) as error:
        yield failure(f"cannot be read: {error}", fix)
