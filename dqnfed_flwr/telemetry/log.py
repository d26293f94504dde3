"""The event log: one JSON line a round, flushed as it is written."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from dqnfed_flwr.run_files import EVENTS
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.telemetry.patience import Patience


class EventLog:
    """A listener that appends every event to `events.jsonl` in a directory.

    Parameters
    ----------
    directory : Path
        Exists.
    patience : Patience | None
        What a full disk meets; None is one of its own.
    """

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
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(event.to_json() + "\n" for event in done))
        temporary.replace(self._path)
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


def read_events(path: Path, last_round: int | None = None) -> list[RoundEvent]:
    """Events of a log, up to `last_round`; a line that a crash cut short or spoilt ends it.

    Raises
    ------
    OSError
        If there is no such file.
    """
    events: list[RoundEvent] = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            event = RoundEvent.from_json(line)
        except ValueError:
            break
        if last_round is None or event.round <= last_round:
            events.append(event)
    return events
