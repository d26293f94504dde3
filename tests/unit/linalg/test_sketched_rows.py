from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from dqnfed_flwr.errors import RunError, SumError
from dqnfed_flwr.linalg.sketched_rows import SketchedRows
from dqnfed_flwr.types import Float64Array

GRADS = np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)
LAST = torch.from_numpy(np.random.default_rng(1).standard_normal(30).astype(np.float32))
ALONG = dict(enumerate((GRADS @ LAST.numpy()).tolist()))


class Asked:
    """Gives true sums, and notes what it was asked for."""

    def __init__(self, spoilt: float = 0.0) -> None:
        self.weights: list[dict[int, float]] = []
        self._spoilt = spoilt

    def __call__(self, weights: Mapping[int, float], longest: float) -> Tensor:
        self.weights.append(dict(weights))
        total = np.array([weights.get(slot, 0.0) for slot in range(4)]) @ GRADS
        assert np.linalg.norm(total) <= longest * (1 + 1e-6)
        return torch.from_numpy((total + self._spoilt).astype(np.float32))


def held(asked: Asked | None = None, slots: tuple[int, ...] = (0, 1, 2, 3)) -> SketchedRows:
    """Rows of which each is its own sketch, and the last step in the slot behind them."""
    rows = SketchedRows(5, 30, 1, model=LAST, slack=1e-4)
    for slot in slots:
        rows.put(slot, GRADS[slot].astype(np.float64))
    if asked is not None:
        rows.ask_by(asked)
    return rows


def dense(weights: Float64Array) -> Float64Array:
    return np.asarray(weights @ np.vstack([GRADS, LAST.numpy()]), np.float64)


def test_products_with_a_known_vector_are_what_clients_say() -> None:
    rows = held()
    rows.know(4, LAST, ALONG)
    whole = np.vstack([GRADS, LAST.numpy()]).astype(np.float64)
    np.testing.assert_allclose(rows.gram(range(5)), whole @ whole.T, rtol=1e-5, atol=1e-5)
    rows.scale(2, 0.5)
    whole[2] *= 0.5
    np.testing.assert_allclose(rows.gram(range(5)), whole @ whole.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("when", ["before", "after"])
def test_sum_is_asked_for_once_by_weights_of_the_rows_as_clients_have_them(when: str) -> None:
    rows = held(asked := Asked())
    for step in ("scale", "know") if when == "before" else ("know", "scale"):
        if step == "scale":
            rows.scale(1, 0.25)
        else:
            rows.know(4, LAST, ALONG)
    weights = np.array([0.1, 0.4, 0.0, 0.3, 0.9])
    total = rows.combine(weights)
    np.testing.assert_allclose(total, dense(weights * [1, 0.25, 1, 1, 1]), rtol=1e-5, atol=1e-5)
    assert asked.weights == [{0: 0.1, 1: 0.1, 2: 0.0, 3: 0.3}]
    square, slopes = rows.along(weights, total, (0, 1, 2, 3))
    assert square == pytest.approx(float(total @ total), rel=1e-5)
    np.testing.assert_allclose(slopes, (GRADS @ total.numpy()) * [1, 0.25, 1, 1], rtol=1e-4, atol=1e-4)


def test_step_of_known_vectors_asks_nobody() -> None:
    rows = held(asked := Asked())
    rows.know(4, LAST, ALONG)
    np.testing.assert_array_equal(rows.combine(np.array([0, 0, 0, 0, 2.0])), 2 * LAST)
    np.testing.assert_array_equal(rows.combine(np.zeros(5)), torch.zeros(30))
    assert asked.weights == []


def test_sum_of_another_length_than_the_sketches_say_is_none() -> None:
    with pytest.raises(SumError, match="what one of the clients gave is not its row"):
        held(Asked(spoilt=1.0)).combine(np.array([0.25, 0.25, 0.25, 0.25, 0.0]))


def test_values_of_rows_are_refused_and_sums_outside_of_a_step() -> None:
    rows = held()
    for read in (lambda: rows.copies([0]), lambda: rows.columns([0], slice(0, 3))):
        with pytest.raises(RunError, match=r"privacy\.mode"):
            read()
    with pytest.raises(RunError, match="outside of the step"):
        rows.combine(np.array([1.0, 0, 0, 0, 0]))


def test_next_round_knows_nothing_of_this_one() -> None:
    rows = held(Asked())
    rows.know(4, LAST, ALONG)
    rows.scale(0, 0.1)
    rows.clear()
    assert rows.filled == ()
    rows.put(0, GRADS[0].astype(np.float64))
    assert rows.squared_norm(0) == pytest.approx(float(GRADS[0] @ GRADS[0]), rel=1e-5)
    with pytest.raises(RunError, match="outside of the step"):
        rows.combine(np.array([1.0, 0, 0, 0, 0]))
