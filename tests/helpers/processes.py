"""Processes of this machine, found under those that started them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def child(parent: int, word: str) -> int | None:
    """A living process that `parent` started and whose command line holds `word`; the newest, None if there is none."""
    return max((number for number, command in children(parent) if word in command), default=None)


def children(parent: int) -> list[tuple[int, str]]:
    """Numbers and command lines of the living processes that `parent` started."""
    return [(number, command) for number, above, command in _table() if above == parent]


def resident_bytes(number: int) -> int:
    """Memory of a process that is resident, in bytes, what it shares with others included."""
    pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _table() -> Iterator[tuple[int, int, str]]:
    """Number, parent and command line of every process that is not over."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rsplit(")", 1)[1].split()[:2]
            command = (entry.parent / "cmdline").read_bytes()
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if state != "Z":
            yield int(entry.parent.name), int(parent), command.replace(b"\0", b" ").decode(errors="replace")
