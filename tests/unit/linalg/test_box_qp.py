"""The simplex-with-box programs against hand-worked ones, SciPy and `hull_weights`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, lsq_linear, minimize

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.linalg import box_qp
from dqnfed_flwr.linalg.box_qp import box_simplex_weights, project
from dqnfed_flwr.linalg.min_norm import hull_weights
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import duplicated_set, random_set, rank_deficient_set

ScipyMethod = Literal["SLSQP", "trust-constr"]
METHODS: tuple[ScipyMethod, ...] = ("SLSQP", "trust-constr")
seeds = st.integers(0, 10_000)


def objective(gram: Float64Array, weights: Float64Array, linear: Float64Array) -> float:
    return float(0.5 * weights @ gram @ weights - linear @ weights)


def problem(seed: int, clients: int, kind: str) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """A Gramian, its linear term, and a box around shares."""
    rng = np.random.default_rng(seed)
    rows = {
        "full": lambda: random_set(rng, clients, clients + 3),
        "deficient": lambda: rank_deficient_set(rng, clients, clients + 3, max(1, clients // 2)),
        "twins": lambda: duplicated_set(rng, (clients + 1) // 2, clients)[:clients],
    }[kind]()
    shares = rng.dirichlet(np.ones(clients))
    width = rng.choice([0.01, 0.1, 0.5])
    linear = rng.choice([0.0, 1.0]) * rng.standard_normal(clients)
    return rows @ rows.T, linear, np.maximum(shares - width, 0), np.minimum(shares + width, 1)


def test_two_orthogonal_rows_worked_by_hand() -> None:
    # 4 l^2 + (1 - l)^2 is least at l = 1/5; the box [0.3, 0.7] stops at its edge.
    gram = np.diag([4.0, 1.0])
    np.testing.assert_allclose(box_simplex_weights(gram).weights, [0.2, 0.8], rtol=1e-14)
    np.testing.assert_allclose(box_simplex_weights(gram, lower=0.3, upper=0.7).weights, [0.3, 0.7], rtol=1e-14)


def test_a_linear_term_worked_by_hand() -> None:
    # Lagrange: w_k - b_k = mu, so w = b + mu: with b = (0.5, 0, -1) and sum 1 over the two that stay above 0,
    # mu = 1/4 and w = (3/4, 1/4, 0); the third has slope 1 > mu.
    solved = box_simplex_weights(np.eye(3), linear=[0.5, 0.0, -1.0])
    np.testing.assert_allclose(solved.weights, [0.75, 0.25, 0.0], atol=1e-15)
    # With no more than 0.6 for the first: mu = 0.4.
    solved = box_simplex_weights(np.eye(3), linear=[0.5, 0.0, -1.0], upper=[0.6, 1, 1])
    np.testing.assert_allclose(solved.weights, [0.6, 0.4, 0.0], atol=1e-15)


def test_a_box_that_is_a_point_is_that_point() -> None:
    shares = np.array([0.2, 0.5, 0.3])
    solved = box_simplex_weights(np.ones((3, 3)), lower=shares, upper=shares)
    np.testing.assert_allclose(solved.weights, shares, rtol=1e-15)
    assert (solved.status, solved.residual) == ("converged", 0.0)


def test_another_total_scales_the_solution() -> None:
    solved = box_simplex_weights(np.diag([4.0, 1.0]), total=5.0, upper=5.0)
    np.testing.assert_allclose(solved.weights, [1.0, 4.0], rtol=1e-14)


def test_a_vertex_may_be_the_solution() -> None:
    solved = box_simplex_weights(np.zeros((3, 3)), linear=[1.0, 3.0, 2.0])
    np.testing.assert_allclose(solved.weights, [0, 1, 0], atol=1e-15)
    assert solved.status == "converged"


@settings(max_examples=60)
@given(seed=seeds, clients=st.integers(1, 12), kind=st.sampled_from(["full", "deficient", "twins"]))
def test_no_other_point_is_better_than_the_duality_gap_says(seed: int, clients: int, kind: str) -> None:
    # f is convex: f(w) - f(v) <= gradient.(w - v), and the right side is largest at a solution of a linear program.
    gram, linear, lower, upper = problem(seed, clients, kind)
    solved = box_simplex_weights(gram, lower=lower, upper=upper, linear=linear)
    weights = solved.weights
    assert (lower <= weights).all()
    assert (weights <= upper).all()
    assert weights.sum() == pytest.approx(1, abs=1e-13)
    gradient = gram @ weights - linear
    best = linprog(
        gradient,
        A_eq=np.ones((1, clients)),
        b_eq=np.ones(1),
        bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
    )
    assert best.fun is not None
    assert gradient @ weights - best.fun <= 1e-10 * max(gram.max(), np.abs(linear).max())
    assert solved.status == "converged"
    assert solved.residual <= 1e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["full", "deficient", "twins"])
def test_scipy_finds_nothing_better(method: ScipyMethod, seed: int, kind: str) -> None:
    gram, linear, lower, upper = problem(seed, 6, kind)
    solved = box_simplex_weights(gram, lower=lower, upper=upper, linear=linear)

    def value(w: Float64Array) -> float:
        return objective(gram, w, linear)

    def slope(w: Float64Array) -> Float64Array:
        return gram @ w - linear

    start = project(np.full(6, 1 / 6), 1.0, lower, upper).tolist()
    limits, simplex = Bounds(lower, upper), LinearConstraint(np.ones((1, 6)), 1, 1)
    found = minimize(value, start, jac=slope, method=method, bounds=limits, constraints=simplex, tol=1e-10)
    ours = objective(gram, solved.weights, linear)
    assert ours <= found.fun + 1e-9
    assert found.fun - ours <= 1e-3 * max(1.0, abs(ours))  # and SciPy solved the same problem


@pytest.mark.parametrize("seed", range(8))
def test_bounded_least_squares_with_a_heavy_row_for_the_sum_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, heavy = int(rng.integers(2, 15)), 1e4
    rows = rng.standard_normal((clients, clients + 3))
    upper = np.minimum(1 / clients + rng.uniform(0, 0.5, clients), 1)
    lower = np.maximum(1 / clients - rng.uniform(0, 0.5, clients), 0)
    system = np.vstack([rows.T, np.full(clients, heavy)])
    target = np.append(np.zeros(rows.shape[1]), heavy)
    found = lsq_linear(system, target, bounds=(lower, upper), method="bvls", tol=1e-15)
    solved = box_simplex_weights(rows @ rows.T, lower=lower, upper=upper)
    np.testing.assert_allclose(solved.weights, found.x, atol=1e-6)


@settings(max_examples=40)
@given(seed=seeds, clients=st.integers(1, 20), rank=st.integers(1, 25))
def test_the_whole_simplex_is_the_minimum_norm_point(seed: int, clients: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rank_deficient_set(rng, clients, 30, rank)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ours, hull = box_simplex_weights(rows @ rows.T), hull_weights(rows @ rows.T)
    np.testing.assert_allclose(ours.weights @ rows, hull.weights @ rows, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0, 1e4, 1e8])
def test_units_do_not_matter(scale: float) -> None:
    gram, linear, lower, upper = problem(3, 9, "full")
    expected = box_simplex_weights(gram, lower=lower, upper=upper, linear=linear)
    rescaled = box_simplex_weights(gram * scale**2, lower=lower, upper=upper, linear=linear * scale**2)
    np.testing.assert_allclose(rescaled.weights, expected.weights, rtol=1e-11, atol=1e-13)
    larger = box_simplex_weights(gram, lower=lower * scale, upper=upper * scale, linear=linear * scale, total=scale)
    np.testing.assert_allclose(larger.weights / scale, expected.weights, rtol=1e-11, atol=1e-13)
    assert {rescaled.status, larger.status} == {"converged"}


@pytest.mark.parametrize(("rank", "width"), [(300, 0.005), (300, 1.0), (20, 0.005), (20, 1.0)])
def test_a_hundred_clients(rank: int, width: float) -> None:
    rng = np.random.default_rng(rank)
    rows = random_set(rng, 100, rank)
    rows[1] = rows[0]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    solved = box_simplex_weights(rows @ rows.T, lower=np.maximum(0.01 - width, 0), upper=np.minimum(0.01 + width, 1))
    assert solved.status == "converged"
    assert solved.residual <= 1e-10


@given(point=st.lists(st.floats(-5, 5), min_size=1, max_size=6), seed=seeds)
def test_the_projection_is_nearest(point: list[float], seed: int) -> None:
    # The obtuse angle criterion: (x - P(x)).(v - P(x)) <= 0 for every feasible v.
    rng = np.random.default_rng(seed)
    lower = rng.uniform(-1, 0, len(point))
    upper = lower + rng.uniform(0, 2, len(point)) * rng.integers(0, 2, len(point))
    inside = lower + rng.uniform(0, 1, len(point)) * (upper - lower)
    nearest = project(np.asarray(point), float(inside.sum()), lower, upper)
    assert ((lower <= nearest) & (nearest <= upper)).all()
    assert nearest.sum() == pytest.approx(inside.sum(), abs=1e-12)
    assert (point - nearest) @ (inside - nearest) <= 1e-10


@pytest.mark.parametrize(
    "bounds", [{"upper": 0.3}, {"lower": 0.4}, {"lower": [0.5, 0, 0], "upper": [0.4, 1, 1]}, {"total": -1.0}]
)
def test_a_box_without_such_weights_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no weights have the sum"):
        box_simplex_weights(np.eye(3), **bounds)


@pytest.mark.parametrize("gram", [np.ones((2, 3)), np.full((2, 2), np.nan), np.ones((0, 0)), np.ones(3)])
def test_what_is_no_gramian_is_refused(gram: Float64Array) -> None:
    with pytest.raises(ShapeError):
        box_simplex_weights(gram)


def test_bounds_of_another_size_are_refused() -> None:
    with pytest.raises((ShapeError, ValueError)):
        box_simplex_weights(np.eye(3), lower=[0.0, 0.0])


def test_scipy_steps_in_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_qp, "_active_set", lambda program, weights: program.project(program.upper * 0))
    solved = box_simplex_weights(np.diag([4.0, 1.0, 2.0]))
    assert solved.status == "slsqp"
    np.testing.assert_allclose(solved.weights, np.array([1, 4, 2]) / 7, rtol=1e-7)


def test_what_nobody_solved_is_not_called_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_qp, "_active_set", lambda program, weights: program.project(program.upper * 0))
    monkeypatch.setattr(box_qp, "_slsqp", lambda program, weights: weights)
    solved = box_simplex_weights(np.diag([4.0, 1.0, 2.0]))
    assert solved.status == "not-converged"
    assert solved.residual > 0.1
