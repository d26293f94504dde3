"""The public steps against the printed recursion, hand-worked cases and each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr import functional
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.functional import minimum_norm_point, newton_rate_step, one_sided_step, two_sided_step
from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.types import Float64Array, FloatArray
from tests.helpers.gradient_sets import (
    conflicting_set,
    duplicated_set,
    pareto_stationary_set,
    random_set,
    unit_condition,
)

MAX_CONDITION = 1e4
"""Condition number of the unit-diagonal Gramian up to which agreement with the recursion is promised."""
SETS = 200

seeds = st.integers(0, 2**32 - 1)
HAND = np.array([[1.0, 0.0], [1.0, 1.0]])


def relative(found: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


def drawn_set(number: int) -> tuple[Float64Array, Float64Array]:
    """Set number `number` of 200, random and conflicting in turn, 1 <= K <= 50, condition below 1e4, and its rates."""
    rng = np.random.default_rng([11, number])
    clients = int(rng.integers(2, 51))
    dim = int(rng.integers(2 * clients, 200))
    grads = conflicting_set(rng, clients, dim, rng.uniform(0.02, 0.9)) if number % 2 else random_set(rng, clients, dim)
    return grads, rng.uniform(0.1, 1.0, clients) * (grads**2).sum(axis=1)


class TestAgainstTheRecursion:
    @pytest.mark.parametrize("kind", ["random", "conflicting"])
    def test_float64(self, kind: str) -> None:
        for number in range(kind == "conflicting", SETS, 2):
            grads, rates = drawn_set(number)
            assert unit_condition(grads) < MAX_CONDITION
            result = two_sided_step(grads, rates)
            step, eta = newton_rate_step(grads, rates)
            assert relative(result.step, step) <= 1e-10, number
            assert float(result.step @ result.step) == pytest.approx(eta, rel=1e-9), number
            assert result.rank == len(grads)
            assert result.condition == pytest.approx(unit_condition(grads), rel=1e-8)

    @pytest.mark.parametrize("kind", ["random", "conflicting"])
    def test_float32_rows(self, kind: str) -> None:
        for number in range(kind == "conflicting", SETS, 2):
            grads, rates = drawn_set(number)
            rows = grads.astype(np.float32)
            step, _ = newton_rate_step(rows.astype(np.float64), rates)
            result = two_sided_step(rows, rates)
            assert result.step.dtype == np.float32
            assert relative(result.step, step) <= 1e-5, number

    @given(seeds)
    def test_clients_in_any_order(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates, order = conflicting_set(rng, 12, 30), rng.uniform(0.1, 1.0, 12), rng.permutation(12)
        first, second = two_sided_step(grads, rates), two_sided_step(grads[order], rates[order])
        assert relative(second.step, first.step) < 1e-12
        assert relative(second.weights, first.weights[order]) < 1e-12


class TestByHand:
    def test_two_sided(self) -> None:
        result = two_sided_step(HAND, [1.0, 3.0])
        np.testing.assert_allclose(result.step, [1.0, 2.0], rtol=1e-14)
        np.testing.assert_allclose(result.weights, [-1.0, 2.0], rtol=1e-14)

    def test_one_sided_lets_a_client_fall_faster(self) -> None:
        # (2, 0) gives the second client 2 where it asked for 1; the two-sided step must be (2, -1).
        np.testing.assert_allclose(one_sided_step(HAND, [2.0, 1.0]).step, [2.0, 0.0], atol=1e-15)
        np.testing.assert_allclose(two_sided_step(HAND, [2.0, 1.0]).step, [2.0, -1.0], rtol=1e-14)

    def test_reference_that_meets_the_rates_is_the_step(self) -> None:
        result = one_sided_step(HAND, [1.0, 1.0], np.array([5.0, 7.0]))
        np.testing.assert_array_equal(result.step, [5.0, 7.0])
        assert not result.weights.any()

    def test_reference_is_changed_only_along_the_client_it_fails(self) -> None:
        # (0, 4): the first client gets 0 and asks for 1.
        result = one_sided_step(HAND, [1.0, 3.0], np.array([0.0, 4.0]))
        np.testing.assert_allclose(result.step, [1.0, 4.0], rtol=1e-14)
        np.testing.assert_allclose(result.weights, [1.0, 0.0], rtol=1e-14)

    def test_rate_below_zero_is_a_bound(self) -> None:
        opposed = np.array([[1.0, 0.0], [-1.0, 0.0]])
        result = one_sided_step(opposed, [1.0, -2.0])
        np.testing.assert_allclose(result.step, [1.0, 0.0], rtol=1e-14)
        assert result.status is Status.CONVERGED

    def test_minimum_norm_point(self) -> None:
        result = minimum_norm_point(np.array([[2.0, 0.0], [0.0, 1.0]]))
        np.testing.assert_allclose(result.step, [0.4, 0.8], rtol=1e-14)

    def test_zero_gradient_has_no_weight(self) -> None:
        grads = np.array([[1.0, 1.0], [0.0, 0.0]])
        for result in (two_sided_step(grads, [2.0, 0.0]), one_sided_step(grads, [2.0, 5.0])):
            np.testing.assert_allclose(result.step, [1.0, 1.0], rtol=1e-14)
            assert result.weights[1] == 0


class TestSpecialSets:
    @given(seeds)
    def test_duplicates_that_agree_count_once(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates = duplicated_set(rng, 4, 15), np.repeat(rng.uniform(0.1, 1.0, 4), 2)
        result = two_sided_step(grads, rates)
        assert result.rank == 4
        assert result.residual < 1e-10
        assert relative(result.step, newton_rate_step(grads[::2], rates[::2])[0]) < 1e-10

    @settings(deadline=None)
    @given(seeds, st.booleans())
    def test_stationary_rows_leave_the_reference(self, seed: int, float32: bool) -> None:
        rng = np.random.default_rng(seed)
        dtype = np.dtype(np.float32 if float32 else np.float64)
        grads: FloatArray = pareto_stationary_set(rng, 5, 12).astype(dtype)
        reference: FloatArray = rng.standard_normal(12).astype(dtype)
        result = one_sided_step(grads, (grads**2).sum(axis=1))
        assert result.status is Status.STATIONARY
        assert not result.step.any()
        rates = np.abs(grads @ reference) + 1.0  # above what the reference gives, so every client asks for more
        np.testing.assert_array_equal(one_sided_step(grads, rates, reference).step, reference)
        assert minimum_norm_point(grads).status is Status.STATIONARY

    @settings(deadline=None)
    @given(seeds)
    def test_anchored_step_is_the_nearest_that_meets_the_rates(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grads, rates, reference = conflicting_set(rng, 6, 15), rng.uniform(0.1, 1.0, 6), rng.standard_normal(15)
        step = one_sided_step(grads, rates, reference).step
        assert (grads @ step >= rates - 1e-10).all()
        # The nearest point of a convex set: no other member lies beyond the plane through it.
        others = two_sided_step(grads, rates).step + rng.standard_normal((200, 15))
        members = others[(others @ grads.T >= rates).all(axis=1)]
        members = np.vstack([members, two_sided_step(grads, rates).step, two_sided_step(grads, 2 * rates).step])
        assert ((members - step) @ (reference - step) <= 1e-9).all()


class TestKinds:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_tensors_in_tensors_out(self, dtype: torch.dtype) -> None:
        rng = np.random.default_rng(4)
        grads, rates, reference = conflicting_set(rng, 5, 40), rng.uniform(0.1, 1.0, 5), rng.standard_normal(40)
        rows, anchor = torch.tensor(grads, dtype=dtype, requires_grad=True), torch.tensor(reference, dtype=dtype)
        arrays = rows.detach().numpy()
        cases = [
            (two_sided_step(rows, torch.tensor(rates)), two_sided_step(arrays, rates)),
            (one_sided_step(rows, rates.tolist(), anchor), one_sided_step(arrays, rates, anchor.numpy())),
            (minimum_norm_point(rows), minimum_norm_point(arrays)),
        ]
        for tensors, numpy in cases:
            assert tensors.step.dtype == dtype
            assert not tensors.step.requires_grad
            np.testing.assert_allclose(tensors.weights, numpy.weights, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(tensors.step.numpy(), numpy.step, rtol=1e-6, atol=1e-7)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_cuda(self) -> None:
        rng = np.random.default_rng(4)
        grads, rates = conflicting_set(rng, 5, 40), rng.uniform(0.1, 1.0, 5)
        result = one_sided_step(torch.tensor(grads, device="cuda"), rates, torch.zeros(40, device="cuda").double())
        assert result.step.device.type == "cuda"
        np.testing.assert_allclose(result.step.cpu().numpy(), one_sided_step(grads, rates).step, rtol=1e-10)

    def test_blocks_of_columns_make_no_difference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(4)
        grads, rates, reference = conflicting_set(rng, 5, 40), rng.uniform(0.1, 1.0, 5), rng.standard_normal(40)
        whole = one_sided_step(grads, rates, reference)
        monkeypatch.setattr(functional, "BLOCK_VALUES", 35)
        blocks = one_sided_step(grads, rates, reference)
        np.testing.assert_allclose(blocks.step, whole.step, rtol=1e-12)

    def test_gradients_are_left_as_they_are(self) -> None:
        rows = HAND.copy()
        rows.setflags(write=False)
        np.testing.assert_allclose(two_sided_step(rows, [1.0, 3.0]).step, [1.0, 2.0], rtol=1e-14)


class TestRefusals:
    @pytest.mark.parametrize(
        ("grads", "message"),
        [
            (np.ones(3), "shape"),
            (np.ones((0, 3)), "shape"),
            (np.ones((3, 0)), "shape"),
            (np.ones((2, 3), dtype=np.int64), "dtype"),
            (np.ones((2, 3), dtype=np.float16), "dtype"),
            (np.array([[1.0, np.inf]]), "finite"),
            (np.array([[1.0, np.nan]]), "finite"),
        ],
    )
    def test_bad_gradients(self, grads: Float64Array, message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            minimum_norm_point(grads)

    def test_neither_array_nor_tensor(self) -> None:
        with pytest.raises(ShapeError, match="list"):
            minimum_norm_point([[1.0, 2.0]])  # type: ignore[type-var]

    @pytest.mark.parametrize("rates", [[1.0], [1.0, float("nan")], [[1.0, 2.0]], ["fast", "slow"]])
    def test_bad_rates(self, rates: list[float]) -> None:
        with pytest.raises(ShapeError, match="rates"):
            two_sided_step(HAND, rates)

    @pytest.mark.parametrize(
        "reference", [np.ones(3), np.ones(2, dtype=np.float32), np.ones((1, 2)), np.array([1.0, np.nan])]
    )
    def test_bad_reference(self, reference: Float64Array) -> None:
        with pytest.raises(ShapeError, match="reference"):
            one_sided_step(HAND, [1.0, 1.0], reference)
