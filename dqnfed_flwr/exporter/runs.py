"""The metrics files of a directory: read when they change, labelled with their run, joined, pruned when they are old.

prometheus-client's parser is not used: it takes ten times as long, keeps seven times the memory, and lets pass what
would spoil the scrape of all other runs (names that are not ours, time stamps, a family that stands there twice).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from dqnfed_flwr.telemetry.metric_files import HEADER, METRICS_SUFFIX, ROUNDS_SUFFIX, TRAILER

LARGEST = 16 << 20
"""Bytes of a file that is read; with series for 10,000 clients one has 5 MB."""
DAY = 86_400.0

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(
    rf"(?P<name>dqnfed_[a-zA-Z0-9_]+)(?:\{{(?P<labels>{_LABEL}(?:,{_LABEL})*)\}})? "
    r"(?P<value>[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN)"
)
_HEAD = re.compile(r"# (?P<word>HELP|TYPE) (?P<name>dqnfed_[a-zA-Z0-9_]+) (?P<text>.*)")
_VALUE = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"')
_RUN = re.compile(r'(?:^|,)run="')
_PARTS = ("", "_bucket", "_sum", "_count")
"""What may follow the family's name in a sample's."""

Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Family:
    """HELP and TYPE lines of a family, and the lines of its samples, labelled."""

    head: str
    kind: str = ""
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RunFile:
    """A run's file as it was read.

    Attributes
    ----------
    name : str
        Of the run.
    stamp : tuple[int, int, int]
        Inode, size and time of change, which tell a new file from the one that was read.
    families, figures : dict[str, Family], dict[str, float]
        Families, none where the file is damaged, and samples without labels, by name.
    info, state : dict[str, str], str
        Labels of `dqnfed_run_info`, and the state that is 1.
    fault : str
        Why it could not be read, empty otherwise.
    """

    name: str
    stamp: Stamp
    families: dict[str, Family] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    state: str = ""
    fault: str = ""


class RunFiles:
    """The runs of a metrics directory, which exists; so many are served at most, those changed last."""

    def __init__(self, directory: Path, limit: int = 50) -> None:
        self.directory = directory
        self._limit = limit
        self._read: dict[str, RunFile] = {}
        self._lock = threading.Lock()
        self.withheld = 0

    def current(self) -> list[RunFile]:
        """All runs, the last changed first; a file is read again only when it has changed.

        OSError if the directory cannot be read.
        """
        with self._lock:
            found = sorted(self._entries(), key=lambda entry: (-entry[1][2], entry[0]))
            self.withheld = max(0, len(found) - self._limit)
            runs: dict[str, RunFile] = {}
            for name, stamp in found[: self._limit]:
                known = self._read.get(name)
                if known is None or known.stamp != stamp:
                    known = read_run(self.directory / f"{name}{METRICS_SUFFIX}", stamp)
                runs[name] = known
            self._read = runs
            return list(runs.values())

    def prune(self, days: float) -> int:
        """Remove files that have not changed for so many days; returns how many.

        A run that is still alive writes its files anew, with all it has counted, when its next round is settled. Files
        that this package did not write are left alone.
        """
        oldest = time.time() - days * DAY
        removed = 0
        for name, stamp in list(self._entries()):
            path = self.directory / f"{name}{METRICS_SUFFIX}"
            if stamp[2] / 1e9 < oldest and _ours(path):
                for file in (path, self.directory / f"{name}{ROUNDS_SUFFIX}"):
                    with suppress(OSError):
                        file.unlink()
                        removed += 1
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


def join(runs: list[RunFile]) -> str:
    """One exposition of all runs: each family once, its samples from every run.

    A family that two versions of this package gave different types is served from the run changed last.
    """
    families: dict[str, Family] = {}
    for run in runs:
        for name, family in run.families.items():
            joined = families.setdefault(name, Family(family.head, family.kind))
            if joined.kind == family.kind:
                joined.lines += family.lines
    return "".join(family.head + "".join(family.lines) for family in families.values())


def read_run(path: Path, stamp: Stamp) -> RunFile:
    """Read a file and label its samples; never raises, a damaged one says so in `fault`."""
    name = path.name.removesuffix(METRICS_SUFFIX)
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    if shown != name:
        return RunFile(shown, stamp, fault="its name is not UTF-8; rename or remove it")
    try:
        return parse_run(name, _text(path, stamp), stamp)
    except (OSError, ValueError, LookupError) as error:
        return RunFile(name, stamp, fault=str(error) or type(error).__name__)


def parse_run(name: str, text: str, stamp: Stamp) -> RunFile:
    """A run's file, its samples labelled.

    ValueError if it holds anything else than families of this package, each once and with its samples below it;
    KeyError if a state has no name.
    """
    run = RunFile(name, stamp)
    escaped = name.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    label = f'run="{escaped}"'
    current, family = "", Family("")
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            metric, labels, value = match.groups()
            if labels and _RUN.search(labels):
                raise ValueError(f"{metric} names a run")
            if not family.kind or metric.removeprefix(current) not in _PARTS:
                raise ValueError(f"{metric} stands outside its family")
            family.lines.append(f"{metric}{{{label}{',' if labels else ''}{labels or ''}}} {value}\n")
            _note(run, metric, labels, value)
        elif match := _HEAD.fullmatch(line):
            if match["word"] == "HELP":
                current = match["name"]
                if current in run.families:
                    raise ValueError(f"{current} stands there twice")
                family = run.families[current] = Family(f"{line}\n")
            elif match["name"] == current:
                family.head, family.kind = f"{family.head}{line}\n", match["text"]
            else:
                raise ValueError(f"the type of {match['name']} stands outside its family")
        elif line and line != TRAILER.strip() and not line.startswith(HEADER):
            raise ValueError(f"no sample: {line[:80]!r}")
    for family in run.families.values():
        family.lines = ["".join(family.lines)]
    return run


def _note(run: RunFile, metric: str, labels: str | None, value: str) -> None:
    """Keep what the page shows of a sample."""
    if not labels:
        run.figures[metric] = float(value)
    elif metric == "dqnfed_run_info":
        run.info.update(_labels(labels))
    elif metric == "dqnfed_run_state" and float(value):
        run.state = _labels(labels)["state"]


def _labels(text: str) -> dict[str, str]:
    return {match["name"]: match["value"] for match in _VALUE.finditer(text)}


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
