"""The rounds of a run under Flower's engine, as its log tells them; no engine is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.flower_rounds import FlowerRounds
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from tests.helpers.runs import make_event

DEAD = "code 0: <class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this task. ..."


class Listener:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        self.heard.append(f"start {rounds} after {len(done)}")

    def on_round(self, event: RoundEvent) -> None:
        self.heard.append(f"round {event.round}")

    def on_end(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("resume", [False, True])
def test_listeners_hear_of_each_round_once(tmp_path: Path, resume: bool) -> None:
    settings = Settings.from_mapping({"rounds": 3, "resume": resume, "output": str(tmp_path)})
    listener, log = Listener(), EventLog(tmp_path)
    rounds = FlowerRounds(tmp_path, settings, [listener])
    rounds.report()
    assert listener.heard == []  # nothing is logged yet
    log.on_start(3, [make_event(1, None)] if resume else [])
    if not resume:
        log.on_round(make_event(1, None))
    rounds.report()
    rounds.report()
    log.on_round(make_event(2, None))
    log.on_round(make_event(3, None))
    rounds.report()
    log.on_end()
    before = ["start 3 after 1"] if resume else ["start 3 after 0", "round 1"]
    assert listener.heard == [*before, "round 2", "round 3"]


def test_rounds_of_a_log_that_a_resumed_run_begins_anew_are_not_told_twice(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"rounds": 4, "resume": True, "output": str(tmp_path)})
    earlier, log, listener = EventLog(tmp_path), EventLog(tmp_path), Listener()
    earlier.on_start(4, [make_event(1, None), make_event(2, None)])
    earlier.on_end()
    rounds = FlowerRounds(tmp_path, settings, [listener])
    rounds.report()
    log.on_start(4, [make_event(1, None)])
    rounds.report()
    for number in (2, 3):
        log.on_round(make_event(number, None))
    log.on_end()
    rounds.report()
    assert listener.heard == ["start 4 after 2", "round 3"]


def with_losses(number: int, *details: str) -> RoundEvent:
    drops = [DroppedClient(client, "client-error", detail) for client, detail in enumerate(details)]
    return replace(make_event(number, None), dropped=drops)


def logged(directory: Path, *events: RoundEvent, output: bool = True) -> FlowerRounds:
    log = EventLog(directory)
    log.on_start(9, [])
    for event in events:
        log.on_round(event)
    log.on_end()
    settings = Settings.from_mapping({"rounds": 9, "output": str(directory) if output else ""})
    return FlowerRounds(directory, settings, [])


@pytest.mark.parametrize("output", [True, False])
def test_a_worker_that_died_ends_the_run_with_words(tmp_path: Path, output: bool) -> None:
    rounds = logged(tmp_path, with_losses(4, DEAD, DEAD), with_losses(5), with_losses(6, DEAD), output=output)
    with pytest.raises(RunError, match=r"died in round 4.* up to round 6, 3 messages failed") as caught:
        rounds.report()
    assert (str(tmp_path) in str(caught.value)) is output


def test_a_worker_that_is_replaced_ends_nothing(tmp_path: Path) -> None:
    logged(tmp_path, with_losses(4, DEAD, DEAD), with_losses(5), with_losses(6)).report()


def test_errors_of_clients_themselves_end_nothing(tmp_path: Path) -> None:
    own = "code 2: DataError: the data set changed"
    logged(tmp_path, *(with_losses(number, own) for number in range(1, 6))).report()
