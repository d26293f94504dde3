from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.fairgrad import alpha_fair_weights
from tests.helpers.gradient_sets import random_set
from tests.helpers.rounds import decide


def fairgrad(alpha: float = 1.0) -> Method:
    given = {"method": "fairgrad", "fairgrad.alpha": alpha, "local.work": "gradient", "local.lr": 0.5}
    return make_method(resolve(Settings.from_mapping(given)))


def test_orthogonal_rows_by_hand() -> None:
    solved = decide(fairgrad(), np.array([[2.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(solved.step, [0.5, 0.5], rtol=1e-9)  # w_k = 1 / |g_k|, so eta times unit rows
    weights, _ = alpha_fair_weights(np.diag([4.0, 1.0]), 3.0)
    np.testing.assert_allclose(weights, [4 ** (-3 / 4), 1.0], rtol=1e-9)  # w = |g|^(-2 alpha / (1 + alpha))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0]),
    length=st.sampled_from([1e-8, 1e-3, 1, 1e5]),
)
def test_the_weights_solve_the_equation_at_any_length_of_the_rows(seed: int, alpha: float, length: float) -> None:
    rows = length * random_set(np.random.default_rng(seed), 5, 12)
    gram = rows @ rows.T
    weights, residual = alpha_fair_weights(gram, alpha)
    assert (weights > 0).all()
    assert residual < 1e-8
    np.testing.assert_allclose(gram @ weights, weights ** (-1 / alpha), rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_step_is_that_of_torchjd(alpha: float) -> None:
    library = pytest.importorskip("torchjd.aggregation")
    rows = 1 + 0.5 * random_set(np.random.default_rng(3), 6, 20)
    theirs = library.FairGrad(alpha)(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(decide(fairgrad(alpha), rows).step, 0.5 * theirs, rtol=1e-4)


def test_larger_alpha_raises_the_smallest_descent_of_unit_length() -> None:
    rows = np.array([[3.0, 0.5], [0.0, 0.5], [1.0, -0.2]])
    smallest = []
    for alpha in (0.5, 1.0, 2.0, 8.0):
        step = decide(fairgrad(alpha), rows).step.numpy()
        smallest.append(float((rows @ step).min() / np.linalg.norm(step)))
    assert smallest == sorted(smallest)
    assert smallest[-1] > smallest[0] > 0


def test_a_client_without_a_gradient_is_left_out_and_named() -> None:
    solved = decide(fairgrad(), np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert solved.combination.excluded == {1: "zero-gradient"}
    assert solved.combination.weights[1] == 0
