"""Memory of processes, as the kernel counts it. Linux only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def proportional(processes: Iterable[int]) -> int:
    """Bytes of these processes; what several share counts by its share."""
    return sum(_pss(process) for process in processes)


def of_groups(groups: Iterable[int]) -> list[int]:
    """Living processes of these process groups."""
    wanted = set(groups)
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = entry.read_text().rsplit(")", 1)[1].split()[:3]
        except (OSError, ValueError):
            continue
        if int(group) in wanted and state != "Z":
            found.append(int(entry.parent.name))
    return found


def _pss(process: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{process}/smaps_rollup").read_text())
    except OSError:  # it ended meanwhile
        return 0
    return int(found[1]) * 1024 if found else 0
