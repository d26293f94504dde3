"""An unfit reply costs its client alone: counted by its reason, the others train on as if it were not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.strategy.collect import REPEATED, TIMES
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, Float64Array, on_host
from dqnfed_flwr.wire import Assignment
from tests.helpers.bad_replies import BAD_EVALUATIONS, BAD_PROBES, BAD_TRAINING, UNREADABLE, Meddle, figure, vector
from tests.helpers.grids import Meddling
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.transport import TransportGrid

GRIDS = {"in process": InProcessGrid, "as bytes": TransportGrid}
CLIENTS, BAD = 5, 3
every_grid = pytest.mark.parametrize("grid", GRIDS)


LOSS_UNKNOWN = {
    "no figures",
    "no loss",
    "a loss that is NaN",
    "a loss below nothing",
    "a loss that is a list",
    "an exception",
}
"""Replies of which nobody can tell what the client's loss is: all others make a participant of it."""


def run(meddle: Meddle, grid: str = "in process", since: int = 1, settings: Mapping[str, Any] | None = None) -> DQNFed:
    app = Federation(spread_out(CLIENTS)).app()
    server = strategy(CLIENTS, settings)
    server.start(GRIDS[grid](Meddling(app, BAD, meddle, since), CLIENTS, {}), start_at(np.zeros(6)))
    return server


def without_the_bad_one() -> Float64Array:
    """Where four clients get to alone."""
    objectives = [objective for client, objective in enumerate(spread_out(CLIENTS)) if client != BAD]
    server = strategy(CLIENTS - 1)
    server.start(InProcessGrid(Federation(objectives).app(), CLIENTS - 1, {}), start_at(np.zeros(6)))
    return theta(server)


def theta(server: DQNFed) -> Float64Array:
    assert server.outcome is not None
    return np.asarray(server.outcome.theta)


def drops(server: DQNFed) -> list[list[DroppedClient]]:
    assert server.outcome is not None
    return [event.dropped for event in server.outcome.events]


@every_grid
@pytest.mark.parametrize("kind", BAD_TRAINING)
def test_an_unfit_reply_costs_its_client_alone(kind: str, grid: str) -> None:
    meddle, reason = BAD_TRAINING[kind]
    server = run(meddle, grid)
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    known = kind not in LOSS_UNKNOWN
    for event in server.outcome.events:
        assert event.asked == CLIENTS
        assert event.votes.heard == (0, 1, 2, 4)
        assert event.participants == ([0, 1, 2, 3, 4] if known else [0, 1, 2, 4])
        judged = [event.participants.index(client) for client in event.votes.heard]
        assert all(event.losses_after[k] <= event.losses_before[k] for k in judged)
        assert {(drop.client, drop.reason) for drop in event.dropped} == {(BAD, reason)}
    np.testing.assert_allclose(theta(server), without_the_bad_one(), rtol=1e-10)


def test_an_absurd_rate_is_held_near_the_others_or_left_out() -> None:
    server = run(figure("rate", 1e59))
    assert server.outcome is not None
    assert drops(server) == [[]] * 3
    assert all(event.votes.heard == (0, 1, 2, 3, 4) and event.improved_ratio == 1.0 for event in server.outcome.events)
    server = run(figure("rate", 1e59), settings={"dqn-fed.rate-spread": 0})
    assert server.outcome is not None
    assert [[(drop.client, drop.reason) for drop in dropped] for dropped in drops(server)] == [[(BAD, "bad-rate")]] * 3
    assert all(event.votes.heard == (0, 1, 2, 4) for event in server.outcome.events)


@every_grid
def test_a_client_without_gradient_is_left_out_and_keeps_its_say_nowhere(grid: str) -> None:
    def no_gradient(reply: Message) -> Message:
        return figure("rate", 0.0)(vector(np.zeros_like)(reply))

    server = run(no_gradient, grid)
    assert [[(drop.client, drop.reason) for drop in dropped] for dropped in drops(server)] == [
        [(BAD, "zero-gradient")]
    ] * 3
    np.testing.assert_allclose(theta(server), without_the_bad_one(), rtol=1e-10)


@every_grid
@pytest.mark.parametrize("kind", [*BAD_PROBES, *BAD_EVALUATIONS])
def test_an_unfit_probe_does_not_hold_up_the_others(kind: str, grid: str) -> None:
    meddle, reason = {**BAD_PROBES, **BAD_EVALUATIONS}[kind]
    server = run(meddle, grid, since=2)
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    first, *later = server.outcome.events
    assert first.participants == later[0].participants == [0, 1, 2, 3, 4]
    assert np.isfinite(first.losses_after).tolist() == [True, True, True, kind in BAD_EVALUATIONS, True]
    assert first.improved_ratio == 1.0
    assert later[0].votes.heard == (0, 1, 2, 4)
    assert [(drop.client, drop.reason) for drop in later[0].dropped] == [(BAD, reason)]


