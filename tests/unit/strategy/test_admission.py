"""Admission in a running federation: cut or turned away, suspended, resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr import wire
from dqnfed_flwr.engine.grid import InProcessGrid
from dqnfed_flwr.engine.hostile import Hostile
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.strategy.dqnfed import DQNFed
from dqnfed_flwr.types import ClientReply
from tests.helpers.attacks import ATTACKS, FURTHER
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

CLIENTS, BAD = 6, 3


def run(kind: str, settings: Mapping[str, Any] | None = None) -> DQNFed:
    attack, _ = {**ATTACKS, **FURTHER}[kind]
    server = strategy(CLIENTS, {"rounds": 9, "admission.suspend-rounds": 4, **(settings or {})})
    app = Hostile(Federation(spread_out(CLIENTS)).app(), (BAD,), attack)
    server.start(InProcessGrid(app, CLIENTS, {}), start_at(np.zeros(6)))
    return server


def reasons(server: DQNFed) -> list[str]:
    """Why the bad one was left out, round by round."""
    assert server.outcome is not None
    return [",".join(drop.reason for drop in event.dropped) for event in server.outcome.events]


def test_three_refusals_suspend_and_a_fourth_after_the_return_suspends_at_once() -> None:
    refused, out = "norm-out-of-range", "suspended"
    # Round 7 takes a further exchange, in which the client is back and is refused for the first time.
    assert reasons(run("x 1e6")) == [refused] * 3 + [out] * 3 + [f"{out},{refused}", refused, out]


def test_who_is_refused_or_suspended_is_evaluated_like_the_others() -> None:
    server = run("x 1e6", {"evaluate-every": 1})
    assert server.outcome is not None
    assert [sorted(event.accuracy or {}) for event in server.outcome.events] == [list(range(CLIENTS))] * len(
        server.outcome.events
    )


def test_a_row_too_long_is_cut_to_the_limit() -> None:
    server = run("x 100", {"admission.mode": "clip"})
    assert set(reasons(server)) == {""}
    assert server.outcome is not None
    assert server.outcome.events[0].participants == list(range(CLIENTS))


def test_off_looks_at_form_alone() -> None:
    assert set(reasons(run("x 100", {"admission.mode": "off", "step-rule": "newton"}))) == {""}
    assert set(reasons(run("one NaN", {"admission.mode": "off"}))) == {"not-finite"}


def test_one_that_contradicts_its_own_gradient_holds_up_nobody() -> None:
    server = run("sign flip")
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    assert reasons(server)[:4] == ["veto", "veto", "veto", "veto,suspended"] or "suspended" in reasons(server)[4]
    for event in server.outcome.events:
        for client, before, after in zip(event.participants, event.losses_before, event.losses_after, strict=True):
            assert client == BAD or after <= before


def test_without_a_limit_one_liar_holds_everybody() -> None:
    server = run("sign flip", {"admission.veto-limit": 0})
    assert server.outcome is not None
    assert server.outcome.status == "pareto-stationary"


class Buffered(Federation):
    """Local work trains two buffers; those of one client are far off."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Add the buffers."""
        reply = super().reply(client, given)
        if not given.task.train:
            return reply
        mean = np.array([1.0, 2.0]) * (1e6 if client == BAD else 1.0)
        return replace(reply, buffers={"norm.running_mean": mean, "norm.count": np.array(1000**client)})


def buffered(settings: Mapping[str, Any]) -> DQNFed:
    server = strategy(CLIENTS, {"step-rule": "newton", **settings})
    start = wire.encode_model(np.zeros(6), {"norm.running_mean": np.zeros(2), "norm.count": np.array(0)})
    server.start(InProcessGrid(Buffered(spread_out(CLIENTS)).app(), CLIENTS, {}), start)
    return server


def test_buffers_far_from_the_others_are_not_believed_and_counters_may_differ() -> None:
    server = buffered({"method": "fedavg", "rounds": 1})
    assert reasons(server) == ["norm-out-of-range"]
    assert server.outcome is not None
    np.testing.assert_allclose(np.asarray(server.outcome.buffers["norm.running_mean"], np.float64), [1.0, 2.0])


def test_buffers_too_large_are_cut_to_the_limit() -> None:
    server = buffered({"method": "fedavg", "rounds": 1, "admission.mode": "clip"})
    assert reasons(server) == [""]
    assert server.outcome is not None
    share = 13 / 75  # clients have 10 to 15 samples
    expected = (1 - share) * np.array([1.0, 2.0]) + share * 8 * np.array([1.0, 2.0])
    np.testing.assert_allclose(np.asarray(server.outcome.buffers["norm.running_mean"], np.float64), expected)


def test_buffers_that_local_work_does_not_change_are_not_taken() -> None:
    with pytest.raises(QuorumError, match="extra-key"):
        buffered({"method": "fedsgd", "retries": 0})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_row_scales_its_products(dtype: torch.dtype) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 7))
    basis = Basis(3, 7, dtype)
    for slot, row in enumerate(rows):
        basis.put(slot, row)
    basis.scale(1, 0.25)
    expected = rows * np.array([[1.0], [0.25], [1.0]])
    np.testing.assert_allclose(basis.gram(range(3)), expected @ expected.T, rtol=1e-5)
    np.testing.assert_allclose(basis.row(1), expected[1], rtol=1e-6)
