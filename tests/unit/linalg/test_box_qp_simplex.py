from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg.box_qp import project_simplex

vectors = st.lists(st.floats(-100, 100), min_size=1, max_size=12).map(np.array)


def test_by_hand() -> None:
    # Falling 0.7, 0.55, 0: r = 2 has shift (1 - 1.25) / 2 = -0.125, with r = 3 the last would be -0.25 / 3 < 0.
    np.testing.assert_allclose(project_simplex(np.array([0.55, 0.0, 0.7])), [0.425, 0, 0.575], atol=1e-15)
    np.testing.assert_allclose(project_simplex(np.array([1.0, 2.5])), [0, 1], atol=1e-15)
    np.testing.assert_allclose(project_simplex(np.array([-3.0])), [1])


def test_is_the_shift_that_scipy_finds_as_a_root(rng: np.random.Generator) -> None:
    for size in (1, 2, 3, 6, 200):
        values = rng.normal(0, 1, size)
        shift = brentq(lambda s, v=values: float(np.maximum(v + s, 0).sum() - 1), -10, 10, xtol=1e-15)
        np.testing.assert_allclose(project_simplex(values), np.maximum(values + shift, 0), atol=1e-13)


@given(values=vectors)
def test_meets_the_conditions_of_optimality(values: np.ndarray) -> None:
    # x is the projection if and only if v - x is the same, and largest, wherever x > 0.
    x = project_simplex(values)
    assert (x >= 0).all()
    assert x.sum() == pytest.approx(1, abs=1e-12)
    gap = values - x
    np.testing.assert_allclose(gap[x > 0], gap.max(), atol=1e-12)


@given(values=vectors, shift=st.floats(-1e6, 1e6))
def test_does_not_see_a_common_shift(values: np.ndarray, shift: float) -> None:
    np.testing.assert_allclose(project_simplex(values + shift), project_simplex(values), atol=1e-9)


def test_a_point_of_the_simplex_stays() -> None:
    np.testing.assert_allclose(project_simplex(np.array([0.2, 0.5, 0.3])), [0.2, 0.5, 0.3], atol=1e-15)


@pytest.mark.parametrize("values", [np.empty(0), np.ones((2, 2)), np.array([1.0, np.nan]), np.array([np.inf])])
def test_refuses_what_is_no_finite_vector(values: np.ndarray) -> None:
    with pytest.raises(ShapeError, match=r"simplex|projected"):
        project_simplex(values)
