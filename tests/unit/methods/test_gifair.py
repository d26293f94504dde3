from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.rounds import decide

ROWS = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])


def gifair(strength: float = 1.0, **given: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": "gifair", "gifair.strength": strength, **given})))


@pytest.mark.parametrize(
    ("losses", "weights"),
    [
        # Shares 0.5, 0.3, 0.2: lambda = 0.2 / 2. Scores 2, -2, 0.
        ([3.0, 1.0, 2.0], [0.7, 0.1, 0.2]),
        # Two share the ranks 1 and 2: scores -1, -1, 2.
        ([1.0, 1.0, 4.0], [0.4, 0.2, 0.4]),
        ([2.0, 2.0, 2.0], [0.5, 0.3, 0.2]),
    ],
)
def test_by_hand(losses: list[float], weights: list[float]) -> None:
    solved = decide(gifair(), ROWS, losses=losses, examples=[50, 30, 20])
    np.testing.assert_allclose(solved.combination.weights, weights, atol=1e-12)
    np.testing.assert_allclose(solved.step, np.array(weights) @ ROWS, atol=1e-12)
    assert solved.combination.notes["lambda"] == pytest.approx(0.1)


def test_gradients_are_multiplied_by_the_rate() -> None:
    method = gifair(0.5, **{"local.work": "gradient", "local.lr": 0.5})  # lambda = 0.05
    step = decide(method, ROWS, losses=[3, 1, 2], examples=[50, 30, 20]).step
    np.testing.assert_allclose(step, [0.5 * 0.6, 0.5 * 0.2 * 2, 0.5 * 0.2 * 3], rtol=1e-12)


def test_without_strength_it_is_fedavg() -> None:
    solved = decide(gifair(0.0), ROWS, losses=[3, 1, 2], examples=[50, 30, 20])
    np.testing.assert_allclose(solved.combination.weights, [0.5, 0.3, 0.2], rtol=1e-12)


@given(
    losses=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    data=st.data(),
    strength=st.floats(0, 1),
)
def test_weights_are_a_convex_combination_that_knows_no_order(
    losses: list[int], data: st.DataObject, strength: float
) -> None:
    count = len(losses)
    examples = np.array(data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count)))
    order = np.array(data.draw(st.permutations(range(count))))
    values, rows = np.array(losses, np.float64), np.eye(count)
    weights = decide(gifair(strength), rows, losses=values, examples=list(examples)).combination.weights
    turned = decide(gifair(strength), rows, losses=values[order], examples=list(examples[order])).combination.weights
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (weights >= -1e-15).all()
    np.testing.assert_allclose(turned, weights[order], rtol=1e-12, atol=1e-15)
    for a in range(count):
        for b in range(count):
            if losses[a] == losses[b] and examples[a] == examples[b]:
                assert weights[a] == pytest.approx(weights[b], abs=1e-15)


def test_equal_gradients_are_taken_whole() -> None:
    step = decide(gifair(), np.array([[1.0, 2.0]] * 3), losses=[1, 2, 3]).step
    np.testing.assert_allclose(step, [1, 2], rtol=1e-12)
