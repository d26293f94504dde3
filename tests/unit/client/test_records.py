"""Means over records that each have a bounded part, with noise: against loops in float64, and by statistics."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from dqnfed_flwr.client import records
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.records import RecordLoss, cut, cut_sum
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked.budget import Budget, Protection
from dqnfed_flwr.masked.records import Release, SpentError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.tasks import task_of

pytest.importorskip("dp_accounting")
PROTECTION, CPU, N = Protection(Budget(3.0, 1e-5, 27), 0.5, 2.5), torch.device("cpu"), 23
SHAPES = {"logistic": (6,), "mlp": (5,), "cnn": (1, 8, 8)}


def samples(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.randn(N, *shape, generator=draws, dtype=torch.float64)
    return inputs, torch.randint(0, 4, (N,), generator=draws)


def made(name: str = "mlp", data: tuple[Tensor, Tensor] | None = None, **changes: Any) -> RecordLoss:
    shape = SHAPES[name]
    module = build_model(name, shape, 4, seed=3, dtype=torch.float64)
    loss = LocalLoss(FlatModel(module, CPU), data or samples(shape), **changes)
    return RecordLoss(loss, PROTECTION)


def released(loss: RecordLoss, number: int = 0) -> RecordLoss:
    loss.release = Release(PROTECTION, number.to_bytes(32, "big"))
    return loss


def one_by_one(module: nn.Module, data: tuple[Tensor, Tensor], clip: float) -> Tensor:
    """The sum of gradients of single records, each by a backward pass of its own and cut."""
    total: Tensor | None = None
    for x, y in zip(*data, strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[None]), y[None]).backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        cutted = gradient * min(1.0, clip / float(gradient.norm()))
        total = cutted if total is None else total + cutted
    assert total is not None
    return total


@pytest.mark.parametrize("name", SHAPES)
def test_sum_is_that_of_single_backward_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, data = made(name), samples(SHAPES[name])
    norms = torch.linalg.vector_norm(records.record_gradients(loss.model, loss.task, data), dim=1)
    clip = float(norms.median())  # half of them are cut
    expected = one_by_one(copy.deepcopy(loss.model.module), data, clip)
    for room in (records.ROOM, 1):  # as many at a time as there is room for, or one by one
        monkeypatch.setattr(records, "ROOM", room)
        torch.testing.assert_close(cut_sum(loss, clip), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1e3, 1e200, float("nan"), float("inf")])
def test_no_record_changes_the_sum_by_more_than_twice_the_norm(value: float) -> None:
    inputs, labels = samples(SHAPES["mlp"])
    replaced = inputs.clone()
    replaced[7] = value
    sums = [cut_sum(made(data=(each, labels)), 0.5) for each in (inputs, replaced)]
    assert sums[1].isfinite().all()
    assert float((sums[0] - sums[1]).norm()) <= 2 * 0.5 * (1 + 1e-12)


TARGETS = {
    "regression": torch.linspace(-9, 9, 4 * N, dtype=torch.float64).reshape(N, 4),
    "huber-regression": torch.linspace(9, -9, 4 * N, dtype=torch.float64).reshape(N, 4),
    "multi-label": (torch.arange(4 * N) % 3 == 0).reshape(N, 4).to(torch.uint8),
}


def of_task(name: str, targets: Tensor | None = None) -> RecordLoss:
    """The loss of a client with another task than classification, of a model with four outputs."""
    task = task_of(Settings.from_mapping({"task": name, "privacy.mode": "masked", "privacy.epsilon": 3.0}))
    module = build_model("mlp", SHAPES["mlp"], 4, seed=3, dtype=torch.float64)
    data = samples(SHAPES["mlp"])[0], TARGETS[name] if targets is None else targets
    return RecordLoss(LocalLoss(FlatModel(module, CPU), data, task=task, check=targets is None), PROTECTION)


@pytest.mark.parametrize("name", TARGETS)
def test_records_of_other_tasks_have_bounded_parts_too(name: str) -> None:
    loss = of_task(name)
    rows = records.record_gradients(loss.model, loss.task, (loss.samples.first(N)[0][0], TARGETS[name]))
    whole = LocalLoss(loss.model, loss.samples, task=loss.task)
    torch.testing.assert_close(rows.mean(dim=0), whole.loss_and_gradient(loss.model.theta.clone())[1])
    clip = float(torch.linalg.vector_norm(rows, dim=1).median())
    cutted = [row * min(1.0, clip / float(row.norm())) for row in rows]
    torch.testing.assert_close(cut_sum(loss, clip), torch.stack(cutted).sum(dim=0), rtol=1e-9, atol=1e-12)
    for value in (0.0, 1e6, 1e200, float("nan")) if name != "multi-label" else (0, 1):
        replaced = TARGETS[name].clone()
        replaced[7] = value
        other = of_task(name, replaced)
        assert float((cut_sum(loss, 0.5) - cut_sum(other, 0.5)).norm()) <= 2 * 0.5 * (1 + 1e-12)
        theta = loss.model.theta.clone()
        means = [released(each, 1).loss(theta) for each in (loss, other)]  # with the same noise
        assert abs(means[0] - means[1]) <= PROTECTION.largest / N * (1 + 1e-12)
        other.look_through()  # says nothing of a loss that is not finite


@pytest.mark.parametrize("name", TARGETS)
def test_other_tasks_tell_the_mean_loss_of_other_records_alone(name: str) -> None:
    loss = of_task(name)
    theta, part = loss.model.theta.clone(), HeldSamples((samples(SHAPES["mlp"], seed=1)[0], TARGETS[name]))
    exact = cut(loss.sample_losses(theta, part), PROTECTION.largest).mean()
    told = [released(loss, number).evaluate(theta, part) for number in range(300)]
    assert {(each.correct, each.examples, *each.figures) for each in told} == {(0, N, "loss")}
    assert all(each.figures["loss"] == each.loss >= 0 for each in told)
    above = [(each.loss - exact) / PROTECTION.of_test_loss(N) for each in told if each.loss > exact]
    assert abs(len(above) - 150) < 4 * 300**0.5 / 2
    assert chi2.ppf(1e-4, len(above)) < np.square(above).sum() < chi2.ppf(1 - 1e-4, len(above))


def test_losses_are_cut_to_what_is_told_of_them() -> None:
    found = cut(np.array([-1.0, 0.5, 7.0, np.nan, np.inf]), 2.5)
    assert found.tolist() == [0.0, 0.5, 2.5, 2.5, 2.5]


def test_noise_on_gradient_and_loss_is_that_of_the_budget() -> None:
    """Over many exchanges the differences from the means have the variances that were accounted for."""
    loss, times = made("logistic", ridge=0.1), 400
    theta = loss.model.theta.clone()
    mean = cut_sum(loss, PROTECTION.clip) / N + 0.1 * theta
    exact = cut(loss.sample_losses(theta, loss.samples), PROTECTION.largest).mean() + 0.05 * float(theta @ theta)
    told = [released(loss, number).loss_and_gradient(theta) for number in range(times)]
    vectors = torch.stack([gradient - mean for _, gradient in told]) / PROTECTION.of_gradient(N)
    numbers = vectors.numel()
    assert chi2.ppf(1e-4, numbers) < float(vectors.square().sum()) < chi2.ppf(1 - 1e-4, numbers)
    assert abs(float(vectors.mean())) < 4 / numbers**0.5
    # with so few records noise is above the losses: never below 0, and the half above is that of a normal law
    above = [(value - exact) / PROTECTION.of_loss(N) for value, _ in told if value > exact]
    assert abs(len(above) - times / 2) < 4 * times**0.5 / 2
    assert chi2.ppf(1e-4, len(above)) < np.square(above).sum() < chi2.ppf(1 - 1e-4, len(above))
    assert min(value for value, _ in told) >= 0.05 * float(theta @ theta)


def test_figures_of_other_records_have_noise_of_their_own() -> None:
    loss = made("logistic")
    theta, other = loss.model.theta.clone(), HeldSamples(samples(SHAPES["logistic"], seed=1))
    plain = loss.evaluate(theta, other)
    told = [released(loss, number).evaluate(theta, other) for number in range(200)]
    assert {each.examples for each in told} == {N}
    assert all(0 <= each.correct <= N and each.loss >= 0 for each in told)
    assert len({each.correct for each in told}) > 1
    losses = [each.loss for each in told if each.loss > 0]
    assert len({*losses}) == len(losses) > 50
    assert plain.loss not in losses
    release = released(loss, 1)
    assert release.evaluate(theta, other).loss != release.evaluate(theta, other).loss  # of two parts


def test_the_same_release_gives_the_same_bits() -> None:
    loss = made()
    theta = loss.model.theta.clone()
    one, other = (released(loss, 5).loss_and_gradient(theta) for _ in range(2))
    assert one[0] == other[0]
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


def test_more_than_an_exchange_gives_is_refused() -> None:
    loss = released(made())
    theta = loss.model.theta.clone()
    loss.loss_and_gradient(theta)
    loss.loss(2 * theta)
    with pytest.raises(SpentError, match="more than 2 of losses of the training part"):
        loss.loss(theta)
    with pytest.raises(SpentError, match="more than 1 of gradients"):
        loss.loss_and_gradient(theta)
    with pytest.raises(ConfigError, match="second derivatives"):
        loss.hessian_product(theta, theta)
    with pytest.raises(ConfigError, match="gradient-batch"):
        loss.loss_and_gradient(theta, torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"local\.together"):
        loss.precompute(theta, 0.0, lambda: theta)
    loss.release = None
    with pytest.raises(ConfigError, match="that no budget was asked for"):
        loss.loss(theta)


def test_models_that_mix_records_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
    with pytest.raises(ConfigError, match="Sequential has BatchNorm1d in '1', which mixes records"):
        RecordLoss(LocalLoss(FlatModel(module, CPU), samples((6,))), PROTECTION)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 3, batch_first=True), nn.Linear(3, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(inputs[:, None])[0][:, -1])
        return found


def test_models_whose_records_cannot_pass_one_by_one_are_refused() -> None:
    loss = LocalLoss(FlatModel(Lstm().double(), CPU), samples((6,)))
    with pytest.raises(ConfigError, match="Lstm does not give the gradient of each record by itself"):
        RecordLoss(loss, PROTECTION)
