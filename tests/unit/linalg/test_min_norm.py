"""The K-sized solvers against closed forms, optimality conditions and a general-purpose solver."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.linalg.min_norm import (
    KKT_TOLERANCE,
    STATIONARY_COSINE,
    Status,
    hull_weights,
    one_sided_weights,
    two_sided_weights,
)
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import (
    conflicting_set,
    duplicated_set,
    pareto_stationary_set,
    random_set,
    rank_deficient_set,
    with_spread_lengths,
)

seeds = st.integers(0, 2**32 - 1)


def relative(found: Float64Array, expected: Float64Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def shortfall(grads: Float64Array, step: Float64Array, rates: Float64Array) -> float:
    """Largest rate missed, in units of gradient norm times the largest demand a unit gradient has."""
    norms = np.linalg.norm(grads, axis=1)
    return float(((rates - grads @ step) / norms).max() / (rates / norms).max())


def primal_oracle(grads: Float64Array, demand: Float64Array) -> Float64Array:
    """min 1/2 |u|^2 subject to grads @ u >= demand, by sequential quadratic programming on u."""
    start = np.linalg.lstsq(grads, np.abs(demand), rcond=None)[0]
    return quadratic_program(np.eye(grads.shape[1]), start, scipy.optimize.LinearConstraint(grads, demand, np.inf))


def quadratic_program(
    matrix: Float64Array,
    start: NDArray[np.floating],
    *constraints: scipy.optimize.LinearConstraint,
) -> Float64Array:
    """min 1/2 x.matrix x under the constraints, by sequential quadratic programming."""

    def energy(x: Float64Array) -> float:
        return 0.5 * float(x @ matrix @ x)

    def slope(x: Float64Array) -> Float64Array:
        return np.asarray(matrix @ x)

    return np.asarray(
        scipy.optimize.minimize(
            energy, start, jac=slope, constraints=constraints, method="SLSQP", options={"ftol": 1e-16, "maxiter": 500}
        ).x
    )


class TestTwoSided:
    def test_two_clients_by_hand(self) -> None:
        # g = (1,0), (1,1), rates 1, 3: step (1,2) = -1 (1,0) + 2 (1,1)
        solution = two_sided_weights(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0]))
        np.testing.assert_allclose(solution.weights, [-1.0, 2.0], rtol=1e-14)
        assert (solution.rank, solution.status) == (2, Status.CONVERGED)
        # unit-diagonal eigenvalues 1 -+ 1/sqrt 2
        assert solution.condition == pytest.approx((1 + 0.5**0.5) / (1 - 0.5**0.5), rel=1e-12)

    @given(seeds, st.integers(1, 12))
    def test_meets_the_rates_from_the_row_space(self, seed: int, clients: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates = random_set(rng, clients, 3 * clients + 5), rng.uniform(0.1, 1.0, clients)
        solution = two_sided_weights(grads @ grads.T, rates)
        assert relative(grads @ (solution.weights @ grads), rates) < 1e-11
        assert solution.residual < 1e-11

    @given(seeds, st.integers(2, 12))
    def test_does_not_depend_on_the_lengths_of_rows(self, seed: int, clients: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates = conflicting_set(rng, clients, 20), rng.uniform(0.1, 1.0, clients)
        factors = 10.0 ** rng.uniform(-8, 8, clients)
        scaled = grads * factors[:, None]
        plain = two_sided_weights(grads @ grads.T, rates).weights @ grads
        solution = two_sided_weights(scaled @ scaled.T, rates * factors)
        assert relative(solution.weights @ scaled, plain) < 1e-10
        assert solution.rank == clients

    @given(seeds)
    def test_clients_in_another_order_get_the_same_weights(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates, order = conflicting_set(rng, 9, 20), rng.uniform(0.1, 1.0, 9), rng.permutation(9)
        gram = grads @ grads.T
        first, second = two_sided_weights(gram, rates), two_sided_weights(gram[np.ix_(order, order)], rates[order])
        assert relative(second.weights, first.weights[order]) < 1e-12

    @given(seeds, st.integers(1, 4))
    def test_dependent_rows_with_rates_that_agree(self, seed: int, rank: int) -> None:
        rng = np.random.default_rng(seed)
        grads = rank_deficient_set(rng, 8, 12, rank)
        rates = grads @ rng.standard_normal(12)
        solution = two_sided_weights(grads @ grads.T, rates, cutoff=1e-12)
        step = solution.weights @ grads
        assert solution.rank == rank
        assert solution.residual < 1e-8
        expected = np.linalg.lstsq(grads, rates, rcond=1e-7)[0]
        assert relative(step, np.asarray(expected, dtype=np.float64)) < 1e-7

    def test_duplicates_that_disagree_get_the_mean_rate_and_a_residual(self) -> None:
        gram = np.array([[4.0, 4.0], [4.0, 4.0]])
        solution = two_sided_weights(gram, np.array([1.0, 3.0]))
        np.testing.assert_allclose(gram @ solution.weights, [2.0, 2.0], rtol=1e-14)
        assert solution.rank == 1
        assert solution.condition == 1.0
        assert solution.residual == pytest.approx((2 / 10) ** 0.5, rel=1e-12)

    def test_ridge_is_added_to_the_unit_diagonal(self) -> None:
        solution = two_sided_weights(np.diag([4.0, 9.0]), np.array([2.0, 3.0]), ridge=0.25)
        np.testing.assert_allclose(solution.weights, [2 / 4 / 1.25, 3 / 9 / 1.25], rtol=1e-14)
        assert solution.residual == pytest.approx(0.2, rel=1e-12)

    def test_zero_row_has_weight_zero_and_its_rate_in_the_residual(self) -> None:
        solution = two_sided_weights(np.diag([1.0, 0.0]), np.array([3.0, 4.0]))
        np.testing.assert_array_equal(solution.weights, [3.0, 0.0])
        assert solution.residual == pytest.approx(0.8, rel=1e-14)

    def test_nothing_but_zeros(self) -> None:
        solution = two_sided_weights(np.zeros((2, 2)), np.zeros(2))
        np.testing.assert_array_equal(solution.weights, [0.0, 0.0])
        assert (solution.rank, solution.residual) == (0, 0.0)
        assert np.isnan(solution.condition)


class TestOneSided:
    def test_slack_client_by_hand(self) -> None:
        # g = (1,0), (1,1), rates 2, 1: (2,0) meets both, so the second client has no weight
        solution = one_sided_weights(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([2.0, 1.0]))
        np.testing.assert_allclose(solution.weights, [2.0, 0.0], rtol=1e-14)
        assert solution.status is Status.CONVERGED

    @settings(deadline=None, max_examples=60)
    @given(seeds, st.integers(2, 7), st.booleans())
    def test_agrees_with_sequential_quadratic_programming(self, seed: int, clients: int, anchored: bool) -> None:
        rng = np.random.default_rng(seed)
        grads = conflicting_set(rng, clients, 10) if seed % 2 else random_set(rng, clients, 10)
        rates = rng.uniform(0.1, 1.0, clients)
        offset = grads @ rng.standard_normal(10) if anchored else np.zeros(clients)
        found = one_sided_weights(grads @ grads.T, rates, offset=offset).weights @ grads
        expected = primal_oracle(grads, rates - offset)
        assert np.linalg.norm(found - expected) <= 1e-6 * max(1.0, float(np.linalg.norm(found)))

    @settings(deadline=None)
    @given(seeds, st.integers(2, 20), st.floats(0.01, 0.9))
    def test_rates_are_met_with_weights_that_are_not_negative(self, seed: int, clients: int, common: float) -> None:
        rng = np.random.default_rng(seed)
        grads = with_spread_lengths(rng, conflicting_set(rng, clients, 30, common))
        rates = rng.uniform(0.1, 1.0, clients) * (grads**2).sum(axis=1)
        solution = one_sided_weights(grads @ grads.T, rates)
        assert solution.status is Status.CONVERGED
        assert solution.residual < 1e-9
        assert (solution.weights >= 0).all()
        assert shortfall(grads, solution.weights @ grads, rates) < 1e-9

    @given(seeds, st.integers(1, 20))
    def test_step_is_never_longer_than_the_two_sided_one(self, seed: int, clients: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates = random_set(rng, clients, 25), rng.uniform(0.1, 1.0, clients)
        gram = grads @ grads.T
        one = one_sided_weights(gram, rates).weights @ grads
        two = two_sided_weights(gram, rates).weights @ grads
        assert np.linalg.norm(one) <= np.linalg.norm(two) * (1 + 1e-12)

    @settings(deadline=None)
    @given(seeds, st.integers(2, 20), st.integers(1, 30), st.booleans())
    def test_pareto_stationary_rows_are_reported(self, seed: int, clients: int, dim: int, spread: bool) -> None:
        rng = np.random.default_rng(seed)
        grads = pareto_stationary_set(rng, clients, dim)
        grads = with_spread_lengths(rng, grads) if spread else grads
        solution = one_sided_weights(grads @ grads.T, rng.uniform(0.1, 1.0, clients) * (grads**2).sum(axis=1))
        assert solution.status is Status.STATIONARY
        assert solution.residual <= STATIONARY_COSINE
        assert not solution.weights.any()

    @pytest.mark.parametrize(("cosine", "status"), [(1e-4, Status.CONVERGED), (1e-6, Status.STATIONARY)])
    def test_where_stationarity_begins(self, cosine: float, status: Status) -> None:
        # Two unit rows whose best common direction makes the given cosine with both; the step has length 1 / cosine.
        grads = np.array([[1.0, cosine], [-1.0, cosine]]) / np.hypot(1.0, cosine)
        solution = one_sided_weights(grads @ grads.T, np.ones(2))
        assert solution.status is status
        if status is Status.CONVERGED:
            assert np.linalg.norm(solution.weights @ grads) == pytest.approx(1 / cosine, rel=1e-6)

    @given(seeds)
    def test_duplicates_need_only_the_larger_rate(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates = duplicated_set(rng, 5, 12), rng.uniform(0.1, 1.0, 10)
        found = one_sided_weights(grads @ grads.T, rates)
        distinct, larger = grads[::2], rates.reshape(5, 2).max(axis=1)
        expected = one_sided_weights(distinct @ distinct.T, larger).weights @ distinct
        assert found.rank == 5
        assert relative(found.weights @ grads, expected) < 1e-10

    def test_nothing_asked_needs_nothing(self) -> None:
        solution = one_sided_weights(np.diag([1.0, 2.0]), np.array([1.0, 2.0]), offset=np.array([1.0, 5.0]))
        np.testing.assert_array_equal(solution.weights, [0.0, 0.0])
        assert (solution.status, solution.residual) == (Status.CONVERGED, 0.0)

    def test_demand_of_rounding_size_is_met(self) -> None:
        # Opposed rows could not meet a real demand; 1e-16 of the rate is none.
        gram = np.array([[1.0, -1.0], [-1.0, 1.0]])
        solution = one_sided_weights(gram, np.ones(2), offset=np.ones(2) * (1 - 2**-53))
        assert solution.status is Status.CONVERGED
        assert not solution.weights.any()

    def test_row_far_from_binding_has_no_weight(self) -> None:
        solution = one_sided_weights(np.eye(2), np.ones(2), offset=np.array([0.0, 1e12]))
        np.testing.assert_array_equal(solution.weights, [1.0, 0.0])

    def test_zero_row_asks_for_nothing(self) -> None:
        solution = one_sided_weights(np.diag([4.0, 0.0]), np.array([2.0, 1.0]))
        np.testing.assert_allclose(solution.weights, [0.5, 0.0], rtol=1e-15)
        assert solution.status is Status.CONVERGED

    def test_second_solver_is_named_when_the_first_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(3)
        grads, rates = conflicting_set(rng, 6, 12, 0.1), rng.uniform(0.1, 1.0, 6)
        expected = one_sided_weights(grads @ grads.T, rates).weights
        monkeypatch.setattr(scipy.optimize, "nnls", _give_up)
        solution = one_sided_weights(grads @ grads.T, rates)
        assert solution.status is Status.BVLS
        np.testing.assert_allclose(solution.weights, expected, rtol=1e-8)

    def test_missed_conditions_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(matrix: Float64Array, _: Float64Array) -> tuple[Float64Array, float]:
            return np.array([0.5, 0.0]), 0.0

        monkeypatch.setattr(scipy.optimize, "nnls", wrong)
        solution = one_sided_weights(np.eye(2), np.ones(2))
        assert solution.status is Status.NOT_CONVERGED
        assert solution.residual > KKT_TOLERANCE


class TestHull:
    def test_two_clients_by_hand(self) -> None:
        # (2,0) and (0,1): the foot on the segment is (2,4)/5
        solution = hull_weights(np.diag([4.0, 1.0]))
        np.testing.assert_allclose(solution.weights, [0.2, 0.8], rtol=1e-14)

    def test_a_row_may_be_the_shortest_point(self) -> None:
        grads = np.array([[1.0, 0.0], [3.0, 1.0]])
        np.testing.assert_allclose(hull_weights(grads @ grads.T).weights, [1.0, 0.0], atol=1e-15)

    @settings(deadline=None)
    @given(seeds, st.integers(1, 20), st.booleans())
    def test_no_row_lies_below_the_plane_through_the_point(self, seed: int, clients: int, spread: bool) -> None:
        rng = np.random.default_rng(seed)
        grads = random_set(rng, clients, 25) + rng.standard_normal(25)
        grads = with_spread_lengths(rng, grads) if spread else grads
        solution = hull_weights(grads @ grads.T)
        point = solution.weights @ grads
        assert solution.status is Status.CONVERGED
        assert solution.weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert (solution.weights >= 0).all()
        scale = np.linalg.norm(point) * np.linalg.norm(grads, axis=1)
        assert ((point @ point - grads @ point) / scale).max() < 1e-9

    @settings(deadline=None, max_examples=30)
    @given(seeds, st.integers(2, 6))
    def test_agrees_with_sequential_quadratic_programming(self, seed: int, clients: int) -> None:
        rng = np.random.default_rng(seed)
        grads = random_set(rng, clients, 8)
        gram = grads @ grads.T
        expected = quadratic_program(
            gram,
            np.full(clients, 1 / clients),
            scipy.optimize.LinearConstraint(np.ones((1, clients)), 1.0, 1.0),
            scipy.optimize.LinearConstraint(np.eye(clients), 0.0, np.inf),
        )
        np.testing.assert_allclose(hull_weights(gram).weights @ grads, expected @ grads, atol=1e-6)

    @settings(deadline=None)
    @given(seeds, st.integers(2, 20), st.integers(1, 30), st.booleans())
    def test_pareto_stationary_rows_are_reported(self, seed: int, clients: int, dim: int, spread: bool) -> None:
        rng = np.random.default_rng(seed)
        grads = pareto_stationary_set(rng, clients, dim)
        grads = with_spread_lengths(rng, grads) if spread else grads
        solution = hull_weights(grads @ grads.T)
        shortest = np.linalg.norm(grads, axis=1).min()
        assert solution.status is Status.STATIONARY
        assert solution.weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.linalg.norm(solution.weights @ grads) <= STATIONARY_COSINE * shortest

    def test_nothing_but_zeros(self) -> None:
        solution = hull_weights(np.zeros((2, 2)))
        np.testing.assert_array_equal(solution.weights, [0.0, 0.0])
        assert solution.status is Status.STATIONARY


class TestRefusals:
    @pytest.mark.parametrize(
        ("gram", "message"),
        [
            (np.ones((2, 3)), "shape"),
            (np.ones(3), "shape"),
            (np.array([[1.0, np.nan], [np.nan, 1.0]]), "finite"),
            (np.diag([1.0, -1.0]), "negative"),
        ],
    )
    def test_bad_gramian(self, gram: Float64Array, message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            hull_weights(gram)

    @pytest.mark.parametrize("rates", [[1.0], [1.0, np.inf]])
    def test_bad_rates(self, rates: list[float]) -> None:
        with pytest.raises(ShapeError, match="rates"):
            one_sided_weights(np.eye(2), np.array(rates))

    def test_bad_offset(self) -> None:
        with pytest.raises(ShapeError, match="offset"):
            one_sided_weights(np.eye(2), np.ones(2), offset=np.ones(3))

    def test_bad_settings(self) -> None:
        with pytest.raises(ConfigError, match="ridge"):
            two_sided_weights(np.eye(2), np.ones(2), ridge=-1.0)
        with pytest.raises(ConfigError, match="cutoff"):
            two_sided_weights(np.eye(2), np.ones(2), cutoff=1.0)


def _give_up(*_: Float64Array) -> NoReturn:
    raise RuntimeError("Maximum number of iterations reached.")
