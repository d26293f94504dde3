"""TERM by hand and against the gradient of its objective by automatic differentiation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.rounds import decide

ROWS = np.array([[2.0, 0.0], [0.0, 1.0]])


def term(t: float, **given: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": "term", "term.t": t, **given})))


def test_by_hand() -> None:
    # exp(t F) = 3, 1 for t = 1 and 9, 1 for t = 2; with shares 1/4 and 3/4: 3/4, 3/4.
    losses = [math.log(3), 0.0]
    np.testing.assert_allclose(decide(term(1.0), ROWS, losses=losses).combination.weights, [0.75, 0.25], rtol=1e-13)
    np.testing.assert_allclose(decide(term(2.0), ROWS, losses=losses).combination.weights, [0.9, 0.1], rtol=1e-13)
    solved = decide(term(1.0), ROWS, losses=losses, examples=[10, 30])
    np.testing.assert_allclose(solved.combination.weights, [0.5, 0.5], rtol=1e-13)
    np.testing.assert_allclose(solved.step, [1.0, 0.5], rtol=1e-13)


def test_is_the_gradient_of_the_tilted_loss(rng: np.random.Generator) -> None:
    centers, shares = torch.from_numpy(rng.standard_normal((3, 4))), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    losses = 0.5 * (theta - centers).square().sum(dim=1)
    tilted = torch.logsumexp(2.5 * losses + shares.log(), dim=0) / 2.5
    (expected,) = torch.autograd.grad(tilted, theta)
    method = term(2.5, **{"local.work": "gradient", "local.lr": 0.5})
    solved = decide(method, -centers.numpy(), losses=losses.detach().numpy(), examples=[2, 3, 5])
    np.testing.assert_allclose(solved.step, 0.5 * expected, rtol=1e-12)


@pytest.mark.parametrize("t", [0.0, 1e-14])
def test_tends_to_fedavg_as_the_tilt_vanishes(t: float) -> None:
    solved = decide(term(t), ROWS, losses=[5.0, 0.1], examples=[10, 30])
    np.testing.assert_allclose(solved.combination.weights, [0.25, 0.75], rtol=1e-12)


def test_equal_losses_give_fedavg_whatever_the_tilt() -> None:
    solved = decide(term(5.0), ROWS, losses=[7.0, 7.0], examples=[10, 30])
    np.testing.assert_allclose(solved.combination.weights, [0.25, 0.75], rtol=1e-12)


def test_losses_beyond_the_range_of_the_exponential_do_no_harm() -> None:
    weights = decide(term(5.0), ROWS, losses=[1e6, 1e6 - 1]).combination.weights
    np.testing.assert_allclose(weights, np.array([1, math.exp(-5)]) / (1 + math.exp(-5)), rtol=1e-9)
    np.testing.assert_allclose(decide(term(5.0), ROWS, losses=[1e6, 0]).combination.weights, [1, 0], atol=1e-12)


def test_equal_gradients_are_taken_whole() -> None:
    step = decide(term(3.0), np.array([[1.0, 2.0]] * 3), losses=[1, 2, 3]).step
    np.testing.assert_allclose(step, [1, 2], rtol=1e-12)
