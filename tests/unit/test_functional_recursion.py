"""The printed recursion: by hand, and against Theorem 4.1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.errors import DQNFedError, ShapeError
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import random_set


def test_two_clients_by_hand() -> None:
    # g~_1 = (1,0), a = 1, g~_2 = (0,1)/(3-1): squares 1 and 1/4, eta = 1 + 4, step = g~_1 + 4 g~_2
    step, eta = newton_rate_step(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 3.0]))
    np.testing.assert_array_equal(step, [1.0, 2.0])
    assert eta == 5.0


@given(st.integers(0, 2**32 - 1), st.integers(1, 10))
def test_every_client_falls_at_its_rate(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    grads, rates = random_set(rng, clients, 40), rng.uniform(0.5, 1.0, clients)
    step, eta = newton_rate_step(grads, rates)
    np.testing.assert_allclose(grads @ step, rates, rtol=1e-12)
    assert eta == pytest.approx(float(step @ step), rel=1e-12)


def test_float32_stays_float32() -> None:
    rng = np.random.default_rng(0)
    grads, rates = random_set(rng, 5, 50).astype(np.float32), rng.uniform(0.5, 1.0, 5)
    step, _ = newton_rate_step(grads, rates)
    assert step.dtype == np.float32
    np.testing.assert_allclose(step, newton_rate_step(grads.astype(np.float64), rates)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("grads", "rates"),
    [([[1.0, 0.0], [1.0, 1.0]], [1.0, 1.0]), ([[1.0, 0.0], [2.0, 0.0]], [1.0, 1.0])],
    ids=["zero denominator", "dependent gradients"],
)
def test_what_the_paper_does_not_treat_is_refused(grads: list[list[float]], rates: list[float]) -> None:
    with pytest.raises(DQNFedError, match="two_sided_weights"):
        newton_rate_step(np.array(grads), np.array(rates))


@pytest.mark.parametrize("grads", [np.ones(3), np.ones((2, 3), dtype=np.float16), np.ones((0, 3))])
def test_bad_gradients_are_refused(grads: Float64Array) -> None:
    with pytest.raises(ShapeError, match="gradients"):
        newton_rate_step(grads, np.ones(len(grads)))
