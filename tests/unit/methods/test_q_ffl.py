"""q-FFL on 1/2 |theta - (-2, 0)|^2 and 1/2 |theta - (0, -1)|^2 at 0: losses 2 and 1/2, gradients (2, 0) and (0, 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.rounds import decide

GRADS = np.array([[2.0, 0.0], [0.0, 1.0]])
LOSSES = [2.0, 0.5]


def q_ffl(q: float, work: str = "gradient", **local: Any) -> Method:
    given = {f"local.{name}": value for name, value in {"lr": 0.5, **local}.items()}
    return make_method(resolve(Settings.from_mapping({"method": "q-ffl", "q-ffl.q": q, "local.work": work, **given})))


@pytest.mark.parametrize(
    ("q", "step"),
    [
        # L = 2. Delta = 2 (2, 0), 1/2 (0, 1); h = 4 + 2 * 2 = 8, 1 + 2 / 2 = 2.
        (1.0, [4 / 10, 0.5 / 10]),
        # Delta = 4 (2, 0), 1/4 (0, 1); h = 2 * 2 * 4 + 2 * 4 = 24, 2 * 1/2 * 1 + 2 * 1/4 = 3/2.
        (2.0, [8 / 25.5, 0.25 / 25.5]),
    ],
)
def test_by_hand(q: float, step: list[float]) -> None:
    np.testing.assert_allclose(decide(q_ffl(q), GRADS, losses=LOSSES).step, step, rtol=1e-13)


def test_displacements_of_one_local_step_give_the_step_of_the_gradients() -> None:
    moved = decide(q_ffl(1.0, "sgd"), 0.5 * GRADS, losses=LOSSES)
    np.testing.assert_allclose(moved.step, [0.4, 0.05], rtol=1e-13)


def test_the_lipschitz_estimate_follows_a_decaying_rate() -> None:
    # In round 3 the rate is 0.5 / 4, L = 8; h = 4 + 8 * 2 = 20, 1 + 8 / 2 = 5.
    moved = decide(q_ffl(1.0, "sgd", decay=0.5), 0.125 * GRADS, losses=LOSSES, number=3)
    np.testing.assert_allclose(moved.step, [4 / 25, 0.5 / 25], rtol=1e-13)
    still = decide(q_ffl(1.0, "gradient", decay=0.5), GRADS, losses=LOSSES, number=3)
    np.testing.assert_allclose(still.step, [0.4, 0.05], rtol=1e-13)


@pytest.mark.parametrize("losses", [LOSSES, [0.0, 0.0], [1e-300, 1e300]])
def test_without_q_it_is_the_plain_mean_whatever_losses_and_shares(losses: list[float]) -> None:
    step = decide(q_ffl(0.0, "sgd"), GRADS, losses=losses, examples=[1, 9]).step
    np.testing.assert_allclose(step, GRADS.mean(axis=0), rtol=1e-12)


def test_equal_clients_shorten_their_step_alike() -> None:
    # Delta / h = F^q g / (q F^(q-1) |g|^2 + L F^q) = g / (q |g|^2 / F + L) = g / (3 * 5 / 4 + 2).
    step = decide(q_ffl(3.0), np.array([[1.0, 2.0]] * 3), losses=[4.0] * 3).step
    np.testing.assert_allclose(step, np.array([1, 2]) / 5.75, rtol=1e-12)


@pytest.mark.parametrize("q", [0.1, 1.0, 10.0])
def test_losses_of_zero_and_of_any_size_spoil_nothing(q: float) -> None:
    for losses in ([0.0, 0.0], [0.0, 3.0], [1e-12, 1e6], [1e30, 1e30]):
        solved = decide(q_ffl(q), GRADS, losses=losses)
        assert solved.step.isfinite().all()
        assert np.isfinite(list(solved.combination.notes.values())).all()


def test_a_large_q_follows_the_client_of_the_largest_loss() -> None:
    weights = decide(q_ffl(60.0), GRADS, losses=LOSSES).combination.weights
    assert weights[1] < 1e-30 < weights[0]
