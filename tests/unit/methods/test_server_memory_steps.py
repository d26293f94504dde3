"""Momentum and server L-BFGS by themselves, on two clients worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.server_memory import MeanGradientMethod
from dqnfed_flwr.types import Float64Array, RoundBatch
from tests.helpers.quadratics import Quadratic, spread_out
from tests.helpers.rounds import decide

GRADS = np.array([[2.0, 0.0], [0.0, 1.0]])
HALF = Settings.from_mapping({"method": "momentum", "local.lr": 0.5})
BOTH = pytest.mark.parametrize("name", ["momentum", "server-lbfgs"])


def make(name: str, lr: float = 0.5, **given: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": name, "local.lr": lr, **given})))


def gradients(objectives: list[Quadratic], theta: Float64Array) -> Float64Array:
    return np.array([objective.gradient(theta) for objective in objectives])


def test_momentum_by_hand() -> None:
    method = make("momentum", **{"momentum.beta": 0.5})
    first = decide(method, GRADS).step
    np.testing.assert_allclose(first, [0.5, 0.25], rtol=1e-12)  # 0.5 * mean (1, 0.5)
    method.step_taken(first, 1.0)
    solved = decide(method, GRADS)
    np.testing.assert_allclose(solved.step, [0.75, 0.375], rtol=1e-12)  # + 0.5 * (0.5, 0.25)
    assert solved.combination.notes == {"anchor_reset": 0.0}


def test_lbfgs_finds_the_minimum_of_one_dimension_in_its_second_step() -> None:
    # Curvatures 1 and 3 around 0, mean 2 theta. From 1: g = 2, step 0.2, theta = 0.8, g = 1.6; s = -0.2, y = -0.4,
    # H = 1/2, step 0.8.
    method = make("server-lbfgs", lr=0.1)
    first = decide(method, np.array([[1.0], [3.0]])).step
    np.testing.assert_allclose(first, [0.2], rtol=1e-12)
    method.step_taken(first, 1.0)
    np.testing.assert_allclose(decide(method, np.array([[0.8], [2.4]])).step, [0.8], rtol=1e-12)


def test_lbfgs_reaches_the_minimum_of_the_mean_by_shares() -> None:
    objectives, theta = spread_out(4), np.zeros(6)
    method = make("server-lbfgs", lr=0.1)
    examples = [objective.examples for objective in objectives]
    for _ in range(25):
        step = decide(method, gradients(objectives, theta), examples=examples).step
        method.step_taken(step, 1.0)
        theta = theta - step.numpy()
    shares = np.array(examples) / sum(examples)
    hessians = np.array([objective.curvature for objective in objectives])
    centers = np.array([objective.center for objective in objectives])
    np.testing.assert_allclose(theta, shares @ (hessians * centers) / (shares @ hessians), atol=1e-8)


def test_momentum_without_beta_is_fedsgd() -> None:
    plain, method = make("fedsgd"), make("momentum", **{"momentum.beta": 0.0})
    for rows in (GRADS, -GRADS, 3 * GRADS):
        solved = decide(method, rows, examples=[1, 3])
        np.testing.assert_allclose(solved.step, decide(plain, rows, examples=[1, 3]).step, rtol=1e-12)
        method.step_taken(solved.step, 1.0)


@BOTH
def test_equal_clients_count_as_one(name: str) -> None:
    one, three = make(name), make(name)
    for theta in (1.0, 0.7, 0.4):
        row = np.array([[theta, 3 * theta]])
        alone, together = decide(one, row).step, decide(three, np.repeat(row, 3, axis=0)).step
        np.testing.assert_allclose(together, alone, rtol=1e-12)
        one.step_taken(alone, 1.0)
        three.step_taken(together, 1.0)


def test_momentum_against_the_mean_gradient_is_dropped_and_noted() -> None:
    # 0.5 * (-0.1, 0) + 0.5 * (0.5, 0.25) = (0.2, 0.125) rises along the mean gradient (-0.1, 0).
    method = make("momentum", **{"momentum.beta": 0.5})
    method.step_taken(decide(method, GRADS).step, 1.0)
    solved = decide(method, np.array([[-0.2, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(solved.step, [-0.05, 0], rtol=1e-12)
    assert solved.combination.notes == {"anchor_reset": 1.0}
    method.step_taken(solved.step, 1.0)
    np.testing.assert_allclose(decide(method, GRADS).step, [0.5 - 0.025, 0.25], rtol=1e-12)


class Broken(MeanGradientMethod):
    """Makes the step that it is told to."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__(resolve(HALF))
        self.made, self.forgot = made, 0

    def from_mean(self, mean_gradient: Tensor, batch: RoundBatch) -> Tensor:
        return self.made(mean_gradient)

    def forget(self) -> None:
        self.forgot += 1


@pytest.mark.parametrize("factor", [-1.0, 0.0, float("nan"), float("inf")])
def test_what_is_no_descent_gives_way_to_the_mean_gradient(factor: float) -> None:
    method = Broken(lambda mean: factor * mean)
    solved = decide(method, 1 + GRADS)
    np.testing.assert_allclose(solved.step, [1, 0.75], rtol=1e-12)
    assert (method.forgot, solved.combination.notes) == (1, {"anchor_reset": 1.0})


def test_a_mean_gradient_of_zero_is_no_reason_to_forget() -> None:
    method = Broken(torch.zeros_like)
    solved = decide(method, np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert (method.forgot, solved.norm) == (0, 0)


def test_displacements_have_no_curvature_pairs_and_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.work"):
        Settings.from_mapping({"method": "server-lbfgs", "local.work": "sgd"})


def test_momentum_of_displacements_adds_them_to_the_step_that_was_taken() -> None:
    work: dict[str, Any] = {"momentum.beta": 0.5, "local.work": "sgd"}
    method = make("momentum", **work)
    np.testing.assert_allclose(decide(method, GRADS).step, [1, 0.5], rtol=1e-12)  # the mean row, eta being 1
    method.step_taken(torch.tensor([0.5, 0.5], dtype=torch.float64), 0.25)
    np.testing.assert_allclose(decide(method, GRADS).step, [1.25, 0.75], rtol=1e-12)
