"""Checkpoints that are written while the next exchange goes on: none is lost, and none fails in silence."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from benchmarks._clock import Clock
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS
from dqnfed_flwr.strategy import checkpointer
from dqnfed_flwr.strategy.checkpoint import CheckpointStore, read_record
from dqnfed_flwr.strategy.checkpointer import Writer
from dqnfed_flwr.telemetry import event_log
from dqnfed_flwr.telemetry.event_log import Patience, read_events
from tests.helpers.runs import TINY, Stop, StopAfter

LONG_ENOUGH = 60.0
"""Seconds after which what never comes fails a test."""
Record = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_log, "time", clock)
    return clock


def settings(output: Path, **more: Any) -> dict[str, Any]:
    return {**TINY, "rounds": 4, "curvature.kind": "secant", "output": str(output), **more}


def instead(patch: pytest.MonkeyPatch, work: Callable[[Callable[[], None], Record, Arrays], None]) -> None:
    """Have `work` done where a checkpoint is written: it is given what writes it, and what goes into it."""
    write = CheckpointStore.write

    def written(store: CheckpointStore, record: Record, arrays: Arrays) -> None:
        work(lambda: write(store, record, arrays), record, arrays)

    patch.setattr(CheckpointStore, "write", written)


def test_the_next_exchange_goes_on_and_what_is_written_then_is_the_state_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull, begin, answered = InProcessGrid.pull_messages, Writer.begin, threading.Event()

    def begun(writer: Writer, write: Callable[[], None]) -> None:
        answered.clear()
        begin(writer, write)

    def pulled(grid: InProcessGrid, numbers: Iterable[str]) -> list[Message]:
        replies = pull(grid, numbers)
        answered.set()
        return replies

    def found(late: bool) -> tuple[list[tuple[str, dict[str, bytes]]], NDArray[Any]]:
        written: list[tuple[str, dict[str, bytes]]] = []

        def write(whole: Callable[[], None], record: Record, arrays: Arrays) -> None:
            if late and record["status"] == "running":
                assert answered.wait(LONG_ENOUGH)
            written.append((json.dumps(record), {name: values.tobytes() for name, values in arrays.items()}))
            whole()

        with monkeypatch.context() as patch:
            patch.setattr(InProcessGrid, "pull_messages", pulled)
            instead(patch, write)
            patch.setattr(Writer, "begin", begun if late else lambda writer, write: write())
            result = run(settings(tmp_path / "run"), overwrite=True)
        return written, result.theta

    (late, theta), (at_once, expected) = found(late=True), found(late=False)
    assert len(at_once) == 4
    assert late == at_once
    assert np.array_equal(theta, expected)


def test_nodes_that_remember_by_themselves_are_asked_when_the_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, push = list[str](), InProcessGrid.push_messages

    def pushed(grid: InProcessGrid, messages: Iterable[Message]) -> list[str]:
        seen.append("asked")
        return push(grid, messages)

    def write(whole: Callable[[], None], record: Record, arrays: Arrays) -> None:
        whole()
        seen.append("written")

    monkeypatch.setattr(checkpointer, "KeepsClientState", Stop)  # as Flower's grids keep none
    monkeypatch.setattr(InProcessGrid, "push_messages", pushed)
    instead(monkeypatch, write)
    result = run(settings(tmp_path, **{"step-rule": "fixed", "step.lr": 0.01, "evaluate-every": 0}))
    assert [event.cost.exchanges for event in result.events] == [2, 1, 1, 1]
    assert seen == ["asked"] * 3 + ["written", "asked"] * 3 + ["written"]  # the registry, and the first exchange


def test_one_that_cannot_be_written_ends_the_run_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(whole: Callable[[], None], record: Record, arrays: Arrays) -> None:
        if record["round"] == 2:
            raise PermissionError(errno.EACCES, "no more")
        whole()

    with monkeypatch.context() as patch:
        instead(patch, write)
        with pytest.raises(PermissionError, match="no more"):
            run(settings(tmp_path / "cut"))
    assert read_record(tmp_path / "cut" / CHECKPOINT)["round"] == 1
    assert [event.round for event in read_events(tmp_path / "cut" / EVENTS)] == [1, 2]
    resumed, whole = run(settings(tmp_path / "cut"), resume=True), run(settings(tmp_path / "whole"))
    assert np.array_equal(resumed.theta, whole.theta)


def test_the_last_one_that_cannot_be_written_ends_the_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(whole: Callable[[], None], record: Record, arrays: Arrays) -> None:
        if record["status"] == "finished":
            raise PermissionError(errno.EACCES, "no more")
        whole()

    instead(monkeypatch, write)
    with pytest.raises(PermissionError, match="no more"):
        run(settings(tmp_path))
    assert read_record(tmp_path / CHECKPOINT)["round"] == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_ends_with_an_error_leaves_the_last_whole_and_says_where_it_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], fails: bool
) -> None:
    """The error comes from a client's exchange, while the checkpoint of round 2 is being written."""
    exchange, stopped = InProcessGrid.push_messages, threading.Event()

    def pushed(grid: InProcessGrid, messages: Iterable[Message]) -> list[str]:
        if begun.is_set():
            stopped.set()
            raise Stop
        return exchange(grid, messages)

    begun = threading.Event()

    def write(whole: Callable[[], None], record: Record, arrays: Arrays) -> None:
        if record["round"] == 2:
            begun.set()
            assert stopped.wait(LONG_ENOUGH)
            if fails:
                raise OSError(errno.ENOSPC, "No space left on device")
        whole()

    monkeypatch.setattr(InProcessGrid, "push_messages", pushed)
    instead(monkeypatch, write)
    with pytest.raises(Stop):
        run(settings(tmp_path))
    assert read_record(tmp_path / CHECKPOINT)["round"] == (1 if fails else 2)
    found = [text for text in said if "could not be written" in text]
    assert ["No space left" in text for text in found] == [True] * fails


def test_it_waits_for_room_on_the_thread_that_waits_for_it(clock: Clock) -> None:
    threads, told = list[str](), list[tuple[str, str]]()

    class Listener:
        def on_pause(self) -> None:
            told.append(("pause", threading.current_thread().name))

        def on_resume(self) -> None:
            told.append(("resume", threading.current_thread().name))

    def write() -> None:
        threads.append(threading.current_thread().name)
        if len(threads) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    here = threading.current_thread().name
    writer = Writer(Path("checkpoint.npz"), Patience([Listener()]))
    writer.begin(write)
    writer.finish()
    writer.finish()  # nothing is left
    writer.close()
    assert threads == ["checkpoint_0", here, here]
    assert told == [("pause", here), ("resume", here)]
    assert clock.slept == 1 + 2


def test_one_waits_for_the_one_before(clock: Clock) -> None:
    order, first = list[str](), threading.Event()

    def slow() -> None:
        assert first.wait(LONG_ENOUGH)
        order.append("first")

    writer = Writer(Path("checkpoint.npz"), Patience())
    writer.begin(slow)
    threading.Timer(0.05, first.set).start()
    writer.begin(lambda: order.append("second"))
    assert order[0] == "first"
    writer.close()
    assert order == ["first", "second"]


def test_no_thread_is_left(tmp_path: Path) -> None:
    run(settings(tmp_path / "whole"))
    with pytest.raises(Stop):
        run(settings(tmp_path / "cut"), listeners=[StopAfter(3)])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    assert read_record(tmp_path / "cut" / CHECKPOINT)["round"] == 2
