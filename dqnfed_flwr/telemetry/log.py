"""The event log: one JSON line a round, flushed as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from dqnfed_flwr.telemetry.events import RoundEvent

EVENTS = "events.jsonl"


class EventLog:
    """A listener that appends every event to `events.jsonl` in a directory.

    Parameters
    ----------
    directory : Path
        Exists.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS
        self._file: TextIO | None = None

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Begin with the events of a resumed run, dropping what it had logged after its checkpoint."""
        del rounds
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(event.to_json() + "\n" for event in done))
        temporary.replace(self._path)
        self._file = self._path.open("a")

    def on_round(self, event: RoundEvent) -> None:
        """Append a line."""
        if self._file is not None:
            self._file.write(event.to_json() + "\n")
            self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_events(path: Path, last_round: int | None = None) -> list[RoundEvent]:
    """Events of a log, up to `last_round`; a line cut short by a crash ends it.

    Raises
    ------
    OSError
        If there is no such file.
    """
    events: list[RoundEvent] = []
    for line in path.read_text().splitlines():
        try:
            event = RoundEvent.from_json(line)
        except ValueError:
            break
        if last_round is None or event.round <= last_round:
            events.append(event)
    return events
