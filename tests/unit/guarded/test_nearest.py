"""The nearest step to a strategy's own, against a general solver."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import LinearConstraint, minimize

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.guarded.wrapped import CHANGED, Nearest
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

K, D = 3, 5
values = st.integers(-8, 8).map(lambda n: n / 4)
rows_of_clients = arrays(np.float64, (K, D), elements=values)
references = arrays(np.float64, D, elements=values)
slacks = arrays(np.float64, K, elements=st.sampled_from([0.0, 0.0, 0.5, 2.0]))


def solved(
    grads: Float64Array, reference: Float64Array, slack: Float64Array, demand: float
) -> tuple[Combination, Float64Array]:
    held = RowSet(K + 1, D, torch.float64, references=1)
    for slot, row in enumerate([*grads, reference]):
        held.put(slot, row)
    rows = RoundRows(held, tuple(range(K)))
    thirds = np.full(K, 1 / 3)
    batch = RoundBatch(held.gram(rows.slots), np.ones(K), np.zeros(K), thirds, tuple(range(K)), 1, slack=slack)
    combination = Nearest(resolve(Settings()), demand).combine(batch, rows)
    return combination, np.asarray(combination.weights @ np.vstack([grads, reference]))


@settings(max_examples=60)
@given(rows_of_clients, references, slacks)
def test_without_a_demand_it_is_the_nearest_step_that_meets_the_bounds(
    grads: Float64Array, reference: Float64Array, slack: Float64Array
) -> None:
    combination, step = solved(grads, reference, slack, 0.0)
    assert (grads @ step >= -slack - 1e-6).all()

    def distance(u: Float64Array) -> float:
        return float(((u - reference) ** 2).sum())

    oracle = minimize(
        distance,
        np.zeros(D),  # always allowed
        constraints=[LinearConstraint(grads, -slack, np.inf)],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assume(oracle.success)
    assert distance(step) <= oracle.fun + 1e-5
    if not combination.notes[CHANGED]:
        assert np.array_equal(step, reference)


@given(rows_of_clients, references, slacks, st.sampled_from([0.0, 0.5, 1.0]))
def test_a_step_that_meets_the_bounds_is_not_changed_whatever_is_demanded(
    grads: Float64Array, reference: Float64Array, slack: Float64Array, demand: float
) -> None:
    if not (grads @ reference >= -slack).all():
        return
    combination, step = solved(grads, reference, slack, demand)
    assert combination.notes[CHANGED] == 0
    assert combination.weights.tolist() == [0.0] * K + [1.0]
    assert np.array_equal(step, reference)


def test_a_demand_has_everybody_above_the_entitlement_fall_by_hand() -> None:
    grads = np.array([[1.0, 0.0, 0, 0, 0], [-1.0, 1.0, 0, 0, 0], [0.0, 0.0, 1.0, 0, 0]])
    reference = np.array([2.0, 0.0, 4.0, 0, 0])  # falls: 2, -2, 4
    _, bare = solved(grads, reference, np.zeros(3), 0.0)
    assert np.allclose(bare, [1.0, 1.0, 4.0, 0, 0])  # client 1 neither falls nor rises
    _, step = solved(grads, reference, np.zeros(3), 1.0)
    # mean fall (2 + 0 + 4) / 3 = 2; |g|^2 = 1, 2, 1, of mean 4 / 3: demands 1.5, 3, 1.5
    assert (grads @ step >= np.array([1.5, 3.0, 1.5]) - 1e-9).all()
    assert np.allclose(grads @ step, [1.5, 3.0, 4.0])
    _, served = solved(grads, reference, np.array([0.0, 9.0, 0.0]), 1.0)
    assert np.array_equal(served, reference)  # client 1 may rise by 9
