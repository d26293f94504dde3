from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.curvature import Curvature, Point
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import CurvatureState
from dqnfed_flwr.client.work import Proximal, RngKey, lbfgs_passes, mini_batch, sgd
from dqnfed_flwr.config import CurvatureSettings, LocalSettings
from tests.helpers.dense_bfgs import inverse_update

CPU = torch.device("cpu")


def local(**settings: Any) -> LocalSettings:
    return LocalSettings(**settings)


def problem(*layers: nn.Module, dtype: torch.dtype = torch.float64, ridge: float = 0.0, n: int = 11) -> LocalLoss:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator).to(dtype)
    module = nn.Sequential(*(layers or (nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)))).to(dtype)
    return LocalLoss(FlatModel(module, CPU), (x, torch.arange(n) % 4), ridge=ridge)


def in_order(loss: LocalLoss) -> Tensor:
    return loss.model.theta.clone()


def test_the_rate_decays_from_the_second_round_on() -> None:
    loss = problem()
    theta = in_order(loss)
    for number, factor in ((1, 1.0), (2, 0.5), (4, 0.125)):
        key = RngKey(5, number, 2)
        decayed = sgd(loss, theta, local(epochs=2, batch_size=4, lr=0.4, decay=0.5), key)
        plain = sgd(loss, theta, local(epochs=2, batch_size=4, lr=0.4 * factor), key)
        np.testing.assert_array_equal(decayed.numpy(), plain.numpy())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize(("epochs", "batch"), [(1, 0), (3, 4), (2, 100)])
def test_sgd_is_that_of_torch(momentum: float, ridge: float, epochs: int, batch: int) -> None:
    loss = problem(ridge=ridge)
    theta, key = in_order(loss), RngKey(5, 3, 2)
    moved = sgd(loss, theta, local(epochs=epochs, batch_size=batch, lr=0.3, momentum=momentum), key)

    module, (x, y) = loss.model.module, loss.tensors
    loss.model.place(theta.clone())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=momentum, weight_decay=ridge)
    shuffle = key.generator(0)
    for _ in range(epochs):
        order = shuffle.permutation(11)
        for start in range(0, 11, batch or 11):
            rows = torch.from_numpy(order[start : start + (batch or 11)])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    reached = loss.model.spec.flatten(module)
    np.testing.assert_allclose((theta - moved).numpy(), reached.numpy(), rtol=1e-12, atol=1e-13)


class Shared(nn.Module):
    """Autograd gives its two parameters one gradient tensor, and the third one of stride 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((4, 3), value)) for value in (0.1, -0.2))
        self.scale = nn.Parameter(torch.tensor([0.5, 0.7]))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.first + self.second) * self.scale.sum()


def test_the_proximal_pull_is_each_parameters_own() -> None:
    loss = problem(Shared())
    theta, anchor = in_order(loss), torch.linspace(-1, 1, 26, dtype=torch.float64)
    moved = sgd(loss, theta, local(lr=0.3), RngKey(5, 3, 2), proximal=Proximal(anchor, 0.7))

    x, y = loss.tensors
    loss.model.place(theta.clone())
    gradient = torch.autograd.grad(nn.functional.cross_entropy(loss.model.module(x), y), loss.model.parameters)
    expected = 0.3 * (loss.model.flat([part.clone() for part in gradient]) + 0.7 * (theta - anchor))
    np.testing.assert_allclose(moved.numpy(), expected.numpy(), rtol=1e-12)


class Centred(nn.Module):
    """A buffer that is no statistic of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.get_buffer("centre")


