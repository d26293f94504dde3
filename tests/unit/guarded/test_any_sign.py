"""A guarded app whose loss falls below 0: what a share counts from, and that no client is lost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from dqnfed_flwr import Guaranteed, LocalTask, guard
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.guarantee.harm import ceiling
from dqnfed_flwr.strategy import hearing
from tests.helpers.likelihoods import Counts, Normal
from tests.helpers.own_task import whole

CLIENTS, ROUNDS = 4, 8
Criterion = Callable[[Tensor, Tensor], Tensor]


def counted(constant: float = 0.0) -> Criterion:
    return lambda out, y: nn.functional.poisson_nll_loss(out, y) + constant


def normal(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.gaussian_nll_loss(out[:, :1], y, out[:, 1:].exp())


def app_of(task: Counts, criterion: Criterion) -> ClientApp:
    app = ClientApp()

    def batches(context: Context) -> list[tuple[Tensor, Tensor]]:
        x, y = whole(task.datasets(int(context.node_config["partition-id"]), CLIENTS, 0).train)
        return [(x, y)]

    def local_loss(message: Message, context: Context) -> LocalTask:
        del message
        return LocalTask(task.model().double(), batches(context), criterion)

    @app.train(mods=[guard(local_loss)])
    def train(message: Message, context: Context) -> Message:
        model = task.model().double()
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for _ in range(5):
            for x, y in batches(context):
                optimizer.zero_grad()
                criterion(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 50})})
        return Message(content, reply_to=message)

    return app


def trained(
    task: Counts,
    criterion: Criterion,
    *,
    entitlement: str | float = "50%",
    floor: float | None = None,
    tolerate: int = 0,
) -> tuple[Guaranteed, ArrayRecord]:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), entitlement=entitlement, floor=floor, tolerate=tolerate)
    start = ArrayRecord(task.model().double().state_dict())
    result = guarded.start(InProcessGrid(app_of(task, criterion), CLIENTS, {}), start, num_rounds=ROUNDS)
    return guarded, result.arrays


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(hearing, "log", lambda _, text, *values: found.append(text % values))
    return found


@pytest.mark.parametrize(("task", "criterion"), [(Counts(), counted()), (Normal(), normal)])
@pytest.mark.parametrize("entitlement", ["50%", "0"])
def test_it_trains_and_raises_nobodys_loss(
    task: Counts, criterion: Criterion, entitlement: str, told: list[str]
) -> None:
    guarded, _ = trained(task, criterion, entitlement=entitlement)
    assert sum(event.moved for event in guarded.events) >= ROUNDS - 1
    assert not [drop for event in guarded.events for drop in event.dropped]
    assert min(guarded.events[-1].losses_after) < -0.3
    assert len(told) == (entitlement == "50%")
    assert all("Give it as floor, of the task or of Guaranteed" in words for words in told)
    strict = [math.isinf(event.entitlement) for event in guarded.events]
    assert strict == sorted(strict)
    assert strict[-1]
    for event in guarded.events:
        for before, after in zip(event.losses_before, event.losses_after, strict=True):
            assert after <= ceiling(before, event.entitlement)
            assert event.entitlement > 0 or after <= ceiling(before, -math.inf)


def test_a_constant_added_to_loss_and_floor_changes_no_step(told: list[str]) -> None:
    low, theta = trained(Counts(), counted(), floor=-3.0)
    high, twin = trained(Counts(), counted(3.0), floor=0.0)
    assert not told
    assert [event.factor for event in low.events] == [event.factor for event in high.events]
    for one, other in zip(theta.to_numpy_ndarrays(), twin.to_numpy_ndarrays(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)  # rows are float32
    for first, second in zip(low.events, high.events, strict=True):
        assert first.entitlement == pytest.approx(second.entitlement - 3)


def test_a_loss_below_the_floor_ends_the_run_in_words() -> None:
    with pytest.raises(DataError, match=r"client \d+: .*loss is -0\.\d+, below -0\.1, the floor of the task; give the"):
        trained(Counts(), counted(), floor=-0.1)


@pytest.mark.parametrize("floor", [math.inf, "0", True])
def test_a_floor_is_a_finite_number(floor: object) -> None:
    with pytest.raises(ConfigError, match=r"floor: found .*; give the least value of the loss"):
        Guaranteed(FedAvg(), floor=floor)  # type: ignore[arg-type]


def test_those_who_may_lie_below_the_floor_cost_only_themselves() -> None:
    """One of four is below it, and one may lie: the run goes on without its word."""
    low = Counts()
    datasets_of = low.datasets

    def datasets(partition: int, clients: int, seed: int):  # type: ignore[no-untyped-def] # noqa: ANN202
        return datasets_of(2 if partition == 3 else 0, clients, seed)

    low.datasets = datasets  # type: ignore[method-assign]
    floor = -0.1
    guarded, _ = trained(low, counted(), floor=floor, tolerate=1)
    reasons = {drop.reason for event in guarded.events for drop in event.dropped}
    assert "below-floor" in reasons
    assert len(guarded.events) == ROUNDS
