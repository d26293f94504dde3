from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import LinearConstraint, minimize

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.aaggff import CDFS, CdfName
from dqnfed_flwr.types import Float64Array
from tests.helpers.rounds import decide

DISTRIBUTIONS = {
    "normal": stats.norm(loc=1),
    "logistic": stats.logistic(loc=1),
    "gumbel": stats.gumbel_r(loc=1),
    "exponential": stats.expon(),
    "weibull": stats.weibull_min(2),
}


def settings(**given: Any) -> Settings:
    return Settings.from_mapping({"method": "aaggff", "clients": 4, **given})


def aaggff(**given: Any) -> Method:
    return make_method(resolve(settings(**given)))


def weights(method: Method, losses: Sequence[float], clients: Sequence[int] = ()) -> Float64Array:
    rows = np.eye(4)[: len(losses)]
    return decide(method, rows, losses=losses, clients=clients or None).combination.weights


@pytest.mark.parametrize("name", CDFS)
def test_distributions_are_those_of_scipy(name: CdfName) -> None:
    at = np.concatenate([np.linspace(0, 6, 50), [100.0]])
    np.testing.assert_allclose(CDFS[name](at), DISTRIBUTIONS[name].cdf(at), rtol=1e-12, atol=1e-300)


def test_few_clients_decide_as_a_solver_of_the_whole_problem_does(rng: np.random.Generator) -> None:
    method, gradients, decisions = aaggff(**{"aaggff.cdf": "logistic"}), list[Float64Array](), [np.full(4, 0.25)]

    def objective(p: Float64Array) -> float:
        bent = sum(float(g @ (p - q)) ** 2 for g, q in zip(gradients, decisions, strict=False))
        return float(sum(g @ p for g in gradients) + 4 / 2 * p @ p + 1 / 2 * bent)  # alpha = 4 K / K, beta = K / 4

    for _ in range(6):
        losses = rng.uniform(0, 3, 4)
        responses = DISTRIBUTIONS["logistic"].cdf(losses / losses.mean()) / 4
        gradients.append(-responses / (1 + responses @ decisions[-1]))
        found = minimize(
            objective,
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints=LinearConstraint(np.ones((1, 4)), 1, 1),
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        decisions.append(weights(method, losses.tolist()))
        np.testing.assert_allclose(decisions[-1], found.x, atol=1e-6)


def test_many_clients_decide_by_hand() -> None:
    method = aaggff(**{"aaggff.form": "device", "clients": 2})
    # Losses 2 and 0 are 2 and 0 means: responses Phi(1), Phi(-1), whose mean is 1/2.
    high, low = stats.norm.cdf(1), stats.norm.cdf(-1)
    apart = (high - low) / 1.5 * math.sqrt(math.log(2) / 2)
    np.testing.assert_allclose(weights(method, [2, 0])[0], 1 / (1 + math.exp(-apart)), rtol=1e-12)
    apart = 2 * (high - low) / 1.5 * math.sqrt(math.log(2) / 3)
    np.testing.assert_allclose(weights(method, [2, 0])[0], 1 / (1 + math.exp(-apart)), rtol=1e-12)


def test_with_sampling_those_absent_have_the_mean_response() -> None:
    method = aaggff(participation=0.5)
    # Responses of clients 0 and 1 are half as high; of their difference from the mean, twice as much counts.
    high, low = stats.norm.cdf(1) / 2, stats.norm.cdf(-1) / 2
    weights(method, [2, 0], [0, 1])
    scores = np.array([0.25 + 2 * (high - 0.25), 0.25 + 2 * (low - 0.25), 0.25, 0.25]) / 1.25
    scores = scores + 0.25 / 1.25  # next round: equal losses, whose responses Phi(0) / 2 are 1/4 for all
    scores *= math.sqrt(math.log(4) / 3)
    expected = np.exp(scores[[0, 2]])
    np.testing.assert_allclose(weights(method, [1, 1], [0, 2]), expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("form", ["silo", "device"])
def test_who_is_worse_off_again_and_again_gains(form: str) -> None:
    method = aaggff(**{"aaggff.form": form})
    largest = [float(weights(method, [3, 1, 1, 1])[0]) for _ in range(10)]
    assert largest[0] > 0.25
    assert largest == sorted(largest)


@pytest.mark.parametrize("form", ["silo", "device"])
def test_equal_losses_leave_the_weights_alike(form: str) -> None:
    method = aaggff(**{"aaggff.form": form})
    for loss in (2.0, 0.0, 1.0):
        np.testing.assert_allclose(weights(method, [loss] * 4), [0.25] * 4, rtol=1e-9)


def test_a_client_that_drops_out_has_the_mean_response() -> None:
    short, full = aaggff(), aaggff()
    found = weights(short, [1, 2, 3], [0, 1, 3])
    mean = np.mean(CDFS["normal"](np.array([0.5, 1.0, 1.5])))
    place = 1 + float(stats.norm.ppf(mean))
    assert place == pytest.approx(1)  # so that the mean loss in its place is the same
    expected = weights(full, [1, 2, 2, 3])[[0, 1, 3]]
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-9)


@pytest.mark.parametrize("form", ["silo", "device"])
def test_a_client_beyond_the_number_of_clients_decides_nothing(form: str) -> None:
    with_it, without = (aaggff(**{"aaggff.form": form}) for _ in range(2))
    solved = decide(with_it, np.eye(4)[:3], losses=[1, 3, 9e9], clients=[0, 1, 400]).combination
    expected = weights(without, [1, 3], [0, 1])
    assert solved.notes["strangers"] == 1
    np.testing.assert_allclose(solved.weights[:2] / solved.weights[:2].sum(), expected, rtol=1e-12)
    assert solved.weights[0] < solved.weights[2] < solved.weights[1]
    alone = decide(with_it, np.eye(4)[:1], losses=[5], clients=[400]).combination
    np.testing.assert_allclose(alone.weights, [1])
    np.testing.assert_array_equal(weights(with_it, [1, 2], [0, 1]), weights(without, [1, 2], [0, 1]))


def test_the_form_goes_by_the_sampling_and_stands_in_the_title() -> None:
    assert settings().title == "AAggFF-S"
    assert settings(participation=0.5).title == "AAggFF-D"
    assert settings(**{"aaggff.form": "device"}).title == "AAggFF-D"
    with pytest.raises(ConfigError, match=r"aaggff\.form: .* found 1001 clients.* use aaggff\.form device"):
        settings(clients=1001)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("rounds", [0, 3])
def test_restored_goes_on_with_the_same_bits(participation: float, rounds: int, rng: np.random.Generator) -> None:
    straight, restored = aaggff(participation=participation), aaggff(participation=participation)
    draws = [
        (sorted(rng.choice(4, 2, replace=False).tolist()), rng.uniform(0, 2, 2).tolist()) for _ in range(rounds + 3)
    ]
    for clients, losses in draws[:rounds]:
        weights(straight, losses, clients)
    restored.restore_state({name: np.array(value) for name, value in straight.export_state().items()})
    for clients, losses in draws[rounds:]:
        assert np.array_equal(weights(straight, losses, clients), weights(restored, losses, clients))