@every_grid
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g: g * np.nan, "not-finite"),
        (lambda g: g * np.inf, "not-finite"),
        (lambda g: g[:-1], "bad-shape"),
        (lambda g: g.astype(np.float16), "bad-dtype"),
        (None, "missing-key"),
    ],
)
def test_an_unfit_row_of_the_anchor_costs_its_client_alone(change: Any, reason: str, grid: str) -> None:
    class WithAnchorRows(Federation):
        def reply(self, client: int, given: Assignment) -> ClientReply:
            reply = super().reply(client, given)
            return reply if reply.row is None else replace(reply, vectors={"anchor": 0.1 * on_host(reply.row)})

    def drop_it(reply: Message) -> Message:
        reply.content.array_records["vectors"].pop("extra.anchor", None)
        return reply

    meddle = drop_it if change is None else vector(change, key="extra.anchor")
    server = strategy(CLIENTS, {"dqn-fed.form": "anchored", "dqn-fed.anchor": "fedavg", "dqn-fed.anchor-bits": 32})
    app = Meddling(WithAnchorRows(spread_out(CLIENTS)).app(), BAD, meddle)
    server.start(GRIDS[grid](app, CLIENTS, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    for event in server.outcome.events:
        assert event.participants == [0, 1, 2, 3, 4]
        assert event.votes.heard == (0, 1, 2, 4)
        assert event.unharmed_ratio >= 4 / 5
    assert [(drop.client, drop.reason) for drop in drops(server)[0]] == [(BAD, reason)]


def test_a_message_that_flower_cannot_unpack_costs_its_client_alone() -> None:
    server = run(UNREADABLE, "as bytes")
    assert [[(drop.client, drop.reason) for drop in dropped] for dropped in drops(server)] == [
        [(BAD, "unreadable")]
    ] * 3
    np.testing.assert_allclose(theta(server), without_the_bad_one(), rtol=1e-10)


ONE_A_ROUND = {"participation": 1 / CLIENTS, "rounds": 30, "step-rule": "clipped"}


@pytest.mark.parametrize("kind", ["a gradient with NaN", "no vector", "an exception"])
def test_where_one_of_many_is_asked_another_takes_the_place_of_a_bad_one(kind: str) -> None:
    meddle, reason = BAD_TRAINING[kind]
    server = run(meddle, settings=ONE_A_ROUND)
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    heard = [event.votes.heard for event in server.outcome.events]
    assert all(len(clients) == 1 for clients in heard)
    assert {client for (client,) in heard} == {0, 1, 2, 4}
    reasons = {(drop.client, drop.reason) for dropped in drops(server) for drop in dropped}
    # One that fails each time whatever the model is not asked any more.
    assert reasons == {(BAD, reason)} | (set() if reason == "not-finite" else {(BAD, REPEATED)})
    times = [drop for dropped in drops(server) for drop in dropped if drop.reason == reason]
    assert TIMES <= len(times) <= 2 * TIMES or reason == "not-finite"  # an exchange that trains nobody does not count


def once(kind: str) -> Callable[[Message], Message]:
    """What does to the first reply alone what a row of `BAD_TRAINING` does."""
    first = iter([BAD_TRAINING[kind][0]])
    return lambda reply: next(first, lambda unchanged: unchanged)(reply)


def test_who_was_of_no_use_once_is_drawn_again() -> None:
    server = run(once("no vector"), settings=ONE_A_ROUND)
    assert server.outcome is not None
    assert {client for event in server.outcome.events for client in event.participants} == set(range(CLIENTS))
    assert sum(len(dropped) for dropped in drops(server)) == 1


def test_a_client_that_recovers_takes_part_again() -> None:
    server = run(once("a gradient with NaN"))
    assert server.outcome is not None
    assert [event.votes.heard for event in server.outcome.events] == [(0, 1, 2, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)]


class Wall(Quadratic):
    """A loss that is not finite beyond a distance from its minimum, as that of a model that overflows."""

    def loss(self, theta: Float64Array) -> float:
        """Not finite further out than 1.5 times the way from 0."""
        far = np.linalg.norm(theta - self.center) > 1.5 * np.linalg.norm(self.center)
        return float("nan") if far else super().loss(theta)

    def gradient(self, theta: Float64Array) -> Float64Array:
        """NaN where the loss is."""
        return super().gradient(theta) + (0.0 if np.isfinite(self.loss(theta)) else np.nan)


def test_a_candidate_where_a_client_diverges_is_rejected_by_its_word() -> None:
    # The others like the long step; for client 2 it ends where its loss, its gradient and all else are NaN.
    far, near = np.array([8.0, 0.0]), np.array([1.0, 0.0])
    objectives = [Quadratic(far), Quadratic(far), Wall(near)]
    server = strategy(3, {"step.start": 1.0, "rounds": 2, "dqn-fed.rate-spread": 0})
    server.start(InProcessGrid(Federation(objectives).app(), 3, {}), start_at([0.0, 0.0]))
    assert server.outcome is not None
    first = server.outcome.events[0]
    assert first.cost.misses == 1
    assert first.factor < 1
    assert first.improved_ratio == 1.0
    assert first.participants == [0, 1, 2]
    assert np.isfinite(first.losses_after).all()


def test_too_few_good_replies_end_the_run_with_the_reason() -> None:
    meddle, _ = BAD_TRAINING["an exception"]
    with pytest.raises(QuorumError) as caught:
        run(meddle, settings={"min-clients": 5, "retries": 2})
    text = str(caught.value)
    assert "4 usable replies in round 1, 3 times in a row; min-clients is 5" in text
    assert "1 of 1 left out: client-error, client 3: code 2: Traceback" in text
    assert text.endswith("ZeroDivisionError: the client's own mistake")
    assert "\n" not in text
