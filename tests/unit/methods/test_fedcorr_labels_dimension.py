from __future__ import annotations

import math

import numpy as np
import pytest

from dqnfed_flwr.methods.fedcorr.labels import local_intrinsic_dimensions


def by_hand(points: np.ndarray[tuple[int, int], np.dtype[np.float64]], place: int, count: int) -> float:
    """One point at a time, from all its distances."""
    distances = sorted(math.dist(points[place], other) for k, other in enumerate(points) if k != place)[:count]
    return -1 / (sum(math.log(r / distances[-1]) for r in distances) / count)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_it_is_the_formula(count: int, rng: np.random.Generator) -> None:
    points = rng.dirichlet(np.ones(6), 40)
    found = local_intrinsic_dimensions(points, count)
    np.testing.assert_allclose(found, [by_hand(points, k, count) for k in range(40)], rtol=1e-9)


def test_points_on_a_line_have_their_worked_value() -> None:
    """0, 1, 3 and k = 2: distances (1, 3), (1, 2), (2, 3) give 2 / log 3, 2 / log 2, 2 / log 1.5."""
    found = local_intrinsic_dimensions(np.array([[0.0], [1.0], [3.0]]))
    np.testing.assert_allclose(found, [2 / math.log(3), 2 / math.log(2), 2 / math.log(1.5)], rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_uniform_points_have_about_the_dimension_they_fill(dim: int, rng: np.random.Generator) -> None:
    points = np.zeros((3000, 6))
    points[:, :dim] = rng.uniform(size=(3000, dim))
    assert np.median(local_intrinsic_dimensions(points, 20)) == pytest.approx(dim, rel=0.15)


def test_copies_of_a_point_are_left_out() -> None:
    """With a copy of 0 there are distances (0, 1, 3) at it: the mean is over the two that are apart."""
    found = local_intrinsic_dimensions(np.array([[0.0], [0.0], [1.0], [3.0]]), 3)
    assert found[0] == pytest.approx(2 / math.log(3))
    assert found[0] == found[1]


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.ones((1, 3)), np.ones((5, 3)), np.eye(3)])
def test_where_nothing_can_be_said_it_is_nan(points: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    found = local_intrinsic_dimensions(points)
    assert found.shape == (len(points),)
    assert np.isnan(found).all()
