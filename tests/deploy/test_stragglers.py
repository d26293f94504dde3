"""A node that hangs: nobody waits for it longer than the deadline, and it is back once it goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import MODEL, read_result
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.telemetry.log import EVENTS, read_events
from tests.helpers import devices
from tests.helpers.federation import Loopback, loopback, node
from tests.helpers.programs import wait_for
from tests.helpers.replay import replayed
from tests.helpers.trials import NODES, SETTINGS, usual_seconds

pytestmark = pytest.mark.deploy

LAGGARD = NODES - 1
LATE = 1.0
"""Seconds after its deadline at which an exchange must be over."""
BACK_SECONDS = 400.0


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
def deadline(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds in which this machine does a round with some to spare."""
    return 3.0 + 1.5 * usual_seconds(federation, tmp_path_factory.mktemp("usual"))


class Watched:
    """A run that goes on while its nodes are in trouble."""

    def __init__(self, federation: Loopback, output: Path, settings: dict[str, Any]) -> None:
        self.federation, self.output, self.settings = federation, output, settings

    @property
    def events(self) -> list[RoundEvent]:
        log = self.output / EVENTS
        return read_events(log) if log.exists() else []

    def await_rounds(self, count: int, what: Callable[[RoundEvent], bool] = lambda event: True) -> None:
        """Wait for so many more rounds of which `what` holds."""
        since, submit = len(self.events), self.federation.programs["submit"]

        def there() -> bool:
            return sum(map(what, self.events[since:])) >= count

        wait_for(lambda: there() or submit.status is not None, BACK_SECONDS, self.federation.texts)
        assert there(), [event.participants for event in self.events]

    def lateness(self) -> list[float]:
        """By how many seconds exchanges outlasted the deadline, of those that lasted as long."""
        spent = [event.seconds["exchange"] - event.exchanges * self.settings["deadline"] for event in self.events]
        return [round(late, 3) for late in spent if late > -0.1]


@contextmanager
def watched(federation: Loopback, place: Path, **changes: Any) -> Iterator[Watched]:
    """A run that must complete, with the model of a run in one process that has the same participants."""
    settings = {**SETTINGS, **changes}
    with federation.submitted(settings, place / "deployed") as submit:
        run = Watched(federation, place / "deployed", settings)
        federation.await_round(1)
        yield run
        federation.await_exit(submit, 900)
        assert submit.status == 0, submit.text()[-3000:] + federation.texts()
    events = read_result(run.output).events
    print("participants", [event.participants for event in events], "late by", run.lateness())
    assert [event.round for event in events] == list(range(1, settings["rounds"] + 1))
    assert all(late <= LATE for late in run.lateness()), run.lateness()
    replayed(Settings.from_mapping({**settings, "output": str(place / "here")}), events)
    assert (run.output / MODEL).read_bytes() == (place / "here" / MODEL).read_bytes()


def alone(event: RoundEvent) -> bool:
    return LAGGARD not in event.participants


def together(event: RoundEvent) -> bool:
    return LAGGARD in event.participants


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
