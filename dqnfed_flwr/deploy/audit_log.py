"""An append-only log whose lines are chained by their hashes, so that a changed, removed or moved line is found.

A line is a JSON object. It has a number, a time, what happened, the hash of the line before (`before`), and its own
(`hash`): SHA-256 over the rest of it. `audit.head` holds number and hash of the last line, so that missing lines at the
end are found too. Who can write both files can write another history; only a hash kept elsewhere tells then.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dqnfed_flwr.deploy.files import PRIVATE_FILE, give_away, write_private
from dqnfed_flwr.errors import RunError

LOG, HEAD = "audit.log", "audit.head"
FIRST = "0" * 64
"""`before` of the first line."""
LARGEST_PART = 16_000_000
"""Bytes after which the log goes on in a new file; the full one becomes `audit-NUMBER.log`."""
PART = "audit-[0-9][0-9][0-9][0-9][0-9][0-9].log"
LONGEST_TEXT = 2_000

Line = dict[str, Any]


class AuditLog:
    """The log in a folder, open for one process; `RunError` if another one writes it, or it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock = folder, threading.Lock()
        try:
            self._file = self._open()
            found = list(lines_in(folder))
            torn = self._mend()
        except OSError as error:
            raise RunError(
                f"{folder / LOG}: cannot be written ({error.strerror}); is another SuperLink running here?"
            ) from None
        last = next((line for line in reversed(found) if line is not None), {})
        self._number, self._hash = int(last.get("number", 0)), str(last.get("hash", FIRST))
        self.lines = [line for line in found if line is not None]
        """What was there when it was opened, as far as it can be read."""
        try:
            if torn:
                self.append("torn line removed", bytes=torn)
        except OSError as error:
            raise RunError(f"{folder / LOG}: cannot be written ({error.strerror})") from None

    def append(self, what: str, **about: Any) -> None:
        """Write one line to the disk; `OSError` if that fails, and then the log is as it was."""
        with self._lock:
            if os.fstat(self._file).st_size > LARGEST_PART:
                self._next_part()
            at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
            line: Line = {"number": self._number + 1, "at": at, "what": what, **about, "before": self._hash}
            line["hash"] = hash_of(line)
            size = os.fstat(self._file).st_size
            try:
                self._write(line)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, size)  # else the next line would be glued to what is there of this one
                raise
            self._number, self._hash = line["number"], line["hash"]

    def _write(self, line: Line) -> None:
        data = json.dumps(line).encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / LOG))
        os.fsync(self._file)
        head = {"number": line["number"], "hash": line["hash"]}
        write_private(self.folder / HEAD, json.dumps(head).encode())

    def close(self) -> None:
        """Let another process write."""
        os.close(self._file)

    def _open(self) -> int:
        path = self.folder / LOG
        fresh = not path.exists()
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
        if fresh:
            give_away(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        return file

    def _mend(self) -> int:
        """Remove a last line that was cut off by a loss of power; how many bytes it had."""
        data = (self.folder / LOG).read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
        return len(data) - whole

    def _next_part(self) -> None:
        """Go on in a new file; one that was taken away for an archive leaves its number free."""
        numbers = [int(part.stem.removeprefix("audit-")) for part in parts(self.folder)[:-1]]
        full = self.folder / f"audit-{1 + max(numbers, default=0):06}.log"
        (self.folder / LOG).rename(full)
        try:
            fresh = self._open()
        except OSError:
            full.rename(self.folder / LOG)
            raise
        os.close(self._file)
        self._file = fresh


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What a look at a log found: how many lines, the last hash, all hashes, and what is wrong, in words."""

    count: int
    head: str
    hashes: frozenset[str]
    faults: list[str] = field(default_factory=list)


def verify(folder: Path) -> LogVerdict:
    """Look at every line of the log in a folder, and at the end that it should have."""
    before, number, faults, hashes = FIRST, 0, [], set()
    for place, line in enumerate(lines_in(folder), start=1):
        if line is None:
            faults.append(f"line {place} is no line of an audit log")
            continue
        if line.get("hash") != hash_of(line):
            faults.append(f"line {place} was changed")
        if line.get("before") != before or line.get("number") != number + 1:
            faults.append(f"before line {place}, lines are missing, changed or moved")
        before, found = str(line.get("hash")), line.get("number")
        number = found if isinstance(found, int) else place
        hashes.add(before)
    try:
        head = json.loads((folder / HEAD).read_bytes())
        kept_number, kept_hash = int(head["number"]), str(head["hash"])
    except (OSError, ValueError, LookupError, TypeError):
        return LogVerdict(number, before, frozenset(hashes), [*faults, f"{HEAD} is missing or damaged"])
    if kept_hash != before and (kept_hash not in hashes or number > kept_number + 1):  # one more: power was lost
        faults.append(f"the end is missing: {HEAD} names line {kept_number}, which is not the last")
    return LogVerdict(number, before, frozenset(hashes), faults)


def parts(folder: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    return [*sorted(folder.glob(PART)), *([folder / LOG] if (folder / LOG).exists() else [])]


def lines_in(folder: Path) -> Iterator[Line | None]:
    """All lines of a log; None for one that cannot be read."""
    for path in parts(folder):
        with path.open("rb") as file:
            for text in file:
                try:
                    found = json.loads(text)
                except ValueError:
                    found = None
                yield found if isinstance(found, dict) else None


def hash_of(line: Line) -> str:
    """The hash that a line should have."""
    rest = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def shortened(text: str) -> str:
    """A text of others, as long as the log takes."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} letters)"
