"""FedAvg and FedSGD on two clients, worked by hand."""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.rounds import decide

ROWS = np.array([[2.0, 0.0], [0.0, 1.0]])


def method(name: str, lr: float = 0.1) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": name, "local.lr": lr})))


def test_fedavg_is_the_mean_by_samples() -> None:
    solved = decide(method("fedavg"), ROWS, examples=[10, 30])
    np.testing.assert_array_equal(solved.combination.weights, [0.25, 0.75])
    np.testing.assert_array_equal(solved.step, [0.5, 0.75])


def test_fedsgd_is_the_mean_by_samples_times_its_rate() -> None:
    solved = decide(method("fedsgd", lr=0.2), ROWS, examples=[10, 30])
    np.testing.assert_allclose(solved.step, [0.1, 0.15], rtol=1e-15)


def test_rates_and_losses_do_not_bear_on_the_baselines() -> None:
    for name in ("fedavg", "fedsgd", "mgda"):
        expected = decide(method(name), ROWS).step
        assert np.array_equal(decide(method(name), ROWS, rates=[1e300, 0]).step, expected)
