"""A run whose nodes are slow, go, come back under other ids, or are only asked now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks._clock import Clock
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.grids import ChangingGrid, SilentGrid
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

pytestmark = pytest.mark.usefixtures("clock")

CLIENTS = 4


def started(grid: InProcessGrid, settings: Mapping[str, Any] | None = None) -> DQNFed:
    server = strategy(CLIENTS, {"deadline": 30, "rounds": 4, **(settings or {})})
    server.start(grid, start_at(np.zeros(6)))
    return server


def events(server: DQNFed) -> list[RoundEvent]:
    assert server.outcome is not None
    return server.outcome.events


def changing(plan: Callable[[ChangingGrid], None]) -> ChangingGrid:
    return ChangingGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, plan)


def app_of(clients: int) -> InProcessGrid:
    return InProcessGrid(Federation(spread_out(clients)).app(), clients, {})


def test_a_slow_client_is_waited_for_until_the_deadline_and_counted(clock: Clock) -> None:
    grid = SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[2])
    server = started(grid)
    for event in events(server):
        assert event.participants == [0, 1, 3]
        assert {(drop.client, drop.reason) for drop in event.dropped} == {(2, "absent")}
        assert event.improved_ratio == 1.0
    exchanges = sum(event.cost.exchanges for event in events(server))
    assert clock.slept == pytest.approx(30 * exchanges)


def test_a_quorum_does_not_wait_for_the_slow_one(clock: Clock) -> None:
    grid = SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[0])
    server = started(grid, {"quorum": 0.75})
    assert clock.slept == 0
    assert [event.participants for event in events(server)] == [[1, 2, 3]] * 4
    assert all((drop.client, drop.reason) == (0, "absent") for event in events(server) for drop in event.dropped)


def test_a_client_that_falls_silent_after_training_has_no_loss_afterwards() -> None:
    grid = SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[])

    class Listener:
        def on_start(self, rounds: int, done: list[RoundEvent]) -> None: ...

        def on_round(self, event: RoundEvent) -> None:
            grid.silent = {3} if event.round == 2 else set()  # client 1, from the next exchange on

        def on_end(self) -> None: ...

    server = DQNFed(
        strategy(CLIENTS, {"deadline": 30, "rounds": 4, "step-rule": "clipped"}).settings, listeners=[Listener()]
    )
    server.start(grid, start_at(np.zeros(6)))
    third = events(server)[2]
    assert third.participants == [0, 1, 2, 3]
    assert np.isnan(third.losses_after).tolist() == [False, True, False, False]
    assert third.improved_ratio == 1.0  # of those who answered again
    fourth = events(server)[3]
    assert fourth.participants == [0, 2, 3]
    assert [(drop.client, drop.reason) for drop in fourth.dropped] == [(1, "absent")]


def test_a_node_that_is_lost_is_not_asked_any_more() -> None:
    server = started(changing(lambda grid: grid.leave(4) if grid.exchanges == 1 else None))
    assert [event.participants for event in events(server)] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3], [0, 1, 3]]
    assert np.isnan(events(server)[0].losses_after).tolist() == [False, False, True, False]
    assert not any(event.dropped for event in events(server))


def test_a_node_that_comes_back_under_another_id_goes_on_as_the_same_client() -> None:
    def plan(grid: ChangingGrid) -> None:
        if grid.exchanges == 1:
            grid.leave(4)
            grid.join(1000, client=2)

    steady = started(changing(lambda grid: None))
    server = started(changing(plan))
    assert [event.participants for event in events(server)] == [[0, 1, 2, 3]] * 4
    assert steady.outcome is not None
    assert server.outcome is not None
    assert np.array_equal(server.outcome.theta, steady.outcome.theta)


def test_a_run_waits_for_its_nodes_to_come_back(clock: Clock) -> None:
    def plan(grid: ChangingGrid) -> None:
        if grid.exchanges == 2:
            for node in (2, 3, 4, 5):
                grid.leave(node)
        if grid.looked == 20:
            for client in range(CLIENTS):
                grid.join(50 + client, client)

    server = started(changing(plan))
    assert [event.participants for event in events(server)] == [[0, 1, 2, 3]] * 4
    assert clock.slept > 0


def test_a_run_without_nodes_ends_with_the_model_it_had() -> None:
    def plan(grid: ChangingGrid) -> None:
        if grid.exchanges == 2:
            for node in (2, 3, 4, 5):
                grid.leave(node)

    with pytest.raises(QuorumError, match=r"0 clients are there, 3 times in a row; .* unchanged since round [12]"):
        started(changing(plan), {"retries": 2})


def test_when_all_who_must_judge_are_gone_the_step_is_dropped_for_the_others_sake(clock: Clock) -> None:
    # One client a round; it vanishes for good after its step was formed, and nobody else knows its loss.
    federation = Federation(spread_out(CLIENTS))
    gone: list[int] = []

    def plan(grid: ChangingGrid) -> None:
        if grid.exchanges == 1 and not gone:
            gone.append(federation.asked[-1][0])
            grid.leave(2 + gone[0])

    server = started(ChangingGrid(federation.app(), CLIENTS, plan), {"participation": 0.25})
    first, *others = events(server)
    assert (first.status, first.factor, first.participants) == ("unjudged", 0.0, gone)
    assert first.losses_after == first.losses_before
    assert [event.round for event in others] == [2, 3, 4]
    assert all(event.factor > 0 and event.participants != gone for event in others)


def test_too_few_replies_are_asked_for_again_and_then_the_run_ends(clock: Clock) -> None:
    grid = SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[1, 2])
    with pytest.raises(QuorumError) as caught:
        started(grid, {"min-clients": 3, "retries": 3})
    assert "2 usable replies in round 1, 4 times in a row; min-clients is 3, deadline 30 s" in str(caught.value)
    assert "2 of 2 left out: absent, client 1: no reply before the exchange closed" in str(caught.value)
    assert clock.slept == pytest.approx(4 * 30)


def test_a_shortage_that_passes_costs_only_time(clock: Clock) -> None:
    grid = SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[1, 2])
    grid.until = 4  # the query, and two exchanges that fail
    server = started(grid, {"min-clients": 3})
    assert [event.participants for event in events(server)] == [[0, 1, 2, 3]] * 4
    assert events(server)[0].cost.exchanges == 4
    reference = started(changing(lambda grid: None))
    assert reference.outcome is not None
    assert server.outcome is not None
    assert np.array_equal(server.outcome.theta, reference.outcome.theta)


def test_half_of_the_clients_are_asked_in_a_round_and_all_are_evaluated() -> None:
    def run(seed: int) -> list[RoundEvent]:
        server = strategy(10, {"participation": 0.5, "evaluate-every": 1, "rounds": 12, "seed": seed})
        server.start(app_of(10), start_at(np.zeros(6)))
        return events(server)

    rounds = run(5)
    assert all(len(event.participants) == 5 for event in rounds)
    assert len({tuple(event.participants) for event in rounds}) > 6
    asked = Counter(client for event in rounds for client in event.participants)
    assert set(asked) == set(range(10))
    assert all(event.evaluated.test is not None and sorted(event.evaluated.test) == list(range(10)) for event in rounds)
    assert [event.participants for event in run(5)] == [event.participants for event in rounds]
    assert [event.participants for event in run(6)] != [event.participants for event in rounds]


def test_those_who_judge_a_step_are_those_who_made_it() -> None:
    federation = Federation(spread_out(10))
    server = strategy(10, {"participation": 0.3, "rounds": 5, "evaluate-every": 0, "step-rule": "clipped"})
    server.start(InProcessGrid(federation.app(), 10, {}), start_at(np.zeros(6)))
    rounds = events(server)
    for event in rounds:
        trained = [c for c, given in federation.asked if given.task.train and given.task.round == event.round]
        probed = [c for c, given in federation.asked if given.task.probe and given.task.exchange == event.round + 1]
        assert trained == probed == event.participants
    assert not any(math_nan for event in rounds for math_nan in np.isnan(event.losses_after))
