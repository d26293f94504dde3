"""Where clients stand against each other: no accepted step raises a loss above its ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy
from torch import nn

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import StalledError
from dqnfed_flwr.guarantee.harm import ceiling
from dqnfed_flwr.guarded.wrapped import CHANGED
from dqnfed_flwr.types import Float64Array
from tests.helpers.grids import ShuffledGrid
from tests.helpers.guarded_app import (
    CountingGrid,
    Parts,
    app_on,
    bits,
    layered,
    linear,
    loss_at,
    normed,
    skewed_digits,
    trained,
)

ROUNDS = 4
SLACK = 1e-6
"""Between the client's float32 loss and the same in float64."""


def history(
    strategy: Strategy, parts: Parts, model: Callable[[], nn.Module], *, guarded: bool, rounds: int = ROUNDS
) -> Float64Array:
    """Every client's loss at the start and after each round, computed apart from the package."""
    losses: list[list[float]] = []

    def look(number: int, arrays: ArrayRecord) -> None:
        losses.append([loss_at(arrays, part, model) for part in parts])

    app = app_on(parts, model, guarded=guarded, epochs=4)
    trained(strategy, app, len(parts), rounds, model=model, evaluate=look)
    return np.array(losses)


@pytest.mark.parametrize(
    ("model", "seed", "entitlement"),
    [
        (layered, 0, "0"),
        (normed, 1, "50%"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((layered, 0, "50%"), (normed, 1, "0"))),
    ],
)
def test_no_loss_rises_above_its_ceiling_where_the_plain_strategy_has_it_rise(
    seed: int, model: Callable[[], nn.Module], entitlement: str
) -> None:
    parts = skewed_digits(10, seed, labels=1)
    plain = history(FedAvg(fraction_evaluate=0.0), parts, model, guarded=False)
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), entitlement=entitlement)
    losses = history(guarded, parts, model, guarded=True)
    assert (np.diff(plain, axis=0) > 1e-3).any()
    for event, before, after in zip(guarded.events, losses[:-1], losses[1:], strict=True):
        assert event.harmed == []
        for k, loss in enumerate(after):
            assert loss <= ceiling(before[k], event.entitlement) + SLACK
        assert np.allclose(event.losses_after, after, rtol=1e-5, atol=1e-7)
    assert any(event.notes.get(CHANGED) or event.cost.misses for event in guarded.events)


@pytest.mark.parametrize("make", [lambda: FedAdam(eta=0.1), lambda: FedAvgM(server_momentum=0.9)])
def test_with_memory_on_the_server(make: Callable[[], Strategy]) -> None:
    parts = skewed_digits(10, 0, labels=1)
    guarded = Guaranteed(make(), entitlement="0")
    losses = history(guarded, parts, layered, guarded=True)
    assert (np.diff(losses, axis=0) <= SLACK + 1e-6 * losses[:-1]).all()
    assert losses[-1].mean() < losses[0].mean()
    assert any(event.cost.misses or event.notes.get(CHANGED) for event in guarded.events)


def test_with_sampling_no_participant_is_harmed() -> None:
    parts = skewed_digits(8, 1, labels=1)
    guarded = Guaranteed(FedAvg(fraction_train=0.5, fraction_evaluate=0.0), entitlement="0")
    losses = history(guarded, parts, linear, guarded=True)
    for event, before, after in zip(guarded.events, losses[:-1], losses[1:], strict=True):
        took_part = [node - 2 for node in event.participants]
        assert len(took_part) == 4
        assert (after[took_part] <= before[took_part] * (1 + 1e-6) + SLACK).all()


def test_a_missed_candidate_costs_one_exchange_and_is_never_the_model() -> None:
    parts = skewed_digits(5, 0)
    app = app_on(parts, linear, epochs=4, lr=20.0)
    grid = CountingGrid(app, 5)
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), entitlement="0")
    models: list[dict[str, bytes]] = []
    result = trained(guarded, app, 5, 4, grid=grid, evaluate=lambda n, arrays: models.append(bits(arrays)))
    misses = sum(event.cost.misses for event in guarded.events)
    assert misses > 0
    assert len(grid.exchanges) == sum(event.cost.exchanges for event in guarded.events)
    assert len(grid.exchanges) == 4 + 1 + misses
    assert any(0 < event.factor < 1 for event in guarded.events)
    assert bits(result.arrays) == models[-1]


