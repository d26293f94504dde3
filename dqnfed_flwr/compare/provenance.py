"""What made the figures of a comparison: commits, versions and data of its runs, and the seconds that they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison

UNKNOWN = "not recorded"


def commits_of(comparison: Comparison) -> dict[str, int]:
    """Commits of the final runs, with how many runs each made; one that was resumed names all it had, in order."""
    return _counted(
        ", then ".join(commit or UNKNOWN for commit in record.noted.get("commits") or [None])
        for record in _records(comparison)
    )


def commits_text(comparison: Comparison) -> str:
    """The commits of the runs in words; empty if none of them is known."""
    found = commits_of(comparison)
    return _listed(found) if found.keys() - {UNKNOWN} else ""


def seconds_of(comparison: Comparison) -> float:
    """The seconds that the final runs took, one after the other, whenever they took place."""
    return sum(record.figures["seconds"] for record in _records(comparison))


def mixture_notes(comparison: Comparison) -> list[str]:
    """What the reader of a table must know where its runs were not all made by the same code on the same data."""
    records = _records(comparison)
    found = {"commits": commits_of(comparison)}
    versions = [record.noted.get("versions") or {} for record in records]
    for name in dict.fromkeys(name for each in versions for name in each):
        found[f"versions of {name}"] = _counted(str(each.get(name, UNKNOWN)) for each in versions)
    found["data, by their fingerprint"] = _counted(x for record in records if (x := record.noted.get("fingerprint")))
    return [f"Runs of several {what}: {_listed(counts)}." for what, counts in found.items() if len(counts) > 1]


def _records(comparison: Comparison) -> list[Record]:
    return [record for row in comparison.rows for record in row.good]


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names))


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count} run{'s' if count > 1 else ''})" for name, count in counts.items())
