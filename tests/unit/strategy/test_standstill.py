"""Runs whose model stands still: when they end as stalled, and when something shows that the model rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run as run_digits
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.record_codec import unpack
from dqnfed_flwr.strategy.checkpointer import reopen
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.strategy.strategy import DQNFed, Outcome
from dqnfed_flwr.telemetry.events import Listener
from dqnfed_flwr.types import ClientReply, Probe
from dqnfed_flwr.wire import Assignment, encode_model
from tests.helpers.pendings import pending_step_of
from tests.helpers.quadratics import Federation, Quadratic, opposed, start_at, strategy
from tests.helpers.records import packed
from tests.helpers.runs import TINY, Stop, StopAfter

STAY = {"step.on-stationary": "stay"}
"""Goes on where no step is found."""


class Refusing(Federation):
    """From a round on client 1 accepts no length of any step, though it has a loss that may rise."""

    since = 1

    def reply(self, client: int, given: Assignment) -> ClientReply:
        """Refuse every rung."""
        reply = super().reply(client, given)
        if client != 1 or reply.probe is None or given.task.round <= self.since:
            return reply
        return replace(reply, loss=100.0 if given.task.train else reply.loss, probe=Probe(100.0, False))


def refusing(since: int, **settings: Any) -> Outcome:
    """Two clients that oppose each other; what client 1 refuses contradicts no gradient of it, for it is served."""
    federation = Refusing([Quadratic(np.array([4.0, 0.0])), Quadratic(np.array([-4.0, 0.0]))])
    federation.since = since
    listeners: Sequence[Listener] = settings.pop("listeners", ())
    given = strategy(2, {"guarantee.entitlement": 50.0, "rounds": 30, **STAY, **settings}).settings
    server = DQNFed(given, listeners=listeners)
    server.start(InProcessGrid(federation.app(), 2, {}), start_at([-2.0, 3.0]))
    assert server.outcome is not None
    return server.outcome


def state(*, unmoved: int, round_number: int, status: Any = "running") -> RunState:
    return replace(RunState.at(encode_model(np.zeros(2, np.float32), {}), round_number), unmoved=unmoved, status=status)


@pytest.mark.parametrize("patience", [3, 5])
def test_a_run_ends_after_so_many_rounds_without_a_step(patience: int) -> None:
    outcome = refusing(4, **{"step.patience": patience})
    moved = [event.moved for event in outcome.events]
    assert outcome.status == "stalled"
    assert any(moved)
    assert moved[-patience:] == [False] * patience
    assert moved[-patience - 1]
    assert {event.status for event in outcome.events[-patience:]} == {"line-search-failed"}


def test_with_patience_0_no_run_ends_so() -> None:
    outcome = refusing(4, **{"step.patience": 0})
    assert (outcome.status, len(outcome.events)) == ("finished", 30)


@pytest.mark.rests
def test_with_patience_0_one_that_never_moved_is_finished() -> None:
    outcome = refusing(0, **{"step.patience": 0, "rounds": 3})
    assert (outcome.status, [event.moved for event in outcome.events]) == ("finished", [False] * 3)


def test_one_that_never_moved_is_stalled_at_its_last_round() -> None:
    outcome = refusing(0, **{"rounds": 3})
    assert (outcome.status, len(outcome.events)) == ("stalled", 3)


def test_a_certificate_holds_as_long_as_the_model_stays() -> None:
    server = strategy(2, {"rounds": 600, "step.patience": 3, **STAY})
    server.start(InProcessGrid(Federation(opposed()).app(), 2, {}), start_at([0.0, 4.0]))
    assert server.outcome is not None
    events = server.outcome.events
    assert events[0].moved
    assert not any(event.moved for event in events[-50:])
    assert any(event.status == "stationary" for event in events[-50:])
    assert server.outcome.status == "finished"  # it learnt what there was, and something shows why it rests


def test_a_method_that_rests_on_purpose_does_not_stall() -> None:
    result = run_digits({**TINY, "method": "local", "local.batch-size": 16, "rounds": 4, "step.patience": 2})
    assert (result.status, result.totals.moved, len(result.events)) == ("finished", 0, 4)


@pytest.mark.parametrize(
    ("unmoved", "round_number", "status", "resting", "expected"),
    [
        (3, 9, "running", None, "stalled"),
        (2, 9, "running", None, None),
        (3, 9, "running", "pareto-stationary", None),
        (0, 9, "finished", None, None),
        (2, 9, "finished", None, None),
        (2, 2, "finished", None, "stalled"),
        (2, 2, "early-stopped", None, "stalled"),
        (2, 2, "finished", "pareto-stationary", "pareto-stationary"),
        (2, 2, "finished", "held-out-stationary", "held-out-stationary"),
    ],
)
def test_when_a_model_stands_still(
    unmoved: int, round_number: int, status: Any, resting: Any, expected: str | None
) -> None:
    found = replace(state(unmoved=unmoved, round_number=round_number, status=status), resting=resting, changed=True)
    assert found.standstill(3) == expected
    assert found.standstill(0) is None


@pytest.mark.parametrize(("status", "expected"), [("running", None), ("finished", "stalled")])
def test_steps_that_change_no_loss_are_no_success(status: Any, expected: str | None) -> None:
    found = state(unmoved=0, round_number=2, status=status)
    assert found.standstill(3) == expected
    assert replace(found, changed=True).standstill(3) is None


@pytest.mark.parametrize(
    ("losses", "changed"), [({0: 1.0, 1: 2.0}, False), ({0: 1.0}, False), ({0: 1.0, 1: 1.5}, True), ({}, True)]
)
def test_a_step_counts_that_changes_a_loss_or_of_which_nobody_said(losses: dict[int, float], changed: bool) -> None:
    found, step = state(unmoved=0, round_number=1), pending_step_of(0, 1, losses={0: 1.0, 1: 2.0})
    found.count_move(step, 0.0, losses)
    assert not found.changed
    found.count_move(step, 1.0, losses)
    assert found.changed is changed
    assert unpack(RunState, *packed(found)).changed is changed


def test_a_move_forgets_what_was_shown_before() -> None:
    found, step = state(unmoved=0, round_number=1), pending_step_of(0, 1, losses={0: 1.0, 1: 2.0})
    found.count_move(step, 0.0, {}, "pareto-stationary")
    found.count_move(step, 0.0, {})
    assert (found.unmoved, found.resting) == (2, "pareto-stationary")
    found.count_move(step, 0.5, {})
    assert (found.unmoved, found.resting) == (0, None)


def test_what_was_shown_survives_a_checkpoint() -> None:
    found = replace(state(unmoved=4, round_number=6), resting="held-out-stationary")
    assert unpack(RunState, *packed(found)).resting == "held-out-stationary"


@pytest.mark.parametrize(("patience", "status"), [(3, "stalled"), (4, "running"), (0, "running")])
def test_a_stalled_run_goes_on_with_more_patience(patience: int, status: str) -> None:
    found = state(unmoved=3, round_number=5, status="stalled")
    reopen(found, Settings.from_mapping({"rounds": 9, "step.patience": patience}))
    assert found.status == status


def test_one_that_is_given_no_more_rounds_is_stalled_still() -> None:
    found = state(unmoved=5, round_number=5, status="stalled")
    reopen(found, Settings.from_mapping({"rounds": 5, "step.patience": 9}))
    assert found.status == "stalled"


def test_a_killed_run_stalls_in_the_same_round(tmp_path: Path) -> None:
    whole = refusing(4, **{"step.patience": 4})
    settings = {"step.patience": 4, "output": str(tmp_path)}
    with pytest.raises(Stop):
        refusing(4, listeners=[StopAfter(len(whole.events) - 2)], **settings)
    again = refusing(4, **settings, resume=True)
    assert (again.status, again.events[-1].round) == ("stalled", whole.events[-1].round)
    assert not any(event.moved for event in again.events[1:])


@pytest.mark.parametrize("patience", [-1, 2.5, "x"])
def test_patience_is_a_whole_number_from_0(patience: Any) -> None:
    with pytest.raises(ConfigError, match=r"step\.patience"):
        DQNFed(Settings.from_mapping({"step.patience": patience}))


@pytest.mark.parametrize("method", ["dqn-fed", "fedavg"])
def test_a_learning_rate_that_teaches_nothing_is_no_success(method: str) -> None:
    settings = {**TINY, "method": method, "model": "mlp", "local.lr": 1e-30, "rounds": 3, "local.threads": 1}
    result = run_digits(settings)
    assert result.status == "stalled"
