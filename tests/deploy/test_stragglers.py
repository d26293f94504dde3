"""Nodes that hang, are far behind, or come and go: nobody waits for them longer than the deadline, and they are back
in the next round that they can make."""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks._federation import Loopback, loopback, node
from benchmarks._programs import wait_for
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.run_files import MODEL
from dqnfed_flwr.strategy.exchange import LATE, OWING
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers import devices
from tests.helpers.replay import replayed
from tests.helpers.trials import NODES, PATIENT, SETTINGS, usual_seconds

pytestmark = pytest.mark.deploy

LAGGARD = NODES - 1
OVER = 1.0
"""Seconds after its deadline at which an exchange must be over."""
BACK_SECONDS = 400.0
BEHIND = 30.0
"""Seconds by which a node is late with every message."""
AWAY = 15.0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that says how late a device is."""
    folder = tmp_path_factory.mktemp("slow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(devices.FOLDER, str(folder))
        devices.write(folder, NODES)
        yield folder


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, slow: Path) -> Iterator[Loopback]:
    del slow
    nodes = [node(k, devices.LATE) for k in range(NODES)]
    with loopback(tmp_path_factory.mktemp("stragglers"), nodes) as federation:
        federation.start()
        yield federation


@pytest.fixture(scope="module")
def usual(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds of a round on this machine."""
    return usual_seconds(federation, tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def deadline(usual: float) -> float:
    """Seconds in which this machine does a round with some to spare."""
    return 3.0 + 1.5 * usual


class Watched:
    """A run that goes on while its nodes are in trouble."""

    def __init__(self, federation: Loopback, output: Path, settings: dict[str, Any]) -> None:
        self.federation, self.output, self.settings = federation, output, settings

    @property
    def events(self) -> list[RoundEvent]:
        return self.federation.events()

    def await_rounds(self, count: int, what: Callable[[RoundEvent], bool] = lambda event: True) -> None:
        """Wait for so many more rounds of which `what` holds."""
        since = len(self.events)
        self._await(lambda: sum(map(what, self.events[since:])) >= count)

    def await_return(self, since: int) -> None:
        """Wait until the laggard, missed after the round `since`, is in a round again."""
        self._await(lambda: any(map(together, itertools.dropwhile(together, self.events[since:]))))

    def _await(self, there: Callable[[], bool]) -> None:
        submit = self.federation.programs["submit"]
        wait_for(lambda: there() or submit.status is not None, BACK_SECONDS, self.federation.texts)
        assert there(), [event.participants for event in self.events]

    def lateness(self) -> list[float]:
        """By how many seconds exchanges outlasted the deadline, of those that lasted as long."""
        spent = [
            event.cost.seconds["exchange"] - event.cost.exchanges * self.settings["deadline"] for event in self.events
        ]
        return [round(late, 3) for late in spent if late > -0.1]


@contextmanager
def watched(federation: Loopback, place: Path, **changes: Any) -> Iterator[Watched]:
    """A run that must complete, with the model of a run in one process that has the same participants."""
    settings = {**SETTINGS, "step-rule": "clipped", **changes}  # `replayed` needs a run without misses, however long
    with federation.submitted(settings, place / "deployed") as submit:
        run = Watched(federation, place / "deployed", settings)
        federation.await_round(1)
        yield run
        federation.await_exit(submit, 900)
        assert submit.status == 0, submit.text()[-3000:] + federation.texts()
    events = read_result(run.output).events
    print("participants", [event.participants for event in events], "late by", run.lateness())
    assert [event.round for event in events] == list(range(1, settings["rounds"] + 1))
    assert all(late <= OVER for late in run.lateness()), run.lateness()
    replayed(Settings.from_mapping({**settings, "output": str(place / "here")}), events)
    assert (run.output / MODEL).read_bytes() == (place / "here" / MODEL).read_bytes()


def alone(event: RoundEvent) -> bool:
    return LAGGARD not in event.participants


def together(event: RoundEvent) -> bool:
    return LAGGARD in event.participants


def dropped(event: RoundEvent, reason: str) -> bool:
    return any((drop.client, drop.reason) == (LAGGARD, reason) for drop in event.dropped)


def test_a_node_that_hangs(federation: Loopback, deadline: float, tmp_path: Path) -> None:
    with watched(federation, tmp_path, rounds=10, deadline=deadline) as run:
        programs = [federation.programs[f"node-{LAGGARD}{part}"] for part in ("", "-superexec")]
        for program in programs:
            program.signal_all(signal.SIGSTOP)
        try:
            run.await_rounds(2, alone)
        finally:
            for program in programs:
                program.signal_all(signal.SIGCONT)
        run.await_rounds(1, together)


def test_a_node_that_is_half_a_minute_behind(
    federation: Loopback, deadline: float, usual: float, slow: Path, tmp_path: Path
) -> None:
    pause, behind = slow / str(LAGGARD), max(BEHIND, 2 * deadline)  # where the machine is busy, deadlines are long
    rounds = 3 * math.ceil(1 + behind / usual) + 6
    with watched(federation, tmp_path, rounds=rounds, deadline=deadline) as run:
        pause.write_text(str(behind))
        try:
            run.await_rounds(2, lambda event: dropped(event, LATE))
        finally:
            pause.unlink()
        mended, since = time.monotonic(), len(run.events)
        run.await_rounds(1, together)
        back = time.monotonic() - mended
    events = run.events
    first = next(number for number, event in enumerate(events[since:]) if together(event))
    print(f"deadline {deadline:.1f} s; back after {back:.1f} s and {first} rounds")
    assert run.lateness()  # exchanges did wait for it
    assert sum(dropped(event, OWING) for event in events[:since]) >= 2
    assert back < behind + 3 * deadline  # what it was at when it was mended, and the round after
    assert sum(map(alone, events[since + first :])) <= 1


def test_a_node_that_is_always_late_confirms_the_result(
    federation: Loopback, usual: float, slow: Path, tmp_path: Path
) -> None:
    """No round waits for it, and the result is a model at which it has named its loss."""
    pause = slow / str(LAGGARD)
    pause.write_text(str(max(10.0, 2 * usual)))
    settings = {**SETTINGS, "rounds": 12, "deadline": PATIENT, "quorum": 0.5, "guarantee.confirm": 20}
    try:
        with federation.submitted(settings, tmp_path / "deployed") as submit:
            federation.await_exit(submit, 900)
    finally:
        pause.unlink()
    assert submit.status == 0, submit.text()[-3000:] + federation.texts()
    result = read_result(tmp_path / "deployed")
    print("confirmed", result.confirmed, "alone", sum(map(alone, result.events)))
    assert result.confirmed is not None
    assert (result.confirmed.clients, result.confirmed.unheard) == ([*range(NODES)], [])
    assert result.confirmed.round > 0
    assert sum(map(alone, result.events)) > settings["rounds"] // 2


def test_a_node_that_comes_and_goes(federation: Loopback, deadline: float, usual: float, tmp_path: Path) -> None:
    program, took = federation.programs[f"node-{LAGGARD}"], []
    soon = 20 + 5 * usual  # it starts, answers the query, and is in a round when the round at hand is over
    rounds = math.ceil((5 * AWAY + 4 * soon) / usual) + 6

    def leave() -> None:
        program.signal(signal.SIGTERM)
        time.sleep(AWAY)
        program.start()

    with watched(federation, tmp_path, rounds=rounds, deadline=deadline) as run:
        for _ in range(3):
            since = len(run.events)
            leave()
            started = time.monotonic()
            run.await_return(since)
            took.append(round(time.monotonic() - started, 1))
        since = len(run.events)
        for _ in range(2):  # too short a stay for a round
            leave()
            time.sleep(AWAY / 2)
        run.await_return(since)
    print(f"deadline {deadline:.1f} s; back after", took)
    assert all(seconds < soon for seconds in took)
