"""The metrics files of a directory: read when they change, pruned when they are old."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from dqnfed_flwr.exporter.exposition import RunFile, Stamp, parse_run
from dqnfed_flwr.telemetry.textfile import HEADER, METRICS_SUFFIX, ROUNDS_SUFFIX, TRAILER

LARGEST = 16 << 20
"""Bytes of a file that is read; with series for 10,000 clients one has 5 MB."""
DAY = 86_400.0


class RunFiles:
    """The runs of a metrics directory.

    Parameters
    ----------
    directory : Path
        Exists.
    limit : int
        Runs served at most, those changed last.
    """

    def __init__(self, directory: Path, limit: int = 50) -> None:
        self.directory = directory
        self._limit = limit
        self._read: dict[str, RunFile] = {}
        self._lock = threading.Lock()
        self.withheld = 0

    def current(self) -> list[RunFile]:
        """All runs, the last changed first; a file is read again only when it has changed.

        Raises
        ------
        OSError
            If the directory cannot be read.
        """
        with self._lock:
            found = sorted(self._entries(), key=lambda entry: (-entry[1][2], entry[0]))
            self.withheld = max(0, len(found) - self._limit)
            runs: dict[str, RunFile] = {}
            for name, stamp in found[: self._limit]:
                known = self._read.get(name)
                if known is not None and known.stamp == stamp:
                    runs[name] = known
                else:
                    runs[name] = read_run(self.directory / f"{name}{METRICS_SUFFIX}", stamp)
            self._read = runs
            return list(runs.values())

    def prune(self, days: float, now: float | None = None) -> int:
        """Remove files that have not changed for so many days; returns how many.

        A run that is still alive writes its files anew, with all it has counted, when its next round is settled. Files
        that this package did not write are left alone.
        """
        oldest = (time.time() if now is None else now) - days * DAY
        removed = 0
        for name, stamp in list(self._entries()):
            path = self.directory / f"{name}{METRICS_SUFFIX}"
            if stamp[2] / 1e9 < oldest and _ours(path):
                for file in (path, self.directory / f"{name}{ROUNDS_SUFFIX}"):
                    removed += _removed(file)
        return removed

    def _entries(self) -> Iterator[tuple[str, Stamp]]:
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.endswith(METRICS_SUFFIX) and not entry.name.startswith("."):
                    try:
                        status = entry.stat()
                    except OSError:  # gone meanwhile
                        continue
                    if not S_ISREG(status.st_mode):  # a pipe would keep its reader waiting
                        continue
                    name = entry.name.removesuffix(METRICS_SUFFIX)
                    yield name, (status.st_ino, status.st_size, status.st_mtime_ns)


def read_run(path: Path, stamp: Stamp) -> RunFile:
    """Read a file and label its samples; never raises, a damaged one says so in `fault`."""
    name = path.name.removesuffix(METRICS_SUFFIX)
    if not _is_text(name):
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        return RunFile(shown, stamp, fault="its name is not UTF-8; rename or remove it")
    try:
        return parse_run(name, _text(path, stamp), stamp)
    except (OSError, ValueError, LookupError) as error:
        return RunFile(name, stamp, fault=str(error) or type(error).__name__)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(path: Path, stamp: Stamp) -> str:
    if stamp[1] > LARGEST:
        raise ValueError(f"{stamp[1]} bytes, {LARGEST} are allowed")
    text = path.read_bytes().decode("utf-8")
    if not text.startswith(HEADER):
        raise ValueError("not a metrics file of dqnfed-flwr")
    if not text.endswith(TRAILER):
        raise ValueError("cut short")
    return text


def _ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(HEADER)) == HEADER.encode()
    except OSError:
        return False


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
