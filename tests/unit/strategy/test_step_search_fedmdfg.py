"""FedMDFG's line search over exchanges: what is accepted is what it names, and a stop in between changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.overrule import CONTRADICTION
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import ClientReply, ClientTask
from dqnfed_flwr.wire import Assignment
from tests.helpers.grids import ShuffledGrid
from tests.helpers.quadratics import Federation, Quadratic, opposed, spread_out, start_at, strategy

REACH = 5
SETTINGS: Mapping[str, Any] = {"method": "fedmdfg", "rounds": 6, "local.lr": 0.1}


def fedmdfg(clients: int, **settings: Any) -> DQNFed:
    return strategy(clients, {**SETTINGS, **settings})


def run(federation: Federation, **settings: Any) -> DQNFed:
    clients = len(federation.objectives)
    server = fedmdfg(clients, **settings)
    server.start(InProcessGrid(federation.app(), clients, {}), start_at(np.zeros(6)))
    return server


def tasks_of(federation: Federation, client: int) -> list[tuple[ClientTask, np.ndarray[Any, Any]]]:
    return [(given.task, np.asarray(given.theta)) for asked, given in federation.asked if asked == client]


def test_every_round_takes_the_largest_factor_that_suits_all() -> None:
    federation = Federation(spread_out(4))
    server = run(federation)
    assert server.outcome is not None
    # Theta after each round: the last candidate sent before gradients of a later round are asked for.
    models: dict[int, np.ndarray[Any, Any]] = {}
    for task, theta in tasks_of(federation, 0):
        models[task.round - 1] = theta
    for event, (before, after) in zip(server.outcome.events, pairwise(models[t] for t in range(7)), strict=True):
        assert event.factor == 2.0 ** round(np.log2(event.factor))
        step = (before - after) / event.factor

        def suits(
            factor: float, before: Any = before, step: Any = step, fair: bool = event.notes["fairness"] > 0
        ) -> bool:
            old = np.array([objective.loss(before) for objective in federation.objectives])
            new = np.array([objective.loss(before - factor * step) for objective in federation.objectives])
            slopes = np.array([objective.gradient(before) @ step for objective in federation.objectives])
            fallen = bool((new <= old - 1e-4 * factor * slopes).all())
            angles = [values.sum() / np.linalg.norm(values) for values in (old, new)]
            return fallen and (not fair or angles[1] > angles[0])

        larger = [event.factor * 2.0**power for power in range(1, 12) if event.factor * 2.0**power <= 2**REACH]
        assert suits(event.factor)
        assert not any(suits(factor) for factor in larger)
        assert event.improved_ratio == 1.0


def test_a_search_that_names_the_candidate_costs_no_exchange() -> None:
    federation = Federation([Quadratic(np.ones(6), 1.0), Quadratic(np.ones(6), 1.0)])
    server = run(federation, rounds=4)
    assert server.outcome is not None
    misses = [event.cost.misses for event in server.outcome.events]
    assert set(misses) <= {0, 1}
    assert misses[-1] == 0  # from there on the factor stays as it is
    assert sum(event.cost.exchanges for event in server.outcome.events) == 5 + sum(misses)
    asked = [task for task, _ in tasks_of(federation, 0) if task.probe]
    # A ladder around each first candidate of a round, none around what a search has named.
    assert sum(bool(task.rungs) for task in asked) == 4
    assert all(max(task.rungs) == 2.0**REACH for task in asked if task.rungs)
    lines = [given.step is not None for client, given in federation.asked if client == 0 and given.task.probe]
    assert lines == [bool(task.rungs) for task in asked]


class Interrupted(InProcessGrid):
    """A grid that fails before the exchange of a number, from 1."""

    def __init__(self, federation: Federation, number: int) -> None:
        super().__init__(federation.app(), len(federation.objectives), {})
        self._left = number

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send, or fail."""
        messages = list(messages)
        self._left -= any(message.metadata.message_type != MessageType.QUERY for message in messages)
        if not self._left:
            raise RuntimeError("interrupted")
        return super().push_messages(messages)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_stopped_between_any_two_exchanges_goes_on_with_the_same_bits(
    tmp_path: Path, participation: float
) -> None:
    def on(grid: InProcessGrid, **settings: Any) -> DQNFed:
        server = fedmdfg(6, rounds=4, participation=participation, **settings)
        server.start(grid, start_at(np.zeros(6)))
        return server

    whole = on(InProcessGrid(Federation(spread_out(6)).app(), 6, {})).outcome
    assert whole is not None
    exchanges = sum(event.cost.exchanges for event in whole.events)
    assert exchanges > 5  # there are misses, so that some stops fall between a search and its acceptance
    resumptions = 0
    for number in range(2, exchanges + 1):
        output = {"output": str(tmp_path / str(number))}
        with pytest.raises(RuntimeError, match="interrupted"):
            on(Interrupted(Federation(spread_out(6)), number), **output)
        if not (tmp_path / str(number) / "checkpoint.npz").exists():
            continue
        resumed = on(InProcessGrid(Federation(spread_out(6)).app(), 6, {}), **output, resume=True).outcome
        assert resumed is not None
        assert np.array_equal(resumed.theta, whole.theta)
        resumptions += 1
    assert resumptions >= exchanges - 3  # all but those before the first round was settled


