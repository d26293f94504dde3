"""Rates on quadratics, where curvature is known, against dense BFGS."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature, Point, Rate, coordinates, inner_products
from dqnfed_flwr.client.memory import CurvatureState, StateArrays
from dqnfed_flwr.config import CurvatureSettings
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg.lbfgs import SMALLEST_MOVE
from tests.helpers.dense_bfgs import inverse_update

LR = 0.25
KINDS = [("secant", "cached"), ("secant", "recomputed"), ("hvp", "cached")]


class Quadratic:
    """f(theta) = theta . A theta / 2."""

    def __init__(self, matrix: NDArray[np.float64] | list[list[float]]) -> None:
        self.matrix = torch.tensor(np.array(matrix), dtype=torch.float64)
        self.gradients = 0

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        self.gradients += 1
        gradient = self.matrix.to(theta.dtype) @ theta
        return float(0.5 * theta @ gradient), gradient

    def hessian_product(self, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.matrix.to(theta.dtype) @ vector


class Client:
    """A client on a quadratic: visits models, and can be given a new life between two visits."""

    def __init__(self, quadratic: Quadratic, dtype: torch.dtype = torch.float64, **settings: Any) -> None:
        self.quadratic, self.dtype = quadratic, dtype
        self.settings = CurvatureSettings(**settings)
        self.reborn({})

    def reborn(self, state: StateArrays) -> None:
        held = CurvatureState(len(self.quadratic.matrix), self.dtype, torch.device("cpu"))
        held.load({key: np.array(values) for key, values in state.items()})
        self.curvature = Curvature(self.settings, LR, self.quadratic, held)

    def visit(self, exchange: int, theta: Tensor, previous: Tensor | None = None) -> Rate:
        loss, gradient = self.quadratic.loss_and_gradient(theta)
        return self.curvature.observe(Point(exchange, theta, gradient, loss, previous)).rate


def spd(dim: int, seed: int, least: float = 0.5) -> NDArray[np.float64]:
    root = np.random.default_rng(seed).normal(size=(dim, dim))
    return np.asarray(root @ root.T / dim + least * np.eye(dim))


def path(count: int, dim: int, seed: int = 0) -> list[Tensor]:
    return [torch.tensor(row) for row in np.random.default_rng(seed).normal(size=(count, dim))]


def figures(rate: Rate) -> list[float]:
    return [rate.value, rate.pairs_kept, rate.pairs_rejected]


def dense_rate(g: NDArray[np.float64], pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    s, y = pairs[-1]
    inverse = (s @ y) / (y @ y) * np.eye(len(g))
    for s, y in pairs:
        inverse = inverse_update(inverse, s, y)
    return float(g @ inverse @ g)


@pytest.mark.parametrize("memory", [1, 2, 5])
@given(seed=st.integers(0, 10_000))
def test_secant_rates_are_those_of_dense_bfgs(memory: int, seed: int) -> None:
    matrix, models = spd(6, seed), path(7, 6, seed)
    client = Client(Quadratic(matrix), kind="secant", memory=memory)
    rates = [client.visit(t + 1, theta) for t, theta in enumerate(models)]
    xs = [theta.numpy() for theta in models]
    pairs = [(b - a, matrix @ (b - a)) for a, b in pairwise(xs)]
    assert rates[0].value == pytest.approx(LR * float(np.sum((matrix @ xs[0]) ** 2)), rel=1e-14)
    for t in range(1, 7):
        used = pairs[max(0, t - memory) : t]
        assert rates[t].value == pytest.approx(dense_rate(matrix @ xs[t], used), rel=1e-6)
        assert (rates[t].pairs_kept, rates[t].pairs_rejected) == (len(used), 0)


@pytest.mark.parametrize(("kind", "previous"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rate_is_exact_where_the_hessian_is_a_multiple_of_one(kind: str, previous: str, dtype: torch.dtype) -> None:
    client = Client(Quadratic(3.0 * np.eye(4)), dtype, kind=kind, previous=previous)
    first, second = (theta.to(dtype) for theta in path(2, 4))
    client.visit(1, first)
    rate = client.visit(2, second, first)
    assert rate.value == pytest.approx(3.0 * float(second @ second), rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert rate.pairs_kept == 1


def test_enough_hessian_directions_give_the_newton_decrement() -> None:
    matrix = spd(3, 1)
    client = Client(Quadratic(matrix), kind="hvp", memory=12)
    models = path(12, 3)
    rates = [client.visit(t + 1, theta) for t, theta in enumerate(models)]
    newton = [float(theta @ torch.tensor(matrix) @ theta) for theta in models]  # g . A^-1 g with g = A theta
    errors = [abs(rate.value / value - 1) for rate, value in zip(rates, newton, strict=True)]
    assert min(errors[0], errors[1]) > 0.01
    assert errors[-1] < 0.02
    assert [rate.pairs_kept for rate in rates] == list(range(1, 13))


def test_hessian_pairs_of_memory_one_follow_the_formula() -> None:
    matrix, (theta,) = spd(5, 2), path(1, 5)
    g = matrix @ theta.numpy()
    rate = Client(Quadratic(matrix), kind="hvp").visit(1, theta)
    assert rate.value == pytest.approx(dense_rate(g, [(g, matrix @ g)]), rel=1e-10)


def test_recomputed_pairs_equal_cached_ones_and_cost_a_gradient() -> None:
    models = path(4, 5)
    cached, recomputed = (
        Client(Quadratic(spd(5, 3)), kind="secant", previous=previous) for previous in ("cached", "recomputed")
    )
    a = [cached.visit(t, models[t], models[t - 1]) for t in range(1, 4)]
    b = [recomputed.visit(t, models[t], models[t - 1]) for t in range(1, 4)]
    assert a[1:] == b[1:]
    assert a[0].pairs_kept == 0
    assert b[0].pairs_kept == 1
    assert (cached.quadratic.gradients, recomputed.quadratic.gradients) == (3, 6)
    assert recomputed.curvature.state.export() == {}


def test_without_curvature_the_rate_is_the_local_rate_times_the_squared_gradient() -> None:
    (theta,) = path(1, 3)
    client = Client(Quadratic(2 * np.eye(3)))
    assert figures(client.visit(1, theta)) == pytest.approx([LR * 4 * float(theta @ theta), 0, 0])
    assert client.curvature.state.export() == {}


def test_a_zero_gradient_has_rate_zero() -> None:
    for kind, previous in KINDS:
        client = Client(Quadratic(np.eye(2)), kind=kind, previous=previous)
        client.visit(1, torch.ones(2, dtype=torch.float64))
        rate = client.visit(2, torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        assert rate.value == 0


@pytest.mark.parametrize(("kind", "previous"), KINDS)
def test_negative_curvature_is_turned_away_and_counted(kind: str, previous: str) -> None:
    client = Client(Quadratic(-np.eye(3)), kind=kind, previous=previous)
    first, second = path(2, 3)
    client.visit(1, first)
    expected = LR * float(second @ second)
    assert figures(client.visit(2, second, first)) == pytest.approx([expected, 0, 1])


def test_damping_keeps_a_pair_of_negative_curvature_with_a_positive_rate() -> None:
    client = Client(Quadratic(np.diag([1.0, -1.0])), kind="secant", damping=True)
    models = [torch.tensor(x, dtype=torch.float64) for x in ([0.0, 1.0], [1.0, 1.0], [1.0, 2.0])]
    rates = [client.visit(t, theta) for t, theta in enumerate(models, 1)]
    assert rates[2].pairs_kept == 1
    assert rates[2].pairs_rejected == 0
    # gamma = 1 after the pair ([1, 0], [1, 0]); s = [0, 1], y = [0, -1] becomes [0, 0.2]; gamma = 5; g = [1, -2]
    assert rates[2].value == pytest.approx(5 * 1 + 5 * 4)


@pytest.mark.parametrize("curvature", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("memory", [1, 3])
def test_damped_rates_know_the_scale_of_the_loss(curvature: float, memory: int) -> None:
    client = Client(Quadratic(curvature * np.eye(3)), kind="secant", damping=True, memory=memory)
    for t, theta in enumerate(path(6, 3), 1):
        loss, gradient = client.quadratic.loss_and_gradient(theta)
        seen = client.curvature.observe(Point(t, theta, gradient, loss))
    expected = float(gradient @ gradient) / curvature
    assert seen.rate.value == pytest.approx(expected)
    history = client.curvature.history(seen.pairs)
    assert float(gradient @ history.inverse_product(gradient)) == pytest.approx(expected)


@given(seed=st.integers(0, 10_000), memory=st.integers(1, 3))
def test_the_rate_is_that_of_the_history(seed: int, memory: int) -> None:
    client = Client(Quadratic(np.diag([2.0, 0.5, -1.0, -1.5])), kind="secant", damping=True, memory=memory)
    for t, theta in enumerate(path(6, 4, seed), 1):
        loss, gradient = client.quadratic.loss_and_gradient(theta)
        seen = client.curvature.observe(Point(t, theta, gradient, loss))
    history = client.curvature.history(seen.pairs)
    assert float(gradient @ history.inverse_product(gradient)) == pytest.approx(seen.rate.value, rel=1e-8)


@pytest.mark.parametrize("length", [1e-24, 3e19])
def test_rates_of_lengths_whose_square_float32_does_not_hold(length: float) -> None:
    client = Client(Quadratic(np.eye(4)), torch.float32)
    rate = client.curvature.rate(torch.full((4,), length / 2), math.nan, 0, 0)
    assert rate.value == pytest.approx(LR * length**2, rel=1e-6)


def test_the_last_good_pair_serves_when_the_new_one_is_turned_away_or_too_short() -> None:
    class Bent(Quadratic):
        def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
            loss, gradient = super().loss_and_gradient(theta)
            return (loss, gradient) if theta[0] < 5 else (-loss, -gradient)

    client = Client(Bent(spd(3, 4)), kind="secant")
    first, second = path(2, 3)
    client.visit(1, first)
    client.visit(2, second)
    s, y = (second - first).numpy(), client.quadratic.matrix.numpy() @ (second - first).numpy()

    far = torch.tensor([6.0, 0.0, 0.0], dtype=torch.float64)
    turned_away = client.visit(3, far)
    assert (turned_away.pairs_kept, turned_away.pairs_rejected) == (1, 1)
    assert turned_away.value == pytest.approx(dense_rate(-client.quadratic.matrix.numpy() @ far.numpy(), [(s, y)]))

    near = far * (1 + 0.3 * SMALLEST_MOVE * torch.finfo(torch.float64).eps)
    too_short = client.visit(4, near)
    assert (too_short.pairs_kept, too_short.pairs_rejected) == (1, 0)
    assert too_short.value == pytest.approx(turned_away.value)


def test_non_finite_gradients_do_not_spoil_the_memory() -> None:
    client = Client(Quadratic(2 * np.eye(2)), kind="secant")
    ones = torch.ones(2, dtype=torch.float64)
    client.visit(1, ones)
    client.visit(2, 2 * ones)
    assert math.isnan(client.visit(3, math.nan * ones).value)
    assert client.visit(4, 3 * ones).value == pytest.approx(2 * 18)
    assert figures(client.visit(5, 4 * ones)) == pytest.approx([2 * 32, 1, 0])


@pytest.mark.parametrize(("kind", "previous"), KINDS)
@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("damping", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_that_lives_for_one_message_gives_the_same_bits(
    kind: str, previous: str, memory: int, damping: bool, dtype: torch.dtype
) -> None:
    settings = {"kind": kind, "previous": previous, "memory": memory, "damping": damping}
    matrix, models = np.diag([2.0, 1.0, 0.5, -1.0, -1.5]), [theta.to(dtype) for theta in path(9, 5)]
    steady, mortal = (Client(Quadratic(matrix), dtype, **settings) for _ in range(2))
    for t in range(1, 9):
        mortal.reborn(mortal.curvature.state.export())
        assert mortal.visit(t, models[t], models[t - 1]) == steady.visit(t, models[t], models[t - 1])


@pytest.mark.parametrize(("kind", "previous"), KINDS)
@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("back", [1, 2])
def test_exchanges_done_again_give_the_same_bits(kind: str, previous: str, memory: int, back: int) -> None:
    matrix, models = np.diag([2.0, 1.0, 0.5, -1.0, -1.5]), path(12, 5)
    client = Client(Quadratic(matrix), kind=kind, previous=previous, memory=memory)
    rates = {t: client.visit(t, models[t], models[t - 1]) for t in range(1, 9)}
    assert any(rate.pairs_rejected for rate in rates.values())
    steady = client.curvature.state.export()
    for t in range(9 - back, 9):
        client.reborn(client.curvature.state.export())
        assert client.visit(t, models[t], models[t - 1]) == rates[t]
    again = client.curvature.state.export()
    later = client.visit(9, models[9], models[8])
    client.reborn(steady)
    assert client.visit(9, models[9], models[8]) == later
    assert all(key in steady and np.array_equal(steady[key], value) for key, value in again.items())


def test_an_exchange_number_with_another_model_starts_from_the_records_before_it() -> None:
    matrix, models = spd(4, 7), path(6, 4)
    client = Client(Quadratic(matrix), kind="secant", memory=2)
    for t in range(1, 5):
        client.visit(t, models[t])
    rate = client.visit(4, models[5])
    xs = [theta.numpy() for theta in models]
    pairs = [(xs[t] - xs[t - 1], matrix @ (xs[t] - xs[t - 1])) for t in (2, 3)]
    assert rate.value == pytest.approx(dense_rate(matrix @ xs[5], pairs), rel=1e-6)


@pytest.mark.parametrize("memory", [1, 4])
def test_the_memory_stays_bounded(memory: int) -> None:
    client = Client(Quadratic(np.eye(3)), kind="secant", memory=memory)
    sizes = []
    for t, theta in enumerate(path(30, 3), 1):
        client.visit(t, theta)
        sizes.append(sum(values.size for values in client.curvature.state.export().values()))
    assert max(sizes) == sizes[-1] == 2 * 3 * (memory + 3) + 2 * (memory + 2)


def test_foreign_states_are_refused_and_change_nothing() -> None:
    client = Client(Quadratic(np.eye(3)), kind="secant")
    for t, theta in enumerate(path(3, 3), 1):
        client.visit(t, theta)
    state = client.curvature.state.export()
    wrongs: list[StateArrays] = [
        {"s.1": np.zeros(4)},
        {"s.1": np.zeros(3, dtype=np.float32)},
        {"model.1": np.zeros(3)},
        {"s": np.zeros(3)},
        {"record.1": np.zeros(3)},
        {"theta.1": np.zeros(3)},
    ]
    for wrong in wrongs:
        with pytest.raises(ShapeError, match="curvature state"):
            client.curvature.state.load(wrong)
    kept = client.curvature.state.export()
    assert all(np.array_equal(kept.pop(key), value) for key, value in state.items())
    assert not kept


@given(seed=st.integers(0, 10_000), rank=st.integers(1, 4))
def test_coordinates_have_the_inner_products_given(seed: int, rank: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(5, rank)) @ generator.normal(size=(rank, 20))
    rows *= 10.0 ** generator.integers(-8, 8, size=(5, 1))
    products = inner_products([torch.tensor(row) for row in rows])
    np.testing.assert_allclose(
        products.numpy(), rows @ rows.T, rtol=1e-9, atol=1e-14 * np.outer(*2 * [np.linalg.norm(rows, axis=1)]).max()
    )
    x = coordinates(products).numpy()
    lengths = np.sqrt(np.diag(products.numpy()))
    np.testing.assert_allclose(
        x @ x.T / np.outer(lengths, lengths), products.numpy() / np.outer(lengths, lengths), atol=1e-12
    )
