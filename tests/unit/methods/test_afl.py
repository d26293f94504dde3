"""AFL on 1/2 |theta - (-2, 0)|^2 and 1/2 |theta - (0, -1)|^2 at 0: losses 2 and 1/2, gradients (2, 0) and (0, 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import GramMethod, Method, make_method
from dqnfed_flwr.schema.work import SGD
from dqnfed_flwr.types import Float64Array, RoundBatch
from tests.helpers.rounds import decide

GRADS = np.array([[2.0, 0.0], [0.0, 1.0]])
LOSSES = [2.0, 0.5]


def afl(gamma: float = 0.1, lr: float = 1.0, work: str = "gradient") -> Method:
    given = {"method": "afl", "afl.gamma": gamma, "local.lr": lr, "local.work": work}
    return make_method(resolve(Settings.from_mapping(given)))


def weights(method: Method, clients: list[int], losses: list[float], **given: Any) -> Float64Array:
    rows = np.eye(3)[: len(clients)]
    return decide(method, rows, losses=losses, clients=clients, **given).combination.weights


def test_three_rounds_by_hand() -> None:
    method = afl(lr=0.5)
    np.testing.assert_allclose(decide(method, GRADS, losses=LOSSES).step, [0.5, 0.25], rtol=1e-12)
    # lambda + 0.1 F = 0.7, 0.55, shifted by -0.125: 0.575, 0.425.
    np.testing.assert_allclose(decide(method, GRADS, losses=[20, 0]).step, [0.575, 0.2125], rtol=1e-12)
    # lambda + 0.1 F = 2.575, 0.425; the second falls out: 1, 0.
    np.testing.assert_allclose(decide(method, GRADS, losses=LOSSES).step, [1, 0], atol=1e-12)


def test_displacements_of_local_passes_are_rows_as_they_are_by_default() -> None:
    assert resolve(Settings.from_mapping({"method": "afl"})).work is SGD
    for work in ("auto", "sgd"):
        step = decide(afl(lr=0.5, work=work), GRADS, losses=LOSSES).step
        np.testing.assert_allclose(step, [1.0, 0.5], rtol=1e-12)


def test_starts_at_the_sample_shares_and_without_gamma_stays_there() -> None:
    method = afl(gamma=0.0)
    for losses in (LOSSES, [0.0, 9.0], LOSSES):
        solved = decide(method, GRADS, losses=losses, examples=[10, 30])
        np.testing.assert_allclose(solved.combination.weights, [0.25, 0.75], rtol=1e-12)


def test_equal_losses_leave_the_weights_alone() -> None:
    method = afl(gamma=3.0)
    for _ in range(5):
        solved = decide(method, GRADS, losses=[7, 7], examples=[10, 30])
        np.testing.assert_allclose(solved.combination.weights, [0.25, 0.75], rtol=1e-12)


def test_equal_gradients_are_taken_whole() -> None:
    method = afl()
    for losses in ([1.0, 2.0], [5.0, 0.0]):
        np.testing.assert_allclose(decide(method, np.array([[1.0, 2.0]] * 2), losses=losses).step, [1, 2], rtol=1e-12)


def test_being_asked_twice_in_a_round_moves_nothing() -> None:
    method = afl()
    assert isinstance(method, GramMethod)
    decide(method, GRADS, losses=LOSSES)
    batch = RoundBatch(GRADS @ GRADS.T, np.array(LOSSES), np.ones(2), np.full(2, 0.5), (0, 1), 1)
    for _ in range(2):
        np.testing.assert_array_equal(method.weights(batch).weights, [0.5, 0.5])
    np.testing.assert_allclose(decide(method, GRADS, losses=LOSSES).combination.weights, [0.575, 0.425], rtol=1e-12)


def test_the_weights_of_absent_clients_stay() -> None:
    method = afl(gamma=1.0)
    np.testing.assert_allclose(weights(method, [0, 1, 2], [0, 0, 0]), [1 / 3] * 3)
    # Present 1/3 and 1/3, renormalised 1/2 and 1/2; losses 0.5 and 0.1 move them to 0.7, 0.3 of their 2/3.
    np.testing.assert_allclose(weights(method, [0, 2], [0.5, 0.1]), [0.5, 0.5])
    np.testing.assert_allclose(weights(method, [0, 1, 2], [0, 0, 0]), [0.7 * 2 / 3, 1 / 3, 0.3 * 2 / 3], rtol=1e-12)


def test_clients_that_come_later_enter_with_their_share() -> None:
    method = afl(gamma=0.0)
    np.testing.assert_allclose(weights(method, [4, 7], [1, 1]), [0.5, 0.5])
    # Client 5 has a third of the samples seen; the others keep 2/3 of theirs.
    np.testing.assert_allclose(weights(method, [5, 7], [1, 1]), [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize("rounds", [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(3,), (1, 2), (0,)]])
def test_without_gamma_the_order_in_which_clients_are_met_does_not_matter(rounds: list[tuple[int, ...]]) -> None:
    samples = {0: 10, 1: 10, 2: 90, 3: 90}
    method = afl(gamma=0.0)
    for clients in rounds:
        weights(method, list(clients), [1.0] * len(clients), examples=[samples[client] for client in clients])
    again = afl(gamma=0.0)
    again.restore_state(method.export_state())
    for each in (method, again):
        np.testing.assert_allclose(weights(each, [0, 2], [1, 1], examples=[10, 90]), [0.1, 0.9], rtol=1e-12)
    np.testing.assert_allclose(weights(method, [4, 5, 7], [1, 1, 1]), [1 / 3] * 3, rtol=1e-12)


def test_a_round_of_clients_without_weight_goes_by_shares_and_says_so() -> None:
    method = afl(gamma=1.0)
    weights(method, [0, 1], [9, 0])
    np.testing.assert_allclose(weights(method, [0, 1], [9, 0]), [1, 0], atol=1e-12)
    solved = decide(method, np.eye(3)[:1], losses=[1], clients=[1])
    np.testing.assert_allclose(solved.combination.weights, [1])
    assert solved.combination.notes["restart"] == 1
    np.testing.assert_allclose(weights(method, [0, 1], [0, 0]), [1, 0], atol=1e-12)
    assert decide(method, np.eye(3)[:2], losses=[1, 1]).combination.notes["restart"] == 0


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_restored_game_goes_on_with_the_same_bits(rng: np.random.Generator, rounds: int) -> None:
    straight, restored = afl(), afl()
    draws = [
        (sorted(rng.choice(6, 3, replace=False).tolist()), rng.uniform(0, 2, 3).tolist()) for _ in range(rounds + 3)
    ]
    for clients, losses in draws[:rounds]:
        weights(straight, clients, losses)
    restored.restore_state({name: np.array(value) for name, value in straight.export_state().items()})
    for clients, losses in draws[rounds:]:
        assert np.array_equal(weights(straight, clients, losses), weights(restored, clients, losses))
