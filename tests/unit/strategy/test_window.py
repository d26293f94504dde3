"""`guarantee.window`: a loss may come up to the largest of its last ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.wire import encode_model
from tests.helpers.pendings import pending_step_of
from tests.helpers.quadratics import Federation, Quadratic, start_at, strategy
from tests.helpers.runs import TINY, Stop, StopAfter

CURVED = [
    Quadratic(np.array([1.0, 1.0]), np.array([1.0, 30.0])),
    Quadratic(np.array([1.2, 0.8]), np.array([30.0, 1.0])),
]
"""Long steps that suit one of them overshoot for the other."""


def events_of(window: int, **settings: Any) -> list[RoundEvent]:
    server = strategy(2, {"rounds": 25, "guarantee.window": window, "step.grow-every": 1, **settings})
    server.start(InProcessGrid(Federation(CURVED).app(), 2, {}), start_at([-3.0, 3.0]))
    assert server.outcome is not None
    return server.outcome.events


@pytest.mark.parametrize("window", [2, 4])
def test_no_loss_comes_above_the_largest_of_its_last_ones(window: int) -> None:
    events = events_of(window)
    assert any(event.improved_ratio < 1 for event in events if event.moved)  # or the window would show nothing
    for client in range(2):
        losses = [events[0].losses_before[client], *(event.losses_after[client] for event in events if event.moved)]
        largest = [max(losses[max(0, t - window) : t]) for t in range(1, len(losses))]
        assert all(loss <= most * (1 + 1e-9) for loss, most in zip(losses[1:], largest, strict=True))
        assert losses[-1] < losses[0]
    assert [event.harmed for event in events] == [[]] * len(events)
    assert {event.unharmed_ratio for event in events} == {1.0}


def test_a_window_of_one_is_the_test_of_every_round() -> None:
    events = events_of(1)
    assert {event.improved_ratio for event in events} == {1.0}
    assert [event.limits for event in events] == [[]] * len(events)


def test_an_event_tells_what_the_losses_could_come_to() -> None:
    events = events_of(3)
    assert events[0].limits == []
    assert events[2].limits == [max(event.losses_before[client] for event in events[:3]) for client in range(2)]
    assert RoundEvent.from_json(events[2].to_json()) == events[2]


def test_only_as_many_losses_are_kept_as_the_window_has() -> None:
    state = RunState.at(encode_model(np.zeros(2, np.float32), {}))
    for loss in (5.0, 4.0, 3.0):
        state.keep_losses(pending_step_of(0, losses={0: loss}), 3)
    assert state.earlier == {0: [4.0, 3.0]}
    assert state.limits({0: 2.0, 7: 1.0}) == {0: 4.0, 7: 1.0}
    state.earlier = {}
    assert state.limits({0: 1.0}) == {}


def test_a_run_that_was_cut_knows_the_losses(tmp_path: Path) -> None:
    settings = {**TINY, "rounds": 8, "guarantee.window": 4, "guarantee.entitlement": 0, "local.lr": 0.5}
    whole = run({**settings, "output": str(tmp_path / "whole")})
    cut = {**settings, "output": str(tmp_path / "cut")}
    with pytest.raises(Stop):
        run(cut, listeners=[StopAfter(5)])
    resumed = run(cut, resume=True)
    assert resumed.theta.tobytes() == whole.theta.tobytes()
    assert [event.limits for event in resumed.events] == [event.limits for event in whole.events]
