"""A client that is left out is in an event, and is removed only where the exchange settled something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.app import app
from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.strategy.loop import most_frequent_reason
from dqnfed_flwr.strategy.own_clients import OwnClients
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, Probe
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

CLIENTS, BAD = 6, 3


class Failing(Federation):
    """In some exchanges some clients send a gradient that is no number."""

    exchanges: Collection[int] = ()
    clients: Collection[int] = (BAD,)

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Fail, or not."""
        reply = super().reply(client, given)
        if client not in self.clients or given.task.exchange not in self.exchanges or reply.row is None:
            return reply
        return replace(reply, row=reply.row * np.nan)


class Refusing(Failing):
    """And no candidate suits anybody."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Refuse."""
        reply = super().reply(client, given)
        return reply if reply.probe is None else replace(reply, probe=Probe(1e9, False))


SERVED = {"guarantee.entitlement": 10}
"""All losses are below it, so that who refuses every factor contradicts no gradient."""


def run(exchanges: Collection[int], clients: Collection[int], settings: Mapping[str, Any]) -> DQNFed:
    federation = Failing(spread_out(CLIENTS))
    federation.exchanges, federation.clients = exchanges, clients
    server = strategy(CLIENTS, settings)
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.zeros(6)))
    return server


def drops(server: DQNFed) -> list[list[tuple[int, str]]]:
    assert server.outcome is not None
    return [[(drop.client, drop.reason) for drop in event.dropped] for event in server.outcome.events]


@pytest.mark.parametrize("min_clients", [1, 2])
def test_what_most_fail_at_is_no_fault_of_theirs(min_clients: int) -> None:
    # From exchange 2 on, three in a row bring one fit reply: with min-clients 2 they fall short, with 1 they count.
    settings = {"rounds": 7, "min-clients": min_clients, "retries": 5}
    server = run((2, 3, 4), range(1, CLIENTS), settings)
    assert {reason for dropped in drops(server) for _, reason in dropped} == {"not-finite"}
    assert server.outcome is not None
    assert server.outcome.events[-1].participants == list(range(CLIENTS))


def test_one_that_fails_in_exchanges_that_fall_short_is_not_struck() -> None:
    server = run((1, 2, 3), (BAD,), {"min-clients": CLIENTS, "retries": 5})
    assert drops(server) == [[(BAD, "not-finite")], [], []]
    assert server.outcome is not None
    assert [event.participants for event in server.outcome.events] == [list(range(CLIENTS))] * 3


def test_one_that_fails_where_the_candidate_misses_is_counted_once() -> None:
    server = run((2,), (BAD,), {"step.start": 64.0})
    assert server.outcome is not None
    assert server.outcome.events[0].cost.misses > 0
    assert drops(server) == [[(BAD, "not-finite")], [], []]


def test_one_that_fails_before_a_retreat_is_counted() -> None:
    federation = Refusing(spread_out(CLIENTS))
    federation.exchanges = (1,)
    server = strategy(CLIENTS, {"dqn-fed.form": "anchored", "step.on-stationary": "stay", "rounds": 1, **SERVED})
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.ones(6)))
    assert drops(server) == [[(BAD, "not-finite")]]
    assert server.outcome is not None
    assert server.outcome.events[0].participants == list(range(CLIENTS))


def test_a_run_in_which_nobody_may_train_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # FedCorr gives turns to clients 0 and 1; the nodes are numbered 2 and 3.
    path = tmp_path / "mine.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x_train=rng.standard_normal((60, 5), np.float32), y_train=np.arange(60) % 3, num_classes=np.array(3))
    settings = Settings.from_mapping(
        {
            "method": "fedcorr",
            "partition": "file",
            "data": str(path),
            "clients": 2,
            "rounds": 20,
            "fedcorr.preprocessing": 1,
            "fedcorr.finetuning": 1,
            "model": "logistic",
            "local.threads": 1,
        }
    )
    grid = InProcessGrid(app, 2, settings.flat())
    for node, context in grid._contexts.items():
        context.node_config = {"partition-id": node, "data": str(path)}
    exchanges = 0
    exchange = OwnClients._exchange

    def counted(self: OwnClients, *args: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        if exchanges > 10:
            raise AssertionError("it goes on for ever")
        return exchange(self, *args)

    monkeypatch.setattr(OwnClients, "_exchange", counted)
    with pytest.raises(QuorumError, match=r"none of clients \[2, 3\]"):
        DQNFed(settings).start(grid, wire.encode_model(np.zeros(18, np.float32), {}))


def test_the_most_frequent_reason_is_told_with_its_first_and_last_line() -> None:
    dropped = {
        1: DroppedClient(1, "absent", "no reply"),
        4: DroppedClient(4, "client-error", "code 2: Traceback\n  File x\n\nValueError: no data\n"),
        7: DroppedClient(7, "client-error", "another"),
    }
    assert most_frequent_reason(dropped.values(), moved=True) == (
        ". 2 of 3 left out: client-error, client 4: code 2: Traceback ... ValueError: no data"
    )
    assert most_frequent_reason([dropped[1]], moved=True) == ". 1 of 1 left out: absent, client 1: no reply"
    assert most_frequent_reason([], moved=True) == ""


def test_replies_that_are_all_too_large_tell_of_a_training_that_diverged() -> None:
    wild = {
        k: DroppedClient(k, "not-finite", "the gradient holds NaN or Inf, or is longer than 1.8e19") for k in range(3)
    }
    wild |= {3: DroppedClient(3, "not-finite", "loss is nan")}
    assert "All at once: the training has diverged; lower local.lr" in most_frequent_reason(wild.values(), moved=True)
    assert "All at once, at the model that the run began with: lower" in most_frequent_reason(
        wild.values(), moved=False
    )
    assert "diverged" not in most_frequent_reason([*wild.values(), DroppedClient(4, "absent", "no reply")], moved=True)
    assert "diverged" not in most_frequent_reason([wild[0]], moved=True)


def test_a_reason_without_details_is_told() -> None:
    assert most_frequent_reason([DroppedClient(1, "odd", "")], moved=True).endswith("odd, client 1: ")
