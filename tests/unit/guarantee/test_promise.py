"""What is promised to each client, whatever some of the others send: laws on small convex federations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._lies import LIES, Known, Liars
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.harm import ceiling
from dqnfed_flwr.guarantee.overrule import OVERRULED
from dqnfed_flwr.strategy.step_search import UNMOVED_ROUNDS
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import FloatArray
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy

DIM = 6


def run(app: Any, clients: int, rounds: int, **changes: Any) -> Outcome:
    server = strategy(clients, {"rounds": rounds, "dqn-fed.form": "anchored"} | changes)
    server.start(InProcessGrid(app, clients, {}), start_at(np.zeros(DIM)))
    assert server.outcome is not None
    return server.outcome


def with_common_optimum(clients: int, seed: int) -> list[Quadratic]:
    rng = np.random.default_rng(seed)
    center = 1 + rng.standard_normal(DIM)
    return [Quadratic(center, rng.uniform(0.5, 2.0, DIM)) for _ in range(clients)]


class Anything:
    """Every half of every lie, drawn anew for each message."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def _any(self, half: int) -> Callable[..., Any]:
        names = sorted(LIES)
        return LIES[names[self._rng.integers(len(names))]][half]

    def row(self, row: FloatArray, known: Known) -> FloatArray:
        """Some row."""
        found: FloatArray = self._any(0)(row, known)
        return found

    def words(self, figures: MetricRecord, known: Known) -> None:
        """Some words."""
        self._any(1)(figures, known)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_whatever_one_of_four_sends_three_honest_clients_reach_their_optimum(seed: int) -> None:
    honest, lie = with_common_optimum(3, seed), Anything(seed)
    app = Liars(Federation([*honest, Quadratic(np.zeros(DIM))]).app(), (3,), lie.row, lie.words)
    outcome = run(app, 4, 80, **{"guarantee.tolerate": 1})
    assert outcome.status in ("finished", "pareto-stationary")  # the latter at the very optimum, before round 80
    theta = np.asarray(outcome.theta)
    for objective in honest:
        assert objective.loss(theta) <= 1e-2 * objective.loss(np.zeros(DIM))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_no_lies_get_an_honest_client_overruled_twice_in_a_row(seed: int, liars: int) -> None:
    clients, lie = 2 * liars + 3, Anything(seed)
    app = Liars(Federation(spread_out(clients, seed=seed)).app(), tuple(range(clients))[-liars:], lie.row, lie.words)
    events = run(app, clients, 40, **{"guarantee.tolerate": liars}).events
    for before, after in pairwise(events):
        assert not set(before.votes.overruled) & set(after.votes.overruled)
        assert len(after.votes.overruled) <= liars


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.5]))
def test_where_nobody_may_lie_nobody_rises_above_what_it_is_entitled_to(seed: int, level: float) -> None:
    events = run(Federation(spread_out(5, seed=seed)).app(), 5, 30, **{"guarantee.entitlement": str(level)}).events
    for event in events:
        assert event.entitlement == level
        assert [*event.votes.heard] == event.participants == [0, 1, 2, 3, 4]
        assert event.harmed == []
        for before, after in zip(event.losses_before, event.losses_after, strict=True):
            assert after <= ceiling(before, level)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_an_honest_client_is_harmed_only_where_it_was_overruled_and_is_named(seed: int) -> None:
    lie = Anything(seed)
    app = Liars(Federation(spread_out(7, seed=seed)).app(), (5, 6), lie.row, lie.words)
    for event in run(app, 7, 30, **{"guarantee.tolerate": 2}).events:
        assert {*event.harmed} - {5, 6} <= {*event.votes.overruled}
        assert {*event.votes.overruled} <= {drop.client for drop in event.dropped if drop.reason == OVERRULED}


def test_a_client_whose_row_is_unusable_is_counted_all_the_same() -> None:
    app = Liars(Federation(spread_out(4)).app(), (3,), lambda row, known: row * np.nan, LIES["stale row"][1])
    events = run(app, 4, 4).events
    assert all(event.participants == [0, 1, 2, 3] and event.votes.heard == (0, 1, 2) for event in events)
    assert all(event.asked == 4 for event in events)
    assert all((3, "not-finite") in {(drop.client, drop.reason) for drop in event.dropped} for event in events)


@pytest.mark.parametrize(("liars", "rounds"), [(0, 1), (1, UNMOVED_ROUNDS)])
def test_a_conflict_of_halves_ends_the_run_at_once_or_after_some_rounds_with_its_certificate(
    liars: int, rounds: int
) -> None:
    """One of four may be overruled, which is not enough here; the next round might have been another."""
    ahead, back = (Quadratic(side * np.eye(DIM)[0]) for side in (1.0, -1.0))
    outcome = run(Federation([ahead, ahead, back, back]).app(), 4, 20, **{"guarantee.tolerate": liars})
    assert (outcome.status, len(outcome.events)) == ("pareto-stationary", rounds)
    last = outcome.events[-1]
    assert last.certificate.distance < 1e-6
    assert sum(last.certificate.weights.values()) == pytest.approx(1.0)
    assert {client // 2 for client in last.certificate.weights} == {0, 1}
