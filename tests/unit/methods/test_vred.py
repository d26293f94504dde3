"""VRed and Semi-VRed by hand and against the gradient of their objectives by automatic differentiation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.rounds import decide

BOTH = pytest.mark.parametrize("name", ["vred", "semi-vred"])
GRADS = np.array([[2.0, 0.0], [0.0, 1.0]])
LOSSES = [2.0, 0.5]  # of 1/2 |theta - (-2, 0)|^2 and 1/2 |theta - (0, -1)|^2 at 0


def make(name: str, beta: float, **given: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": name, f"{name}.beta": beta, **given})))


def test_by_hand() -> None:
    # Mean loss 1.25, excess 0.75 and -0.75: weights 1/2 (1 + 0.2 * 0.75), 1/2 (1 - 0.2 * 0.75).
    solved = decide(make("vred", 0.1), GRADS, losses=LOSSES)
    np.testing.assert_allclose(solved.combination.weights, [0.575, 0.425], rtol=1e-12)
    np.testing.assert_allclose(solved.step, [1.15, 0.425], rtol=1e-12)
    # Upper excess 0.75 and 0, mean 0.375: weights 1/2 (1 + 0.2 * 0.375), 1/2 (1 - 0.2 * 0.375).
    solved = decide(make("semi-vred", 0.1), GRADS, losses=LOSSES)
    np.testing.assert_allclose(solved.combination.weights, [0.5375, 0.4625], rtol=1e-12)


@BOTH
def test_is_the_gradient_of_mean_and_variance(name: str, rng: np.random.Generator) -> None:
    centers, shares = torch.from_numpy(rng.standard_normal((4, 5))), torch.arange(1, 5, dtype=torch.float64) / 10
    theta = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    losses = 0.5 * (theta - centers).square().sum(dim=1)
    excess = losses - shares @ losses
    excess = excess.relu() if name == "semi-vred" else excess
    (expected,) = torch.autograd.grad(shares @ losses + 0.3 * (shares @ excess.square()), theta)
    method = make(name, 0.3, **{"local.work": "gradient", "local.lr": 0.25})
    solved = decide(method, -centers.numpy(), losses=losses.detach().numpy(), examples=[1, 2, 3, 4])
    np.testing.assert_allclose(solved.step, 0.25 * expected, rtol=1e-12)
    assert solved.combination.weights.sum() == pytest.approx(0.25, rel=1e-12)


@BOTH
def test_is_fedavg_without_beta_and_with_equal_losses(name: str) -> None:
    for beta, losses in ((0.0, LOSSES), (1.0, [3.0, 3.0])):
        solved = decide(make(name, beta), GRADS, losses=losses, examples=[10, 30])
        np.testing.assert_allclose(solved.combination.weights, [0.25, 0.75], rtol=1e-12)


@BOTH
def test_equal_gradients_are_taken_whole(name: str) -> None:
    step = decide(make(name, 0.5), np.array([[1.0, 2.0]] * 3), losses=[1, 2, 3]).step
    np.testing.assert_allclose(step, [1, 2], rtol=1e-12)


def test_negative_weights_are_told() -> None:
    # 1/2 (1 + 2 * 2 * 0.75) = 2 and -1.
    solved = decide(make("vred", 2.0), GRADS, losses=LOSSES)
    np.testing.assert_allclose(solved.combination.weights, [2, -1], rtol=1e-12)
    assert solved.combination.notes["negative_weights"] == 1
