"""A client whose loss is curved far more sharply than those of the others: it costs exchanges and not its vote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.harm import resolution
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import ClientReply
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy

CLIENTS, ODD = 6, 3


def sharp(curvature: float) -> Quadratic:
    """At 0 its minimum along the first coordinate, which it measures in units of its own."""
    return Quadratic(np.array([0.0, 1, 1, 1, 1, 1]), np.array([curvature, 1, 1, 1, 1, 1]))


def run(federation: Federation) -> Outcome:
    server = strategy(CLIENTS)
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    return server.outcome


@pytest.mark.parametrize("curvature", [1e5, 1e8, 1e11])
def test_an_honest_sharp_client_keeps_its_vote(curvature: float) -> None:
    objectives = spread_out(CLIENTS)
    objectives[ODD] = sharp(curvature)
    outcome = run(Federation(objectives))
    assert [drop for event in outcome.events for drop in event.dropped if drop.reason == "contradiction"] == []
    first = outcome.events[0]
    assert first.improved_ratio == 1.0
    assert first.votes.refused == (ODD,)
    # With a step of about 1 along its sharp coordinate, a^2 curvature / 2 may be as large as the tolerance r.
    assert 0 < first.factor < 10 / curvature + np.sqrt(2 * resolution(2.5) / curvature)
    assert first.harmed == []


class Excused(Federation):
    """One client refuses every factor, and says what an honest sharp one would say."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Refuse."""
        reply = super().reply(client, given)
        if client != ODD or reply.probe is None:
            return reply
        twice = 2 * given.task.reference_loss
        probe = replace(reply.probe, loss=twice, holds=False, grown_holds=None, back_factor=None, behind_loss=twice)
        return replace(reply, probe=probe)


def test_one_that_refuses_the_least_factor_too_loses_its_vote() -> None:
    outcome = run(Excused(spread_out(CLIENTS)))
    assert outcome.status == "finished"
    for event in outcome.events:
        assert [(drop.client, drop.reason) for drop in event.dropped] == [(ODD, "contradiction")]
        assert event.factor > 1e-3
        assert event.cost.exchanges <= 11
