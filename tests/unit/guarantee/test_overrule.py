"""Certificates, whose rows are set aside, and what is remembered of clients."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from dqnfed_flwr.guarantee.overrule import CERTIFICATE, MUTED, Standing, certificate, opposed, reach
from dqnfed_flwr.record_codec import unpack
from dqnfed_flwr.types import Float64Array
from tests.helpers.records import packed


def gram_of(rows: Float64Array) -> Float64Array:
    return np.asarray(rows @ rows.T)


def alike(clients: int, seed: int = 0, spread: float = 0.5) -> Float64Array:
    """Rows around one direction, of very different lengths."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal(50) + spread * rng.standard_normal((clients, 50))
    return np.asarray(rows * 10.0 ** rng.uniform(-3, 3, (clients, 1)))


def test_two_opposite_rows_are_certified_with_half_the_weight_each() -> None:
    found = certificate(gram_of(np.array([[1.0, 0.0], [-1e6, 0.0], [0.3, 1.0]])), (4, 7, 9))
    assert found.stationary
    assert found.weights == pytest.approx({4: 0.5, 7: 0.5})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_the_distance_is_that_of_a_general_solver(seed: int, clients: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((clients, 8))
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def length(weights: Float64Array) -> float:
        return float(np.sum((weights @ units) ** 2))

    start = np.full(clients, 1 / clients)
    simplex = LinearConstraint(np.ones(clients), 1, 1)
    best = minimize(length, start, bounds=[(0, 1)] * clients, constraints=[simplex], tol=1e-14)
    assert certificate(gram_of(rows), range(clients)).distance == pytest.approx(math.sqrt(best.fun), abs=2e-5)


def test_rows_of_zeros_have_no_direction() -> None:
    assert certificate(np.zeros((2, 2)), (0, 1)).stationary
    found = certificate(gram_of(np.array([[0.0, 0.0], [1.0, 0.0]])), (0, 1))
    assert found.weights == {1: pytest.approx(1.0)}


def test_nothing_known_is_no_proof() -> None:
    assert not certificate(np.zeros((0, 0)), ()).stationary


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 9), st.floats(1e-6, 1e6))
def test_whom_it_sets_aside_does_not_depend_on_lengths(seed: int, clients: int, factor: float) -> None:
    rows = np.random.default_rng(seed).standard_normal((clients, 5))
    longer = rows.copy()
    longer[0] *= factor
    everybody = range(clients)
    assert opposed(gram_of(rows), everybody, 1) == opposed(gram_of(longer), everybody, 1)


def test_rows_that_agree_stay() -> None:
    assert opposed(gram_of(alike(8)), range(8), 3) == []


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_copies_that_cancel_the_sum_of_the_others_go(liars: int) -> None:
    rows = alike(7, spread=2.0)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    every = np.concatenate([rows, np.tile(-units.sum(0), (liars, 1))])
    assert reach(gram_of(every), range(7 + liars), ()) < CERTIFICATE
    assert set(opposed(gram_of(every), range(7 + liars), liars)) == set(range(7, 7 + liars))


def test_rows_that_each_cancel_another_go_together() -> None:
    rows = alike(5)
    every = np.concatenate([rows, -rows[:2]])
    assert set(opposed(gram_of(every), range(7), 2)) == {5, 6}


def test_no_more_than_allowed_go_and_none_in_vain() -> None:
    rows = alike(5)
    every = np.concatenate([rows, -rows[:2]])
    assert opposed(gram_of(every), range(7), 1) == []
    assert opposed(gram_of(every), range(7), 0) == []


def test_who_was_set_aside_before_is_again_for_a_smaller_gain() -> None:
    turn = np.deg2rad(75)
    rows = np.array([[1.0, 0.0], [np.cos(turn), np.sin(turn)], [np.cos(turn), -np.sin(turn)]])
    gram = gram_of(np.concatenate([rows, rows[:1]]))
    gain = reach(gram, range(4), [1]) / reach(gram, range(4), [])
    assert 1.5 < gain < 4
    assert opposed(gram, range(4), 1) == []
    assert opposed(gram, range(4), 1, before=[1]) == [1]


def test_who_is_overruled_has_a_claim_until_it_took_part_again() -> None:
    standing = Standing()
    standing.took_part([0, 1, 2], [1], [1], 1)
    assert standing.claims == {1}
    standing.took_part([0, 2], [], [], 2)
    assert standing.claims == {1}
    standing.took_part([0, 1, 2], [], [], 3)
    assert standing.claims == set()


def test_who_contradicted_itself_has_no_claim_and_is_silent_for_longer_each_time() -> None:
    standing = Standing()
    standing.catch(1, 5)
    standing.catch(1, 5)
    assert standing.caught == {1: 1}
    assert [standing.is_muted(1, n) for n in (5, 4 + MUTED, 5 + MUTED)] == [True, True, False]
    standing.took_part([1], [1], [], 20)
    assert standing.claims == set()
    assert standing.caught == {1: 2}
    assert standing.is_muted(1, 20 + 2 * MUTED)
    assert not standing.is_muted(1, 21 + 2 * MUTED)


def test_rows_leave_the_mean_once_they_were_set_aside_twice_in_a_row() -> None:
    standing = Standing()
    assert standing.set_apart([0, 1], [1], [], 1) == frozenset()
    assert not standing.is_apart(1, 1)
    assert standing.set_apart([0, 1], [1], [], 2) == {1}
    assert standing.is_apart(1, 5)
    assert standing.set_apart([0, 1], [1], [], 3) == frozenset()
    assert standing.set_apart([0, 1], [], [0], 4) == {0}


def test_a_checkpoint_keeps_all_of_it() -> None:
    standing = Standing(claims={3}, said={2: (7, 0.5)}, entitlement=0.25)
    standing.catch(1, 4)
    standing.set_apart([0, 1, 2], [2], [1], 4)
    standing.took_part([0, 2], [0], [2], 4)
    assert unpack(Standing, json.loads(json.dumps(packed(standing)[0]))) == standing


def test_a_checkpoint_keeps_the_strict_form() -> None:
    standing = Standing(entitlement=-math.inf)
    assert unpack(Standing, json.loads(json.dumps(packed(standing)[0]))) == standing