@pytest.mark.parametrize(
    ("layer", "batch", "sizes"),
    [(nn.BatchNorm1d(3), 4, [4, 5]), (nn.LayerNorm(3), 4, [4, 4, 1]), (Centred(), 1, [1] * 9)],
)
def test_a_sample_left_over_joins_the_batch_before_it_where_statistics_need_two(
    layer: nn.Module, batch: int, sizes: list[int]
) -> None:
    loss = problem(layer, nn.Linear(3, 4), n=9)
    seen: list[int] = []

    def noted(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return nn.functional.cross_entropy(module(x), y)

    sgd(loss, in_order(loss), local(batch_size=batch), RngKey(5, 3, 2), batch_loss=noted)
    assert seen == sizes


def test_sgd_depends_on_seed_round_and_client_alone() -> None:
    loss = problem(dtype=torch.float32)
    theta, settings = in_order(loss), local(batch_size=4)
    torch.manual_seed(1)
    first = sgd(loss, theta, settings, RngKey(1, 2, 3))
    torch.manual_seed(2)
    assert torch.equal(first, sgd(loss, theta, settings, RngKey(1, 2, 3)))
    for other in (RngKey(0, 2, 3), RngKey(1, 1, 3), RngKey(1, 2, 4)):
        assert not torch.equal(first, sgd(loss, theta, settings, other))


def test_every_epoch_takes_every_sample_once_in_a_new_order() -> None:
    loss = problem()
    seen: list[Tensor] = []
    loss.model.module.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    sgd(loss, in_order(loss), local(epochs=2, batch_size=4), RngKey(0, 1, 0))
    assert [len(batch) for batch in seen] == [4, 4, 3, 4, 4, 3]
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(epoch.sort(dim=0).values, loss.tensors[0].sort(dim=0).values)


def test_sgd_trains_buffers_and_leaves_theta_and_random_states_alone() -> None:
    loss = problem(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4))
    theta = in_order(loss)
    kept, state = theta.clone(), torch.get_rng_state()
    first = sgd(loss, theta, local(batch_size=4), RngKey(0, 1, 0))
    assert int(loss.model.module.state_dict()["1.num_batches_tracked"]) == 3
    assert torch.equal(theta, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert not loss.model.module.training
    assert torch.equal(sgd(loss, theta, local(batch_size=4), RngKey(0, 1, 0)), first)


def test_mini_batches_are_seeded_and_drawn_without_replacement() -> None:
    loss = problem()
    rows = mini_batch(loss, 4, RngKey(0, 1, 0))
    again, later = mini_batch(loss, 4, RngKey(0, 1, 0)), mini_batch(loss, 4, RngKey(0, 2, 0))
    assert rows is not None
    assert again is not None
    assert later is not None
    assert torch.equal(rows, again)
    assert not torch.equal(rows, later)
    assert len(set(rows.tolist())) == 4
    assert mini_batch(loss, 0, RngKey(0, 1, 0)) is None
    assert mini_batch(loss, 11, RngKey(0, 1, 0)) is None


class Quadratic:
    """f(theta) = theta . A theta / 2 with A = diag(1, 4)."""

    diagonal = torch.tensor([1.0, 4.0], dtype=torch.float64)

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        return float(0.5 * (theta * self.diagonal) @ theta), self.diagonal * theta

    def hessian_product(self, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.diagonal * vector


def passes(epochs: int, gradient: str, memory: int = 5, kind: str = "none", **settings: Any) -> tuple[Tensor, Any]:
    loss = Quadratic()
    state = CurvatureState(2, torch.float64, CPU)
    curvature = Curvature(
        CurvatureSettings.model_validate({"kind": kind, "memory": memory} | settings), 0.1, loss, state
    )
    theta = torch.tensor([2.0, 1.0], dtype=torch.float64)
    value, g = loss.loss_and_gradient(theta)
    previous = torch.tensor([3.0, 1.0], dtype=torch.float64)
    point = Point(1, theta, g, value, previous)
    return lbfgs_passes(
        loss, curvature, point, curvature.observe(point), local(work="lbfgs", epochs=epochs, lr=0.1, gradient=gradient)
    )


@pytest.mark.parametrize("gradient", ["final", "pseudo"])
@pytest.mark.parametrize("kind", ["none", "secant", "hvp"])
def test_one_pass_returns_the_plain_gradient(gradient: str, kind: str) -> None:
    row, _ = passes(1, gradient, kind=kind, previous="recomputed" if kind == "secant" else "cached")
    assert row.tolist() == [2.0, 4.0]


def test_two_passes_by_hand() -> None:
    # theta-hat^2 = (2, 1) - 0.1 (2, 4) = (1.8, 0.6), g^2 = (1.8, 2.4), s = (-0.2, -0.4), y = (-0.2, -1.6)
    row, rate = passes(2, "final")
    assert row.tolist() == pytest.approx([1.8, 2.4])
    s, y, g = np.array([-0.2, -0.4]), np.array([-0.2, -1.6]), np.array([1.8, 2.4])
    inverse = inverse_update((s @ y) / (y @ y) * np.eye(2), s, y)
    assert (rate.value, rate.pairs_kept, rate.pairs_rejected) == (pytest.approx(g @ inverse @ g), 1, 0)

    row, rate = passes(2, "pseudo")
    total = np.array([2.0, 4.0]) + inverse @ g  # (theta - theta-hat^3) / lr
    assert row.tolist() == pytest.approx(total.tolist())
    assert rate.value == pytest.approx(total @ inverse @ total)


def test_three_passes_by_dense_bfgs_with_the_pair_of_the_models_before() -> None:
    diagonal, lr = np.array([1.0, 4.0]), 0.1
    models = [np.array([3.0, 1.0]), np.array([2.0, 1.0])]  # theta-hat^0 and theta-hat^1
    direction = diagonal * models[1]
    for _ in range(2):
        models.append(models[-1] - lr * direction)
        pairs = [(b - a, diagonal * (b - a)) for a, b in pairwise(models)]
        s, y = pairs[-1]
        inverse = (s @ y) / (y @ y) * np.eye(2)
        for s, y in pairs:
            inverse = inverse_update(inverse, s, y)
        direction = inverse @ (diagonal * models[-1])
    g = diagonal * models[-1]
    row, rate = passes(3, "final", kind="secant", previous="recomputed")
    assert row.tolist() == pytest.approx(g.tolist())
    assert (rate.value, rate.pairs_kept) == (pytest.approx(g @ inverse @ g), 3)


def test_passes_approach_the_minimum_and_the_newton_decrement() -> None:
    row, rate = passes(60, "final", memory=10)
    newton = float(row @ (row / Quadratic.diagonal))
    assert float(row.norm()) < 0.05 * math.hypot(2.0, 4.0)
    assert rate.value == pytest.approx(newton, rel=0.05)
