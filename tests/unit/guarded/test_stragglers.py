"""A guarded run waits for a share of its nodes, and does not ask those again that are still at work."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from benchmarks._clock import Clock
from benchmarks._queueing import FIRST_NODE, QueueingGrid
from dqnfed_flwr import Guaranteed
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.strategy import exchange
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.guarded_app import alike, app_on, linear

CLIENTS, SLOW = 4, 2
SLOW_NODE = SLOW + FIRST_NODE
TIMEOUT = 10.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exchange, "time", clock)
    return clock


def federation(clock: Clock, slow: float) -> QueueingGrid:
    """Nodes that need a second each, and one that needs `slow`."""
    app = app_on(alike(CLIENTS), lambda: linear(4, 2), lr=0.1, held_out=alike(CLIENTS, seed=1))
    grid = QueueingGrid(app, CLIENTS, clock)
    for client, node in grid.nodes.items():
        node.seconds = slow if client == SLOW else 1.0
    return grid


def run(grid: QueueingGrid, rounds: int = 8, *, quorum: float = 1.0, available: int = 2) -> list[RoundEvent]:
    random.seed(0)
    torch.manual_seed(0)
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0, min_available_nodes=available), quorum=quorum)
    start = ArrayRecord(linear(4, 2).state_dict())
    guarded.start(grid, start, num_rounds=rounds, timeout=TIMEOUT)
    return guarded.events


def dropped(events: list[RoundEvent]) -> Counter[tuple[int, str]]:
    return Counter((drop.client, drop.reason) for event in events for drop in event.dropped)


def test_a_node_slower_than_the_timeout_has_one_message_at_a_time(clock: Clock) -> None:
    grid = federation(clock, slow=24.0)
    events = run(grid, 20)
    asked = [when for client, when in grid.asked if client == SLOW]
    assert all(later - earlier >= 24 for earlier, later in itertools.pairwise(asked))
    assert len(asked) < 5 < len([client for client, _ in grid.asked if client == 0])
    assert all(event.participants == [2, 3, 5] for event in events)
    assert {reason for client, reason in dropped(events) if client == SLOW_NODE} == {"absent", "owing", "late"}
    assert clock.now - 1000 < 20 * TIMEOUT / 2  # without that, each round waits for it until the timeout


def test_a_node_that_is_still_at_its_evaluation_is_not_asked_to_train(clock: Clock) -> None:
    grid = federation(clock, slow=15.0)
    random.seed(0)
    torch.manual_seed(0)
    guarded = Guaranteed(FedAvg(fraction_evaluate=1.0))
    guarded.start(grid, ArrayRecord(linear(4, 2).state_dict()), num_rounds=20, timeout=TIMEOUT)
    asked = [when for client, when in grid.asked if client == SLOW]
    assert all(later - earlier >= 15 for earlier, later in itertools.pairwise(asked))
    assert grid.nodes[SLOW].backlog <= 1


@pytest.mark.parametrize("trained", [2, CLIENTS])
def test_a_strategy_that_samples_more_nodes_than_are_free_does_not_wait_for_ever(clock: Clock, trained: int) -> None:
    grid = federation(clock, slow=24.0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=trained, min_available_nodes=2)
    guarded = Guaranteed(strategy)
    guarded.start(grid, ArrayRecord(linear(4, 2).state_dict()), num_rounds=6, timeout=TIMEOUT)
    assert all(event.moved and event.participants == [2, 3, 5] for event in guarded.events)


def test_an_exchange_closes_at_the_quorum(clock: Clock) -> None:
    events = run(federation(clock, slow=9.0), quorum=0.75)
    assert len(events) == 8
    assert all(event.moved and event.participants == [2, 3, 5] for event in events)
    assert clock.now - 1000 < 4 * 8
    with pytest.raises(ConfigError, match="quorum"):
        Guaranteed(FedAvg(), quorum=0.0)


class Tiring(FedAvg):
    """Other nodes are slow in each round."""

    def __init__(self, grid: QueueingGrid) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=2)
        self._grid = grid

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        for client, node in self._grid.nodes.items():
            node.seconds = 1.0 + 2 * ((client + server_round) % 4)
        return super().aggregate_train(server_round, replies)


def test_a_quorum_closes_no_exchange_before_the_step_can_be_judged(clock: Clock) -> None:
    grid = federation(clock, slow=1.0)
    random.seed(0)
    torch.manual_seed(0)
    guarded = Guaranteed(Tiring(grid), quorum=0.25)
    guarded.start(grid, ArrayRecord(linear(4, 2).state_dict()), num_rounds=20, timeout=TIMEOUT)
    assert [(event.round, event.status) for event in guarded.events if not event.moved] == []
    assert clock.now - 1000 < 20 * TIMEOUT


def test_a_strategy_that_needs_all_nodes_is_given_all_and_the_one_at_work_is_not_asked(clock: Clock) -> None:
    grid = federation(clock, slow=24.0)
    events = run(grid, available=CLIENTS)
    assert all(event.participants == [2, 3, 5] for event in events)
    assert grid.nodes[SLOW].backlog <= 1


def test_a_node_that_was_slow_for_a_while_judges_by_its_held_out_part_again(clock: Clock) -> None:
    grid = federation(clock, slow=14.0)

    class Recovers:
        def on_start(self, rounds: int, done: list[RoundEvent]) -> None: ...

        def on_round(self, event: RoundEvent) -> None:
            if event.round == 3:
                grid.nodes[SLOW].seconds = 1.0

        def on_end(self) -> None: ...

    random.seed(0)
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), judge="both", listeners=[Recovers()])
    guarded.start(grid, ArrayRecord(linear(4, 2).state_dict()), num_rounds=14, timeout=TIMEOUT)
    assert [event.participants for event in guarded.events[:3]] == [[2, 3, 5]] * 3
    assert SLOW_NODE in guarded.events[-1].participants
    assert all(event.moved and event.votes.unable == () for event in guarded.events)
    assert not {reason for _, reason in dropped(guarded.events)} & {"contradiction", "client-error"}


class Leaving(FedAvg):
    """The nodes of the first round are gone when they have trained."""

    def __init__(self, grid: QueueingGrid) -> None:
        super().__init__(fraction_train=0.5, fraction_evaluate=0.0)
        self._grid = grid

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if server_round == 1:
            for reply in replies:
                self._grid.nodes[reply.metadata.src_node_id - FIRST_NODE].online = False
        return super().aggregate_train(server_round, replies)


def test_a_step_whose_participants_are_all_gone_is_dropped_and_the_run_goes_on(clock: Clock) -> None:
    grid = federation(clock, slow=1.0)
    random.seed(0)
    torch.manual_seed(0)
    guarded = Guaranteed(Leaving(grid))
    guarded.start(grid, ArrayRecord(linear(4, 2).state_dict()), num_rounds=3, timeout=TIMEOUT)
    first, *others = guarded.events
    assert (first.status, first.moved, len(others)) == ("unjudged", False, 2)
    assert all(event.moved and not {*event.participants} & {*first.participants} for event in others)
    assert clock.now - 1000 < TIMEOUT
