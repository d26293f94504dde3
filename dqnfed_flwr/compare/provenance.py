"""What made the figures of a comparison: commits, versions, data and seconds of its runs, and the machine here."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.engine.result import versions_here
from dqnfed_flwr.engine.run import usable_cores
from dqnfed_flwr.version import package_commit

NOT_RECORDED = "not recorded"


def environment() -> dict[str, Any]:
    """Versions, platform, processor, cores, accelerator and commit, in what JSON can hold."""
    import torch

    return {
        "versions": {**versions_here(), "scipy": version("scipy")},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": package_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def commits_of(comparison: Comparison) -> Counter[str]:
    """Commits of the final runs, with how many runs each made; one that was resumed names all it had, in order."""
    return Counter(
        ", then ".join(commit or NOT_RECORDED for commit in record.noted.get("commits") or [None])
        for record in comparison.records
    )


def commits_text(comparison: Comparison) -> str:
    """The commits of the runs in words; empty if none of them is known."""
    found = commits_of(comparison)
    return _listed(found) if found.keys() - {NOT_RECORDED} else ""


def seconds_of(comparison: Comparison) -> float:
    """The seconds that the final runs took, one after the other, whenever they took place."""
    return sum(record.figures["seconds"] for record in comparison.records)


def mixture_notes(comparison: Comparison) -> list[str]:
    """What the reader of a table must know where its runs were not all made by the same code on the same data."""
    records = comparison.records
    found = {"commits": commits_of(comparison)}
    versions = [record.noted.get("versions") or {} for record in records]
    for name in dict.fromkeys(name for each in versions for name in each):
        found[f"versions of {name}"] = Counter(str(each.get(name, NOT_RECORDED)) for each in versions)
    found["data, by their fingerprint"] = Counter(x for record in records if (x := record.noted.get("fingerprint")))
    return [f"Runs of several {what}: {_listed(counts)}." for what, counts in found.items() if len(counts) > 1]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count} run{'s' if count > 1 else ''})" for name, count in counts.items())
