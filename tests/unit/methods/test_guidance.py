"""What FedMDFG and FedLF share, against closed forms."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.methods.fedmdfg import LossReferences
from dqnfed_flwr.methods.guidance import angle, common_direction, equalising, fairness_weights
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import conflicting_set

positive = arrays(np.float64, st.integers(2, 6), elements=st.floats(0.1, 10))


def test_angles_by_hand() -> None:
    assert angle(np.array([1.0, 0.0])) == pytest.approx(45)
    assert angle(np.array([1.0, 3.0])) == pytest.approx(np.degrees(np.arccos(4 / sqrt(20))))
    assert angle(np.array([2.0, 2.0, 2.0])) == 0
    assert angle(np.zeros(3)) == 0


def test_fairness_weights_by_hand() -> None:
    # (1.F / |F|^2) F - 1 = 4/10 (1, 3) - (1, 1) = (-0.6, 0.2)
    np.testing.assert_allclose(fairness_weights(np.array([1.0, 3.0])), np.array([-3, 1]) / sqrt(10), rtol=1e-12)
    assert not fairness_weights(np.full(4, 0.7)).any()
    for size in (1e160, 1e-170):
        np.testing.assert_allclose(fairness_weights(np.array([1.0, 3.0]) * size), np.array([-3, 1]) / sqrt(10))
    assert not fairness_weights(np.zeros(2)).any()


@given(positive)
def test_fairness_weights_are_the_slope_of_the_cosine(losses: Float64Array) -> None:
    def cosine(values: Float64Array) -> float:
        return float(values.sum() / np.linalg.norm(values) / sqrt(len(values)))

    h = fairness_weights(losses)
    if angle(losses) < 1:
        return
    width = 1e-6
    units = width * np.eye(len(losses))
    slope = np.array([(cosine(losses - unit) - cosine(losses + unit)) / (2 * width) for unit in units])
    np.testing.assert_allclose(h, slope / np.linalg.norm(slope), atol=1e-5)


def test_rows_are_made_as_long_as_the_mean_of_those_present() -> None:
    rows = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0], [8.0, 0.0]])  # the last is of an absent client
    np.testing.assert_allclose(equalising(rows @ rows.T, 3), [2 / 3, 2, 0, 1 / 4], rtol=1e-12)
    assert not equalising(np.zeros((2, 2)), 2).any()


@given(seed=st.integers(0, 1000), absent=st.integers(0, 2), fair=st.booleans(), as_long=st.booleans())
def test_a_direction_descends_every_objective(seed: int, absent: int, fair: bool, as_long: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, present = conflicting_set(rng, 5, 9), 5 - absent
    h = fairness_weights(rng.uniform(0.1, 2, present)) if fair else None
    found = common_direction(rows @ rows.T, present, h, fairness_as_long=as_long)
    if found.status is Status.STATIONARY:
        assert fair  # these rows alone have a common descent direction
        return
    step = found.weights @ rows
    assert (rows @ step > 0).all()
    equal = found.scales[:, None] * rows
    if h is not None:
        assert (h @ equal[:present]) @ step > 0
    assert found.short == pytest.approx(np.linalg.norm(step) / np.linalg.norm(rows[:present], axis=1).mean())


def test_a_fairness_row_as_long_as_the_others_is_the_unit_of_its_direction() -> None:
    # Rows (1, 0), (0, 1), h = (-3, 1)/sqrt(10): already of length 1. With rows (1, 0) and (0.8, 0.6) it is shorter,
    # (-2.2, 0.6)/sqrt(10), and either way the hull has another shortest point.
    rows = np.array([[1.0, 0.0], [0.8, 0.6]])
    h = fairness_weights(np.array([1.0, 3.0]))
    short, long = (
        common_direction(rows @ rows.T, 2, h, fairness_as_long=flag).weights @ rows for flag in (False, True)
    )
    row = np.array([-2.2, 0.6]) / sqrt(10)
    for point, fairness in ((short, row), (long, row / np.linalg.norm(row))):
        # Shortest point of the segment between (1, 0) and the fairness row; (0.8, 0.6) lies beyond it.
        line = np.array([1.0, 0.0]) - fairness
        share = -fairness @ line / (line @ line)
        np.testing.assert_allclose(point, fairness + share * line, atol=1e-12)


def test_references_are_means_of_what_was_not_above_them() -> None:
    references = LossReferences()
    assert references.update([4, 7], np.array([2.0, 1.0])) == 0
    assert references.update([4], np.array([1.0])) == 0  # (2 + 1) / 2 = 1.5
    assert references.update([4, 7], np.array([1.6, 1.0])) == 1  # stays 1.5, after three rounds
    assert references.update([4], np.array([1.5])) == 0
    assert references.update([4], np.array([0.5])) == 0  # (4 * 1.5 + 0.5) / 5 = 1.3
    copy = LossReferences()
    copy.restore_state({name: np.array(value) for name, value in references.export_state().items()})
    below = LossReferences()
    below.restore_state(references.export_state())
    assert below.update([4], np.array([1.3 - 1e-9])) == 0
    for some in (references, copy):
        assert some.update([4], np.array([1.3 + 1e-9])) == 1
        assert some.update([7, 9], np.array([1.0, 5.0])) == 0