def test_replies_in_any_order_give_the_same_bits() -> None:
    def final(grid: InProcessGrid) -> list[float]:
        server = fedmdfg(7, participation=0.6)
        server.start(grid, start_at(np.zeros(6)))
        assert server.outcome is not None
        return [float(value) for value in server.outcome.theta]

    straight = final(InProcessGrid(Federation(spread_out(7)).app(), 7, {}))
    assert final(ShuffledGrid(Federation(spread_out(7)).app(), 7, 1)) == straight


class Ruinous(Federation):
    """A federation some of whose clients claim that their loss is finite nowhere on a ladder."""

    liars: tuple[int, ...] = (3,)
    always = False

    def reply(self, client: int, given: Assignment) -> ClientReply:
        """As the others, but for that."""
        reply = super().reply(client, given)
        if client not in self.liars or reply.probe is None or not (self.always or given.task.round == 4):
            return reply
        return replace(reply, probe=replace(reply.probe, losses=(np.nan,) * len(reply.probe.losses)))


def test_one_client_that_is_finite_nowhere_does_not_end_the_search_of_the_others() -> None:
    federation, honest = Ruinous(spread_out(6)), run(Federation(spread_out(6)))
    server = run(federation)
    assert server.outcome is not None
    assert honest.outcome is not None
    assert server.outcome.status == honest.outcome.status == "finished"
    assert [
        drop.client for event in server.outcome.events for drop in event.dropped if drop.reason == CONTRADICTION
    ] == [3]
    assert all(event.factor > 0 for event in server.outcome.events)


def test_one_that_is_so_always_holds_up_no_round() -> None:
    federation = Ruinous(spread_out(6))
    federation.always = True
    server = run(federation, rounds=12)
    assert server.outcome is not None
    assert len(server.outcome.events) == 12
    assert all(event.factor > 0 for event in server.outcome.events)
    drops = [[(drop.client, drop.reason) for drop in event.dropped] for event in server.outcome.events]
    assert drops == [[(3, CONTRADICTION)]] * 12


@pytest.mark.parametrize("liars", [(0, 1, 2), (0, 1, 2, 4, 5)])
def test_several_that_are_finite_nowhere_are_found_out_by_one_that_is(liars: tuple[int, ...]) -> None:
    federation = Ruinous(spread_out(6))
    federation.liars = liars
    server = run(federation)
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    assert [drop.client for event in server.outcome.events for drop in event.dropped] == list(liars)


def test_all_are_believed() -> None:
    federation = Ruinous(spread_out(6))
    federation.liars = tuple(range(6))
    server = run(federation)
    assert server.outcome is not None
    assert server.outcome.status == "line-search-failed"
    assert (server.outcome.events[-1].status, server.outcome.events[-1].dropped) == ("line-search-failed", [])


def test_opposite_gradients_end_the_run() -> None:
    server = fedmdfg(2)
    server.start(InProcessGrid(Federation(opposed()).app(), 2, {}), start_at([0.0, 0.0]))
    assert server.outcome is not None
    assert server.outcome.status == "pareto-stationary"


@pytest.mark.parametrize("rule", ["probed", "newton", "fixed", "clipped"])
def test_other_rules_serve_too(rule: str) -> None:
    server = run(Federation(spread_out(4)), **{"step-rule": rule, "step.lr": 1.0})
    assert server.outcome is not None
    assert server.outcome.events[-1].losses_after < server.outcome.events[0].losses_before
