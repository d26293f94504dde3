"""Losses along the step, in the rounds that `step.diagnose-every` names: quadratics, whose losses are known there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.types import Float64Array
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

CLIENTS = 3


class Kept(Listener):
    """The events of a run, in their order."""

    def __init__(self) -> None:
        self.events: list[RoundEvent] = []

    def on_round(self, event: RoundEvent) -> None:
        """Keep it."""
        self.events.append(event)


def trained(rounds: int, **settings: Any) -> tuple[list[RoundEvent], Float64Array, Outcome]:
    """A run on three quadratics: its events and its model."""
    listener, federation = Kept(), Federation(spread_out(CLIENTS))
    server = strategy(CLIENTS, {"rounds": rounds, **settings})
    server = type(server)(server.settings, listeners=[listener])
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    return listener.events, np.asarray(server.outcome.theta, np.float64), server.outcome


@pytest.mark.parametrize("more", [{}, {"method": "fedsgd", "step-rule": "fixed"}], ids=["tested", "not tested"])
def test_losses_along_a_step_are_those_of_the_quadratics(more: dict[str, Any]) -> None:
    before = trained(3, **more)[1]
    after = trained(4, **more)[1]
    events = trained(4, **more, **{"step.diagnose-every": 2})[0]
    assert [event.along is not None for event in events] == [False, True, False, True]
    along, factor = events[3].along, events[3].factor
    assert along is not None
    assert along.factors == [along.factors[0] / 2**halvings for halvings in range(11)]
    assert factor in along.factors
    step = (before - after) / factor
    for client, objective in enumerate(spread_out(CLIENTS)):
        expected = [objective.loss(before - alpha * step) for alpha in along.factors]
        assert along.losses[client] == pytest.approx(expected, rel=1e-9)


def test_the_model_does_not_depend_on_it() -> None:
    assert trained(5)[1].tobytes() == trained(5, **{"step.diagnose-every": 1})[1].tobytes()


def test_a_line_of_the_log_has_it_and_gives_it_back() -> None:
    events, _, _ = trained(2, **{"step.diagnose-every": 2})
    assert [RoundEvent.from_json(event.to_json()).along for event in events] == [None, events[1].along]
