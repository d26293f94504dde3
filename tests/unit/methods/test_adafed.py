"""AdaFed by hand and against the paper's recursion."""

from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.gradient_sets import conflicting_set, random_set
from tests.helpers.rounds import decide

GRADS = np.array([[2.0, 0.0], [0.0, 1.0]])
LOSSES = [2.0, 0.5]  # of 1/2 |theta - (-2, 0)|^2 and 1/2 |theta - (0, -1)|^2 at 0


def adafed(gamma: float = 1.0, work: str = "sgd") -> Method:
    given = {"method": "adafed", "adafed.gamma": gamma, "local.lr": 0.5, "local.work": work}
    return make_method(resolve(Settings.from_mapping(given)))


def test_by_hand() -> None:
    # Unit gradients (1, 0), (0, 1) over their losses: (1/2, 0), (0, 2). The shortest vector of their line is
    # (2, 1/2) / (4 + 1/4).
    solved = decide(adafed(), GRADS, losses=LOSSES)
    np.testing.assert_allclose(solved.step, np.array([2, 0.5]) / 4.25, rtol=1e-12)
    assert solved.combination.status == "converged"
    assert solved.combination.residual < 1e-12
    # gamma = 2: (4, 1/4) / (16 + 1/16).
    solved = decide(adafed(2.0), GRADS, losses=LOSSES)
    np.testing.assert_allclose(solved.step, np.array([4, 0.25]) / 16.0625, rtol=1e-12)


@pytest.mark.parametrize("kind", [random_set, conflicting_set])
def test_is_the_direction_of_the_recursion(kind: object, rng: np.random.Generator) -> None:
    assert callable(kind)
    for gamma in (0.5, 1.0, 2.0):
        grads, losses = kind(rng, 4, 9), rng.uniform(0.2, 3, 4)
        units = grads / np.linalg.norm(grads, axis=1, keepdims=True)
        step, eta = newton_rate_step(units, losses**gamma)
        solved = decide(adafed(gamma), grads, losses=losses)
        np.testing.assert_allclose(solved.step, step / eta, rtol=1e-8, atol=1e-12)
        falls = units @ solved.step.numpy() / losses**gamma
        np.testing.assert_allclose(falls, falls[0], rtol=1e-8)
        assert falls[0] > 0


def test_without_gamma_all_unit_gradients_fall_alike() -> None:
    # The nearest point to 0 on the line through (1, 0) and (0, 1) is (1/2, 1/2), whatever the losses.
    for losses in (LOSSES, [0.0, 1e6]):
        np.testing.assert_allclose(decide(adafed(0.0), GRADS, losses=losses).step, [0.5, 0.5], rtol=1e-12)


def test_the_lengths_of_the_rows_do_not_count() -> None:
    expected = decide(adafed(), GRADS, losses=LOSSES).step
    np.testing.assert_allclose(decide(adafed(), GRADS * [[1e6], [1e-6]], losses=LOSSES).step, expected, rtol=1e-12)
    gradient = decide(adafed(work="gradient"), GRADS, losses=LOSSES).step
    np.testing.assert_allclose(gradient, 0.5 * expected, rtol=1e-12)  # eta is local.lr there


def test_equal_clients_go_along_their_gradient_over_their_loss() -> None:
    step = decide(adafed(), np.array([[3.0, 4.0]] * 3), losses=[2, 2, 2]).step
    np.testing.assert_allclose(step, np.array([0.6, 0.8]) / 2, rtol=1e-12)


def test_equal_gradients_of_unequal_losses_meet_in_the_middle() -> None:
    # u . x = 1 and u . x = 3 cannot both hold; x = 2 u is nearest, d = u / 2, and the residual sqrt(2 / 10) tells.
    solved = decide(adafed(), np.array([[3.0, 4.0]] * 2), losses=[1, 3])
    np.testing.assert_allclose(solved.step, np.array([0.6, 0.8]) / 2, rtol=1e-12)
    assert solved.combination.residual == pytest.approx(np.sqrt(0.2))


@pytest.mark.parametrize("tilt", [0.0, 1e-9])
def test_opposite_gradients_give_no_step(tilt: float) -> None:
    solved = decide(adafed(), np.array([[1.0, 0.0], [-1.0, tilt]]), losses=[1, 1])
    assert solved.combination.status == "stationary"
    assert solved.norm == 0


def test_clients_without_gradient_or_loss_are_left_out_and_counted() -> None:
    grads = np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    solved = decide(adafed(), grads, losses=[2, 1, 0])
    assert solved.combination.excluded == {1: "zero-gradient", 2: "bad-rate"}
    np.testing.assert_allclose(solved.step, [0.5, 0], rtol=1e-12)
