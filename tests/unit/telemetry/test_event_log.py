"""The event log, and a full disk: the run waits, says so, loses nothing and goes on by itself."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._clock import Clock
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.exporter.runs import read_run
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS
from dqnfed_flwr.telemetry import event_log
from dqnfed_flwr.telemetry.event_log import LONGEST, EventLog, EventReader, Patience, read_events
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from tests.helpers.runs import TINY, make_event


def logged(directory: Path, numbers: range, done: list[RoundEvent] | None = None) -> Path:
    log = EventLog(directory)
    log.on_start(9, done or [])
    for number in numbers:
        log.on_round(make_event(number, None))
    log.on_end()
    return directory / EVENTS


def rounds(path: Path, last: int | None = None) -> list[int]:
    return [event.round for event in read_events(path, last)]


def test_the_log_holds_a_line_a_round_as_soon_as_it_is_settled(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.on_start(2, [])
    log.on_round(make_event(1, None))
    assert rounds(tmp_path / EVENTS) == [1]
    log.on_round(make_event(2, None))
    log.on_end()
    assert rounds(tmp_path / EVENTS) == [1, 2]
    log.on_end()  # twice does no harm
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS]


def test_a_resumed_log_drops_what_the_checkpoint_did_not_know(tmp_path: Path) -> None:
    path = logged(tmp_path, range(1, 6))
    logged(tmp_path, range(4, 7), done=read_events(path, 3))
    assert rounds(path) == [1, 2, 3, 4, 5, 6]


def test_a_new_run_begins_a_new_log(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 6))
    assert rounds(logged(tmp_path, range(1, 3))) == [1, 2]


def test_a_line_that_a_crash_spoilt_ends_the_log(tmp_path: Path) -> None:
    path = logged(tmp_path, range(1, 4))
    path.write_bytes(path.read_bytes() + b"\xff\xfe\x00")
    assert rounds(path) == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-20])
    assert rounds(path) == [1, 2]
    assert rounds(path, last=1) == [1]


def test_a_missing_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_events(tmp_path / EVENTS)


class Told:
    """Hears of pauses."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_pause(self) -> None:
        self.heard.append("pause")

    def on_resume(self) -> None:
        self.heard.append("resume")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_log, "time", clock)
    return clock


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_it_waits_for_room_with_pauses_that_grow_to_a_bound(clock: Clock, number: int) -> None:
    left = 9

    def action() -> None:
        nonlocal left
        if left:
            left -= 1
            raise OSError(number, os.strerror(number))

    told = Told()
    Patience([told, object()]).write(Path("events.jsonl"), action)
    assert told.heard == ["pause", "resume"]
    assert clock.slept == 1 + 2 + 4 + 8 + 16 + 32 + 3 * LONGEST


def test_what_waiting_does_not_mend_is_raised(clock: Clock) -> None:
    def action() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        Patience().write(Path("x"), action)
    assert clock.slept == 0


def test_a_line_that_was_written_in_part_is_taken_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileIO):
        """Room for ten bytes, until somebody has waited."""

        def write(self, data: Any) -> int:
            if clock.slept or os.fstat(self.fileno()).st_size < 10:
                return super().write(data if clock.slept else data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(event_log, "FileIO", Full)
    log = EventLog(tmp_path)
    log.on_start(2, [])
    events = [make_event(number, [0.5]) for number in (1, 2)]
    for event in events:
        log.on_round(event)
    log.on_end()
    assert clock.slept == 1
    assert read_events(tmp_path / EVENTS) == events


class FillsUp(Listener):
    """A listener that takes all the room on a disk after a round."""

    def __init__(self, disk: Path, at: int) -> None:
        self._ballast, self._at = disk / "ballast", at

    def on_round(self, event: RoundEvent) -> None:
        if event.round == self._at:
            with self._ballast.open("wb", buffering=0) as file:
                for size in (1 << 16, 1 << 12):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        pass


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_run_on_a_disk_that_fills_up_gives_the_same_result(
    disk: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, states = disk / "metrics", []

    def make_room(seconds: float) -> None:
        clock.slept += seconds
        states.append(read_run(next(metrics.glob("*.prom")), (0, 0, 0)).state)
        if clock.slept > 3:
            (disk / "ballast").unlink(missing_ok=True)

    monkeypatch.setattr(clock, "sleep", make_room)
    settings = {**TINY, "rounds": 4}
    plain = run(Settings.from_mapping(settings))
    output = disk / "run"
    placed = {"output": str(output), "metrics": str(metrics)}
    full = run(Settings.from_mapping({**settings, **placed}), listeners=[FillsUp(disk, 2)])
    assert set(states) == {"paused"}  # on the same disk
    assert read_run(next(metrics.glob("*.prom")), (0, 0, 0)).state == full.status
    assert clock.slept > 3
    assert np.array_equal(full.theta, plain.theta)
    assert [event.round for event in read_events(output / EVENTS)] == [1, 2, 3, 4]
    assert (output / CHECKPOINT).exists()
    assert not list(output.glob("*.tmp"))


def new(reader: EventReader) -> tuple[int, list[int]]:
    """How many events stand before the new ones, and the rounds of these."""
    found = reader.read()
    assert found is not None
    return found[0], [event.round for event in found[1]]


def test_a_reader_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    from_json = RoundEvent.from_json

    def noted(line: str) -> RoundEvent:
        read.append(line)
        return from_json(line)

    monkeypatch.setattr(RoundEvent, "from_json", noted)
    reader, log = EventReader(tmp_path / EVENTS), EventLog(tmp_path)
    assert reader.read() is None
    log.on_start(5, [])
    assert reader.read() == (0, [])
    for number in (1, 2, 3):
        log.on_round(make_event(number, None))
        assert new(reader) == (number - 1, [number])
        assert reader.read() == (number, [])
    log.on_end()
    assert len(read) == 3


def test_a_reader_waits_for_the_end_of_a_line_and_begins_anew_with_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    line = make_event(1, None).to_json().encode() + b"\n"
    path.write_bytes(line + line[:20])
    reader = EventReader(path)
    assert new(reader) == (0, [1])
    with path.open("ab") as file:
        file.write(line[20:])
    assert new(reader) == (1, [1])
    log = EventLog(tmp_path)
    log.on_start(5, [make_event(1, None)])
    log.on_end()
    assert new(reader) == (0, [1])
