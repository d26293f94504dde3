from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.types import Float64Array
from tests.helpers.rounds import decide


def famo(lr: float = 0.025, decay: float = 0.001, rate: float = 1.0) -> Method:
    given = {"method": "famo", "famo.lr": lr, "famo.decay": decay, "local.work": "gradient", "local.lr": rate}
    return make_method(resolve(Settings.from_mapping(given)))


def weights(method: Method, losses: Sequence[float], number: int = 1, clients: Sequence[int] = ()) -> Float64Array:
    rows = np.eye(4)[: len(losses)]
    return decide(method, rows, losses=losses, clients=clients or None, number=number).combination.weights


def test_two_rounds_by_hand() -> None:
    method = famo(lr=0.1, decay=0.0, rate=0.5)
    # z = 1/2, 1/2; z / F = 1/2, 1.
    np.testing.assert_allclose(weights(method, [1, 0.5]), [0.5 / 3, 0.5 * 2 / 3], rtol=1e-6)
    # The first loss stayed and the second halved: Adam's first step is 0.1 up and 0.1 down. z / F = e^0.1, 4 e^-0.1.
    shares = np.array([math.exp(0.1), 4 * math.exp(-0.1)])
    np.testing.assert_allclose(weights(method, [1, 0.25], 2), 0.5 * shares / shares.sum(), rtol=1e-6)


@pytest.mark.parametrize(("lr", "decay"), [(0.025, 0.001), (0.3, 0.0), (0.1, 0.5)])
def test_the_weights_are_those_of_torchjd(lr: float, decay: float, rng: np.random.Generator) -> None:
    library = pytest.importorskip("torchjd.scalarization").FAMO(4, lr=lr, weight_decay=decay).double()
    method, before = famo(lr, decay), None
    for number in range(1, 9):
        losses = torch.from_numpy(rng.uniform(0.05, 3, 4)).requires_grad_()
        if before is not None:
            library.update(losses)
        before = library(losses)
        (theirs,) = torch.autograd.grad(before, losses)
        np.testing.assert_allclose(weights(method, losses.tolist(), number), theirs.numpy(), rtol=1e-9)


def test_the_weights_sum_to_1_and_without_a_rate_are_the_reciprocals() -> None:
    method = famo(lr=0.0)
    for number, losses in enumerate(([1.0, 2.0, 4.0], [3.0, 0.5, 1.0], [0.0, 1.0, 1.0]), 1):
        found = weights(method, losses, number)
        expected = 1 / (np.array(losses) + 1e-8)
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


def test_whose_loss_falls_less_gains() -> None:
    slow, even = famo(), famo()
    for number, loss in enumerate((1.0, 0.7, 0.5, 0.3), 1):
        weights(slow, [1.0, loss, loss], number)
        weights(even, [loss, loss, loss], number)
    gained, alike = weights(slow, [1, 1, 1], 5), weights(even, [1, 1, 1], 5)
    assert gained[0] > 1 / 3 > gained[1] == pytest.approx(gained[2])
    np.testing.assert_allclose(alike, [1 / 3] * 3)


def test_an_absent_client_counts_by_its_fall_a_round() -> None:
    method = famo(lr=0.1, decay=0.0)
    weights(method, [1.0, 1.0, 1.0], 1, [0, 1, 2])
    weights(method, [0.8], 2, [1])  # compared with nobody, it has the slope 0 in Adam's first step
    found = weights(method, [0.25, 0.25, 0.25], 3, [0, 1, 2])
    # Falls a round: 1/2 (to 1/4 in two rounds), 0.25 / 0.8, 1/2. The first and third gain Adam's first step.
    second = 0.1 * (0.1 / (1 - 0.9**2)) / math.sqrt(0.001 / (1 - 0.999**2))
    expected = np.exp([0.1, -second, 0.1])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


def test_a_new_client_enters_with_the_logit_0() -> None:
    method = famo(lr=0.1, decay=0.0)
    weights(method, [1.0, 1.0], 1, [0, 1])
    late = weights(method, [0.5, 0.25, 0.25], 2, [0, 1, 3])
    expected = np.array([math.exp(0.1), 2 * math.exp(-0.1), 2])
    np.testing.assert_allclose(late, expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_restored_goes_on_with_the_same_bits(rounds: int, rng: np.random.Generator) -> None:
    straight, restored = famo(), famo()
    draws = [(sorted(rng.choice(6, 3, replace=False).tolist()), rng.uniform(0, 2, 3).tolist()) for _ in range(8)]
    for number, (clients, losses) in enumerate(draws[:rounds], 1):
        weights(straight, losses, number, clients)
    restored.restore_state({name: np.array(value) for name, value in straight.export_state().items()})
    for number, (clients, losses) in enumerate(draws[rounds:], rounds + 1):
        assert np.array_equal(weights(straight, losses, number, clients), weights(restored, losses, number, clients))
