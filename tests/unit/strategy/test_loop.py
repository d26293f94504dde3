"""The one-exchange round on quadratics, whose every figure can be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ClientReply
from tests.helpers.grids import ShuffledGrid
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.transport import TransportGrid

RULES = ["newton", "fixed", "clipped", "probed"]


class Run:
    """A finished run of quadratics from 0, with the model after every round."""

    def __init__(self, federation: Federation, settings: Mapping[str, Any] | None = None) -> None:
        self.federation, self.models = federation, [np.zeros(6)]
        clients = len(federation.objectives)
        self.strategy: DQNFed = strategy(clients, settings)
        self.result = self.strategy.start(
            InProcessGrid(federation.app(), clients, {}), start_at(self.models[0]), evaluate_fn=self._evaluate
        )
        assert self.strategy.outcome is not None
        self.outcome = self.strategy.outcome

    def _evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            self.models.append(np.array(wire.decode_model(arrays)[0]))
        return MetricRecord({"round": number})

    @property
    def events(self) -> list[RoundEvent]:
        return self.outcome.events

    def losses(self, number: int) -> list[float]:
        return [objective.loss(self.models[number]) for objective in self.federation.objectives]


@pytest.mark.parametrize("rule", RULES)
def test_losses_and_ratio_are_those_of_the_models_before_and_after(rule: str) -> None:
    run = Run(Federation(spread_out(5)), {"step-rule": rule, "rounds": 5, "step.lr": 0.3})
    for number, event in enumerate(run.events, start=1):
        assert event.round == number
        assert event.losses_before == run.losses(number - 1)
        assert event.losses_after == run.losses(number)
        fallen = [after <= before for before, after in zip(run.losses(number - 1), run.losses(number), strict=True)]
        assert event.improved_ratio == sum(fallen) / 5
        assert set(event.cost.seconds) == {"exchange", "solve", "step", "total"}


def test_the_ratio_counts_those_whose_loss_did_not_rise() -> None:
    # Newton's length with rates eight times too high: most overshoot, and are counted as what they are.
    class Boastful(Federation):
        def reply(self, client: int, given: wire.Assignment) -> ClientReply:
            reply = super().reply(client, given)
            return replace(reply, rate=8 * reply.rate)

    run = Run(Boastful(spread_out(5)), {"step-rule": "newton", "rounds": 1})
    assert run.events[0].improved_ratio < 1
    assert run.events[0].cost.misses == 0


def test_the_step_is_taken_at_its_factor() -> None:
    run = Run(Federation(spread_out(4)), {"rounds": 4})
    for before, after, event in zip(run.models[:-1], run.models[1:], run.events, strict=True):
        gradients = np.array([objective.gradient(before) for objective in run.federation.objectives])
        step = np.array(event.weights) @ gradients
        np.testing.assert_allclose(after, before - event.factor * step, rtol=1e-12)
        assert event.step_norm_squared == pytest.approx(float(step @ step))
        assert event.rates == [2 * loss for loss in event.losses_before]


def test_every_round_is_one_exchange_and_every_miss_another() -> None:
    federation = Federation(spread_out(4))
    run = Run(federation, {"rounds": 8, "step.grow-every": 1})
    misses = sum(event.cost.misses for event in run.events)
    assert misses > 0  # growing every round overshoots now and then
    exchanges = sum(event.cost.exchanges for event in run.events)
    assert exchanges == 8 + 1 + misses  # one more, for the first gradients
    assert len(federation.asked) == 4 * exchanges
    assert [given.task.exchange for client, given in federation.asked if client == 0] == list(range(1, exchanges + 1))
    assert [event.cost.exchanges for event in run.events][1:] == [1 + event.cost.misses for event in run.events][1:]


def test_rules_without_a_safeguard_never_miss() -> None:
    run = Run(Federation(spread_out(4)), {"step-rule": "clipped", "rounds": 5})
    assert [event.cost.exchanges for event in run.events] == [2, 1, 1, 1, 1]
    assert not any(event.cost.misses for event in run.events)


@pytest.mark.parametrize("seed", range(3))
def test_replies_in_any_order_give_the_same_bits(seed: int) -> None:
    def final(grid: InProcessGrid) -> tuple[bytes, list[list[float]]]:
        server = strategy(7, {"participation": 0.6, "rounds": 6, "dqn-fed.form": "anchored"})
        server.start(grid, start_at(np.zeros(6)))
        assert server.outcome is not None
        return server.outcome.theta.numpy().tobytes(), [event.weights for event in server.outcome.events]

    straight = final(InProcessGrid(Federation(spread_out(7)).app(), 7, {}))
    assert final(ShuffledGrid(Federation(spread_out(7)).app(), 7, seed)) == straight
    assert final(TransportGrid(Federation(spread_out(7)).app(), 7, {})) == straight


def test_flowers_result_holds_model_and_figures() -> None:
    run = Run(Federation(spread_out(3)), {"rounds": 2})
    theta, _, _ = wire.decode_model(run.result.arrays)
    np.testing.assert_array_equal(theta, run.models[-1])
    assert set(run.result.train_metrics_clientapp) == set(run.result.evaluate_metrics_clientapp) == {1, 2}
    assert run.result.train_metrics_clientapp[2]["improved-ratio"] == 1.0
    assert run.result.evaluate_metrics_serverapp == {n: MetricRecord({"round": n}) for n in range(3)}
    assert run.events[-1].evaluated.test is not None
    assert run.result.evaluate_metrics_clientapp[2]["mean"] == pytest.approx(
        np.mean(list(run.events[-1].evaluated.test.values()))
    )


def test_the_final_model_is_evaluated_even_if_no_round_was() -> None:
    run = Run(Federation(spread_out(3)), {"rounds": 2, "evaluate-every": 0})
    assert run.outcome.accuracy == {k: round(100 * math.exp(-loss)) / 100 for k, loss in enumerate(run.losses(2))}


def test_one_client_alone_is_gradient_descent_with_a_line_search() -> None:
    only = Quadratic(np.ones(6))
    run = Run(Federation([only]), {"rounds": 1})
    np.testing.assert_allclose(
        run.models[1], np.ones(6), rtol=1e-12
    )  # Newton's step of a quadratic ends at its minimum


def test_all_fall_in_every_round_until_no_common_step_is_left() -> None:
    run = Run(Federation(spread_out(4)), {"rounds": 15})
    assert all(event.improved_ratio == 1.0 for event in run.events)
    for before, after in pairwise(run.losses(number) for number in range(len(run.models))):
        assert not_above(after, before).all()  # up to the one tolerance that losses are compared with
