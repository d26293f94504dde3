"""FedAvg, FedSGD and MGDA on two clients, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.table import make_method
from tests.helpers.rounds import decide

ROWS = np.array([[2.0, 0.0], [0.0, 1.0]])


def method(name: str, lr: float = 0.1) -> Method:
    return make_method(Settings.from_mapping({"method": name, "local.lr": lr}))


def test_fedavg_is_the_mean_by_samples() -> None:
    solved = decide(method("fedavg"), ROWS, examples=[10, 30])
    np.testing.assert_array_equal(solved.combination.weights, [0.25, 0.75])
    np.testing.assert_array_equal(solved.step, [0.5, 0.75])


def test_fedsgd_is_the_mean_by_samples_times_its_rate() -> None:
    solved = decide(method("fedsgd", lr=0.2), ROWS, examples=[10, 30])
    np.testing.assert_allclose(solved.step, [0.1, 0.15], rtol=1e-15)


def test_mgda_goes_to_the_point_of_the_hull_nearest_to_zero() -> None:
    # |l (2, 0) + (1 - l) (0, 1)|^2 = 4 l^2 + (1 - l)^2 is least at l = 1/5.
    solved = decide(method("mgda", lr=0.5), ROWS)
    np.testing.assert_allclose(solved.combination.weights, [0.1, 0.4], rtol=1e-12)
    np.testing.assert_allclose(solved.slopes, [0.4, 0.4], rtol=1e-12)  # both fall alike
    assert solved.combination.status == "converged"


def test_mgda_takes_the_shorter_of_two_gradients_where_it_serves_both() -> None:
    solved = decide(method("mgda", lr=1.0), np.array([[1.0, 0.0], [3.0, 1.0]]))
    np.testing.assert_allclose(solved.combination.weights, [1, 0], atol=1e-12)


def test_mgda_stands_still_between_opposite_gradients() -> None:
    solved = decide(method("mgda"), np.array([[1.0, 0.0], [-2.0, 0.0]]))
    assert solved.combination.status == "stationary"
    assert solved.norm == pytest.approx(0, abs=1e-12)


def test_mgda_leaves_out_and_counts_who_has_no_gradient() -> None:
    solved = decide(method("mgda", lr=1.0), np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(solved.combination.weights, [0.5, 0, 0.5], atol=1e-12)
    assert solved.combination.excluded == {1: "zero-gradient"}
    nobody = decide(method("mgda"), np.zeros((2, 3))).combination
    assert (nobody.status, nobody.excluded) == ("stationary", {0: "zero-gradient", 1: "zero-gradient"})


def test_rates_and_losses_do_not_bear_on_the_baselines() -> None:
    for name in ("fedavg", "fedsgd", "mgda"):
        expected = decide(method(name), ROWS).step
        assert np.array_equal(decide(method(name), ROWS, rates=[1e300, 0]).step, expected)
