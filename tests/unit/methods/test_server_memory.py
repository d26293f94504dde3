"""Momentum and server L-BFGS: their memory, against closed forms and dense BFGS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.lbfgs import SMALLEST_MOVE
from dqnfed_flwr.methods.server_memory import MeanGradientMethod, Momentum, ServerLbfgs
from dqnfed_flwr.types import Float64Array, RoundBatch
from tests.helpers.dense_bfgs import inverse_update

BATCH = RoundBatch(np.eye(2), np.ones(2), np.ones(2), np.array([0.25, 0.75]), (0, 1), 1, theta_norm=1.0)


def momentum(lr: float, beta: float) -> Momentum:
    return Momentum(resolve(Settings.from_mapping({"method": "momentum", "local.lr": lr, "momentum.beta": beta})))


def server_lbfgs(lr: float, memory: int) -> ServerLbfgs:
    return ServerLbfgs(
        resolve(Settings.from_mapping({"method": "server-lbfgs", "local.lr": lr, "server-lbfgs.memory": memory}))
    )


def propose(
    method: MeanGradientMethod, gradient: list[float] | Float64Array, batch: RoundBatch = BATCH
) -> Float64Array:
    return np.asarray(method.from_mean(vector(gradient), batch))


def vector(values: list[float] | Float64Array) -> Tensor:
    return torch.tensor(np.asarray(values, np.float64))


def reborn(method: MeanGradientMethod, empty: MeanGradientMethod) -> MeanGradientMethod:
    empty.restore_state({name: value.copy() for name, value in method.export_state().items()})
    return empty


def test_momentum_adds_a_share_of_the_last_step_whatever_its_factor() -> None:
    for factor in (1.0, 1e-3):
        method = momentum(lr=0.5, beta=0.25)
        np.testing.assert_array_equal(propose(method, [2, 0, 0]), [1, 0, 0])
        method.step_taken(vector([0, 8, 0]), factor)
        np.testing.assert_array_equal(propose(method, [2, 0, 0]), [1, 2, 0])
        np.testing.assert_array_equal(propose(method, [2, 0, 0]), [1, 2, 0])  # asked twice in a round


def test_momentum_begins_anew_where_the_model_stayed() -> None:
    for forget in (True, False):
        method = momentum(lr=0.5, beta=0.25)
        method.step_taken(vector([0, 8, 0]), 1.0)
        if forget:
            method.forget()
        else:
            method.step_taken(vector([0, 8, 0]), 0.0)
        np.testing.assert_array_equal(propose(method, [2, 0, 0]), [1, 0, 0])
        assert method.export_state() == {}


class Bowl:
    """f(x) = x.A x / 2 - b.x, whose pairs are s and A s."""

    def __init__(self, rng: np.random.Generator, dim: int = 3) -> None:
        frame = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        self.hessian = frame @ np.diag(rng.uniform(0.5, 5, dim)) @ frame.T
        self.minimum = rng.standard_normal(dim)

    def gradient(self, x: Float64Array) -> Float64Array:
        return np.asarray(self.hessian @ (x - self.minimum))


def test_lbfgs_is_bfgs_on_the_moves_that_were_made(rng: np.random.Generator) -> None:
    bowl, x = Bowl(rng), np.zeros(3)
    method = server_lbfgs(lr=0.1, memory=5)
    step = propose(method, bowl.gradient(x))
    np.testing.assert_allclose(step, 0.1 * bowl.gradient(x))
    pairs: list[tuple[Float64Array, Float64Array]] = []
    for factor in (1.0, 0.5, 0.25):
        taken = step + 0.01 * rng.standard_normal(3)  # the guarantee changed the step a little
        method.step_taken(vector(taken), factor)
        moved = x - factor * taken
        pairs.append((moved - x, bowl.gradient(moved) - bowl.gradient(x)))
        x = moved
        newest_s, newest_y = pairs[-1]
        inverse = np.eye(3) * (newest_s @ newest_y) / (newest_y @ newest_y)
        for s, y in pairs:
            inverse = inverse_update(inverse, s, y)
        step = propose(method, bowl.gradient(x))
        np.testing.assert_allclose(step, inverse @ bowl.gradient(x), rtol=1e-8)


def test_lbfgs_finds_the_minimum_of_a_quadratic(rng: np.random.Generator) -> None:
    bowl, x = Bowl(rng), np.zeros(3)
    method = server_lbfgs(lr=0.1, memory=10)
    for _ in range(25):
        step = propose(method, bowl.gradient(x))
        method.step_taken(vector(step), 1.0)
        x = x - step
    np.testing.assert_allclose(x, bowl.minimum, atol=1e-8)


def test_lbfgs_forms_one_pair_a_move_and_none_where_the_model_stayed(rng: np.random.Generator) -> None:
    bowl = Bowl(rng)
    method = server_lbfgs(lr=0.1, memory=2)
    held = []
    for factor in (1.0, 1.0, 1.0, 0.0):
        gradient = bowl.gradient(rng.standard_normal(3))
        first = propose(method, gradient)
        assert np.array_equal(propose(method, gradient), first)  # asked twice in a round
        held.append(sum(name.startswith("s") for name in method.export_state()))
        step = rng.standard_normal(3)
        method.step_taken(vector(step), factor)
    assert held[0] == 0
    assert max(held) <= 2  # the memory
    assert "move" not in method.export_state()
    method.forget()
    np.testing.assert_allclose(propose(method, [1, 0, 0]), [0.1, 0, 0])


def pairs_of(method: MeanGradientMethod) -> int:
    return sum(name.startswith("s") for name in method.export_state())


OTHERS = replace(BATCH, clients=(0, 2))
ONE_APART = replace(BATCH, shares=np.array([1.0, 0.0]))


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        (BATCH, BATCH, 1),
        (BATCH, replace(BATCH, shares=np.array([0.5, 0.5])), 1),  # of the same clients
        (BATCH, OTHERS, 0),
        (BATCH, ONE_APART, 0),
        (ONE_APART, BATCH, 0),
        (ONE_APART, replace(OTHERS, shares=np.array([1.0, 0.0])), 1),  # of client 0 alone, both
    ],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_means_of_different_clients_make_no_pair(
    rng: np.random.Generator, first: RoundBatch, second: RoundBatch, pairs: int, stopped: bool
) -> None:
    bowl = Bowl(rng)
    method: MeanGradientMethod = server_lbfgs(lr=0.1, memory=5)
    step = propose(method, bowl.gradient(np.zeros(3)), first)
    method.step_taken(vector(step), 1.0)
    if stopped:
        method = reborn(method, server_lbfgs(lr=0.1, memory=5))
    propose(method, bowl.gradient(-step), second)
    assert pairs_of(method) == pairs


def test_after_a_change_of_clients_the_next_pair_is_that_of_the_new_ones(rng: np.random.Generator) -> None:
    bowl, method, x = Bowl(rng), server_lbfgs(lr=0.1, memory=5), np.zeros(3)
    held = []
    for batch in (BATCH, OTHERS, OTHERS):
        step = propose(method, bowl.gradient(x), batch)
        held.append(pairs_of(method))
        method.step_taken(vector(step), 1.0)
        x = x - step
    assert held == [0, 0, 1]


@pytest.mark.parametrize(("share", "pairs"), [(0.9, 0), (1.1, 1)])
def test_a_move_within_the_rounding_of_the_model_makes_no_pair(share: float, pairs: int) -> None:
    # The move is (1, 0, 0): as long as SMALLEST_MOVE rounding units of a model of this norm, up to `share`.
    norm = 1 / (SMALLEST_MOVE * np.finfo(np.float64).eps) / share
    method, far = server_lbfgs(lr=1.0, memory=5), replace(BATCH, theta_norm=norm)
    propose(method, [1.0, 0.0, 0.0], far)
    method.step_taken(vector([-1.0, 0.0, 0.0]), 1.0)
    propose(method, [2.0, 0.0, 0.0], far)
    assert pairs_of(method) == pairs


@pytest.mark.parametrize("settled", [True, False])
def test_a_restored_anchor_goes_on_with_the_same_bits(rng: np.random.Generator, settled: bool) -> None:
    bowl = Bowl(rng)
    for make in (lambda: server_lbfgs(0.1, 3), lambda: momentum(0.1, 0.9)):
        method: MeanGradientMethod = make()
        for _ in range(5):
            step = propose(method, bowl.gradient(rng.standard_normal(3)))
            method.step_taken(vector(step), 0.5)
        if not settled:
            propose(method, bowl.gradient(rng.standard_normal(3)))
        copy = reborn(method, make())
        for _ in range(3):
            gradient = bowl.gradient(rng.standard_normal(3))
            step = propose(method, gradient)
            assert np.array_equal(propose(copy, gradient), step)
            method.step_taken(vector(step), 0.5)
            copy.step_taken(vector(step), 0.5)
