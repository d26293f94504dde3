"""The event log, one JSON line a round, and how a run waits where a disk is full, with all that it must write."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Protocol, runtime_checkable

from dqnfed_flwr.run_files import EVENTS, replacing
from dqnfed_flwr.telemetry.events import RoundEvent

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space on the disk, or none left of a quota; whatever else goes wrong does not pass by waiting."""
SHORTEST, LONGEST = 1.0, 60.0
"""Seconds until the first new attempt, and between the later ones, each pause twice the one before."""

logger = logging.getLogger("flwr")


@runtime_checkable
class PauseListener(Protocol):
    """A listener that wants to know when the run stands still for want of room."""

    def on_pause(self) -> None:
        """The run waits."""

    def on_resume(self) -> None:
        """It goes on."""


class Patience:
    """Writes, and waits for room where there is none; it calls those listeners that are a `PauseListener`."""

    def __init__(self, listeners: Iterable[object] = ()) -> None:
        self._listeners = [listener for listener in listeners if isinstance(listener, PauseListener)]

    def write(self, path: Path, action: Callable[[], None]) -> None:
        """Do `action`, which writes `path` and can be done again from its beginning, until the disk has room for it.

        OSError if it fails for another reason than a full disk or quota.
        """
        pause = SHORTEST
        while not self._done(path, action, pause):
            if pause == SHORTEST:
                for listener in self._listeners:
                    listener.on_pause()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        if pause > SHORTEST:
            logger.warning("There is room for %s again: the run goes on", path)
            for listener in self._listeners:
                listener.on_resume()

    def _done(self, path: Path, action: Callable[[], None], pause: float) -> bool:
        try:
            action()
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning(
                "The run pauses: no room for %s (%s). Nothing is lost; make room there, and it goes on by itself. Next "
                "attempt in %.0f s",
                path,
                error.strerror,
                pause,
            )
            return False
        return True


class EventLog:
    """A listener that appends every event to `events.jsonl` in a directory, which exists."""

    def __init__(self, directory: Path, patience: Patience | None = None) -> None:
        self._path = directory / EVENTS
        self._patience = patience or Patience()
        self._file: FileIO | None = None

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Begin with the events of a resumed run, dropping what it had logged after its checkpoint."""
        del rounds
        self._patience.write(self._path, lambda: self._begin(done))

    def on_round(self, event: RoundEvent) -> None:
        """Append a line."""
        if self._file is not None:
            file, line = self._file, f"{event.to_json()}\n".encode()
            self._patience.write(self._path, lambda: _append(file, line))

    def on_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, done: list[RoundEvent]) -> None:
        with replacing(self._path) as file:
            file.writelines(f"{event.to_json()}\n".encode() for event in done)
        self._file = FileIO(self._path, "a")


def _append(file: FileIO, line: bytes) -> None:
    """Append all of the line or nothing."""
    end = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        file.truncate(end)
        raise


class EventReader:
    """Reads a log that another process writes: each time what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1  # tells one that took its place
        self._end = self._count = 0  # bytes and events read of it

    def read(self) -> tuple[int, list[RoundEvent]] | None:
        """The events that came since, and how many stand before them; None while there is no file.

        A log that was begun anew is read from its beginning. A line that is not complete yet waits; one that a crash
        spoilt ends the log.
        """
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._end:
                    self._file, self._end, self._count = status.st_ino, 0, 0
                file.seek(self._end)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return None
        before, events = self._count, list[RoundEvent]()
        for line in lines:
            try:
                if not line.endswith(b"\n"):
                    break
                events.append(RoundEvent.from_json(line.decode("utf-8", "replace")))
            except ValueError:
                break
            self._end += len(line)
        self._count += len(events)
        return before, events


def read_events(path: Path, last_round: int | None = None) -> list[RoundEvent]:
    """Events of a log, up to `last_round`; a line that a crash cut short or spoilt ends it (OSError without a file)."""
    found = EventReader(path).read()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return [event for event in found[1] if last_round is None or event.round <= last_round]
