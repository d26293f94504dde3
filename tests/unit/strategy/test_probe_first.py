"""`step.probe-first`: lengths are settled by losses alone, before anybody trains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.guarantee.overrule import CONTRADICTION
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import Float64Array
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.runs import TINY, Stop, StopAfter

CLIENTS = 3
FIRST = {"step.probe-first": True}


def trained(**settings: Any) -> tuple[Outcome, Federation]:
    """A run of five rounds on three quadratics, and what their clients were asked."""
    federation = Federation(settings.pop("objectives", spread_out(CLIENTS)))
    server = strategy(CLIENTS, {"rounds": 5, "step.start": 16.0, **settings})
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    return server.outcome, federation


def models_trained_at(federation: Federation) -> list[Float64Array]:
    """The models that client 0 was asked for a gradient at."""
    return [np.array(given.theta) for client, given in federation.asked if client == 0 and given.task.train]


def test_nobody_trains_at_a_model_that_is_turned_down() -> None:
    outcome, federation = trained(**FIRST)
    assert outcome.status == "finished"
    assert len(models_trained_at(federation)) == 5  # one for each round, though the first factor is far too long
    ordinary, wasteful = trained()
    misses = sum(event.cost.misses for event in ordinary.events[:-1])  # nobody trains after the last round
    assert len(models_trained_at(wasteful)) == 5 + misses
    assert misses > 0


def test_each_round_has_the_longer_factor_where_it_suits_all_and_is_better() -> None:
    outcome, _ = trained(**FIRST, **{"step.start": 0.125, "step.diagnose-every": 1})
    longer = []
    for event in outcome.events:
        assert event.along is not None
        twice, once = np.array([*event.along.losses.values()])[:, :2].T
        assert event.along.factors[:2] == [2 * event.along.factors[1], event.along.factors[1]]
        suit = [bool((losses < event.losses_before).all()) for losses in (twice, once)]
        longer.append(all(suit) and bool(twice.mean() < once.mean()))
        assert (event.factor == event.along.factors[0]) == longer[-1]
        assert (event.factor < event.along.factors[1]) == (not suit[1])
        assert event.cost.misses == (not suit[1])  # a longer step is no miss
    assert {*longer} == {True, False}


class Walled(Quadratic):
    """One whose loss is infinite far from its minimum, as that of a network that diverges."""

    def loss(self, theta: Float64Array) -> float:
        """Infinite beyond a distance of 4."""
        return super().loss(theta) if np.linalg.norm(theta - self.center) < 4 else math.inf


def test_a_loss_that_is_infinite_at_both_lengths_is_no_contradiction() -> None:
    others = spread_out(CLIENTS)
    outcome, _ = trained(objectives=[Walled(others[0].center, others[0].curvature), *others[1:]], **FIRST)
    assert outcome.events[0].cost.misses == 1
    assert CONTRADICTION not in {drop.reason for event in outcome.events for drop in event.dropped}
    assert [event.votes.caught for event in outcome.events] == [()] * 5


def test_a_model_that_was_accepted_is_that_of_the_events() -> None:
    outcome, federation = trained(**FIRST)
    last = np.asarray(outcome.theta, np.float64)
    assert [objective.loss(last) for objective in federation.objectives] == outcome.events[-1].losses_after


@pytest.mark.parametrize("sampled", [{}, {"participation": 0.5}])
def test_a_run_that_was_cut_goes_on_with_the_same_bits(tmp_path: Path, sampled: dict[str, Any]) -> None:
    settings = {**TINY, **FIRST, **sampled, "rounds": 6, "local.batch-size": 16}
    whole = run({**settings, "output": str(tmp_path / "whole")})
    cut = {**settings, "output": str(tmp_path / "cut")}
    with pytest.raises(Stop):
        run(cut, listeners=[StopAfter(3)])
    resumed = run(cut, resume=True)
    assert resumed.theta.tobytes() == whole.theta.tobytes()
    assert [event.factor for event in resumed.events] == [event.factor for event in whole.events]