def test_clients_that_want_the_opposite_leave_the_model_as_it_is() -> None:
    ones, zeros = torch.ones(16, 4), torch.zeros(16, dtype=torch.int64)
    parts = [(ones, zeros), (ones.repeat(2, 1), 1 - zeros.repeat(2))]
    start = ArrayRecord({"weight": Array(np.zeros((2, 4), np.float32)), "bias": Array(np.zeros(2, np.float32))})
    still = Guaranteed(FedAvg(), entitlement="0")
    with pytest.raises(StalledError, match="stalled after round 3 of 3: its model never moved") as stalled:
        trained(still, app_on(parts, lambda: linear(4, 2)), 2, 3, start=start)
    result = stalled.value.result
    assert "1. stationary: no direction lowers every loss" in str(stalled.value)
    assert bits(result.arrays) == bits(start)
    assert [(event.factor, str(event.status)) for event in still.events] == [(0.0, "stationary")] * 3
    assert [sorted(event.certificate.weights) for event in still.events] == [[2, 3]] * 3
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]


def test_a_strategy_that_goes_uphill_does_no_harm() -> None:
    class Uphill(FedAvg):
        """Goes the other way."""

        start_arrays: ArrayRecord

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            self.start_arrays = arrays
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            found, metrics = super().aggregate_train(server_round, replies)
            assert found is not None
            back = {name: Array(2 * self.start_arrays[name].numpy() - end.numpy()) for name, end in found.items()}
            return ArrayRecord(back), metrics

    losses = history(Guaranteed(Uphill(fraction_evaluate=0.0), entitlement="0"), skewed_digits(3), linear, guarded=True)
    assert (np.diff(losses, axis=0) <= SLACK + 1e-6 * losses[:-1]).all()


def test_replies_in_another_order_give_the_same_bits() -> None:
    app = app_on(skewed_digits(10, 0, labels=1), layered, shuffle=False, epochs=4)

    def run(grid: InProcessGrid) -> tuple[dict[str, bytes], list[tuple[float, list[float]]]]:
        guarded = Guaranteed(FedAvg(fraction_evaluate=1.0))
        result = trained(guarded, app, 10, 4, model=layered, grid=grid)
        assert any(event.notes.get(CHANGED) for event in guarded.events)
        return bits(result.arrays), [(event.factor, event.losses_after) for event in guarded.events]

    first = run(CountingGrid(app, 10))
    assert run(ShuffledGrid(app, 10, 1)) == first
    assert run(ShuffledGrid(app, 10, 2)) == first


def test_the_result_does_not_depend_on_the_clients_shuffling_for_the_test() -> None:
    parts = skewed_digits(3, 0)
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    history(guarded, parts, linear, guarded=True)
    for earlier, later in zip(guarded.events[:-1], guarded.events[1:], strict=True):
        assert earlier.losses_after == later.losses_before  # the same model, the same bits


class Broken(FedAvg):
    """Makes no model, or one that is no number, in the second round."""

    def __init__(self, value: float | None) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.value = value

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found, metrics = super().aggregate_train(server_round, replies)
        if server_round != 2 or found is None:
            return found, metrics
        if self.value is None:
            return None, None
        return ArrayRecord({name: Array(array.numpy() * self.value) for name, array in found.items()}), metrics


@pytest.mark.parametrize(("value", "status"), [(None, "no-step"), (float("nan"), "not-finite")])
def test_a_round_without_a_model_leaves_it_as_it_is(value: float | None, status: str) -> None:
    models: list[dict[str, bytes]] = []
    guarded = Guaranteed(Broken(value))
    app = app_on(skewed_digits(3), linear)
    trained(guarded, app, 3, 3, evaluate=lambda number, arrays: models.append(bits(arrays)))
    assert [(event.factor > 0, str(event.status)) for event in guarded.events] == [
        (True, "converged"),
        (False, status),
        (True, "converged"),
    ]
    assert models[1] == models[2] != models[3]
