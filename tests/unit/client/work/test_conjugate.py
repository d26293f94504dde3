from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.client.work.conjugate import conjugate_gradients


def spectrum(rng: np.random.Generator, values: list[float]) -> torch.Tensor:
    basis, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return torch.from_numpy(basis @ np.diag(values) @ basis.T)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 12))
def test_a_positive_definite_system_is_solved(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = spectrum(rng, list(rng.uniform(0.5, 5.0, dim)))
    right = torch.from_numpy(rng.standard_normal(dim))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=3 * dim)
    np.testing.assert_allclose(found.vector, np.linalg.solve(matrix, right), rtol=1e-9, atol=1e-10)
    assert not found.negative
    assert found.residual < 1e-12


def test_as_many_iterations_as_distinct_eigenvalues_suffice() -> None:
    rng = np.random.default_rng(0)
    matrix, right = spectrum(rng, [1.0, 1.0, 1.0, 4.0, 4.0]), torch.from_numpy(rng.standard_normal(5))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=2)
    assert found.iterations == 2
    np.testing.assert_allclose(found.vector, np.linalg.solve(matrix, right), rtol=1e-10)


def test_the_first_iterate_is_the_exact_gradient_step() -> None:
    # A = diag(1, 3), b = (1, 1): x = b (b . b) / (b . A b) = b / 2, residual (1/2, -1/2), |r| / |b| = 1/2.
    matrix, right = torch.diag(torch.tensor([1.0, 3.0])).double(), torch.ones(2).double()
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=1)
    np.testing.assert_allclose(found.vector, [0.5, 0.5], rtol=1e-15)
    assert found.residual == pytest.approx(0.5, rel=1e-15)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), tolerance=st.floats(1e-6, 0.9))
def test_a_solve_ends_at_the_first_residual_within_the_tolerance(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = spectrum(rng, list(rng.uniform(0.1, 10.0, 8)))
    right = torch.from_numpy(rng.standard_normal(8))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=30, tolerance=tolerance)
    residual = float(torch.linalg.vector_norm(matrix @ found.vector - right) / torch.linalg.vector_norm(right))
    assert residual == pytest.approx(found.residual, rel=1e-6)
    assert residual <= tolerance
    before = conjugate_gradients(lambda v: matrix @ v, right, iterations=found.iterations - 1)
    assert before.residual > tolerance


def test_negative_curvature_ends_the_solve() -> None:
    matrix = torch.diag(torch.tensor([2.0, -1.0, 1.0])).double()
    at_once = conjugate_gradients(lambda v: matrix @ v, torch.tensor([0.0, 1.0, 0.0]).double(), iterations=9)
    assert at_once.negative
    assert at_once.iterations == 1
    assert not at_once.vector.any()
    right = torch.tensor([1.0, 0.5, 1.0]).double()
    later = conjugate_gradients(lambda v: matrix @ v, right, iterations=9)
    assert later.negative
    assert later.iterations > 1
    assert float(later.vector @ right) > 0


def test_zero_needs_no_product() -> None:
    found = conjugate_gradients(lambda v: v / 0, torch.zeros(3), iterations=5)
    assert (found.iterations, found.residual, found.negative) == (0, 0.0, False)
    assert not found.vector.any()
