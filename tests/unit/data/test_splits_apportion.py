from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.splits import apportion, deal, fill_empty

HELD = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=st.integers(0, 9)
)


def as_shares(held: IntArray) -> NDArray[np.float64]:
    return np.asarray(held / np.maximum(held.sum(axis=0), 1), dtype=np.float64)


@given(held=HELD, data=st.data())
def test_columns_keep_their_sum_and_entries_stay_within_one(held: IntArray, data: st.DataObject) -> None:
    totals = data.draw(hnp.arrays(np.int64, held.shape[1], elements=st.integers(0, 50)))
    shares = as_shares(held)

    counts = apportion(totals, shares)

    np.testing.assert_array_equal(counts.sum(axis=0), np.where(held.sum(axis=0) > 0, totals, 0))
    assert (np.abs(counts - shares * totals) < 1).all()
    assert (counts[held == 0] == 0).all()


@given(held=HELD)
def test_whole_quotas_are_kept(held: IntArray) -> None:
    np.testing.assert_array_equal(apportion(held.sum(axis=0), as_shares(held)), held)


@given(clients=st.integers(1, 30), totals=hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 40)))
def test_equal_shares_give_rows_that_differ_by_at_most_one(clients: int, totals: IntArray) -> None:
    counts = apportion(totals, np.full((clients, len(totals)), 1 / clients))

    assert np.ptp(counts.sum(axis=1)) <= 1


def test_units_left_over_go_to_those_owed_most() -> None:
    # quotas 0.6 and 0.4 in each of three classes: the second client is owed 0.8 by the second class
    counts = apportion(np.array([1, 1, 1]), np.array([[0.6] * 3, [0.4] * 3]))

    np.testing.assert_array_equal(counts, [[1, 0, 1], [0, 1, 0]])


def test_an_empty_row_takes_one_of_its_main_class_from_who_has_most() -> None:
    shares = np.array([[0.0, 0.1], [0.5, 0.3], [0.5, 0.6]])

    filled = fill_empty(np.array([[0, 0], [2, 1], [2, 3]]), shares)

    np.testing.assert_array_equal(filled, [[0, 1], [2, 1], [2, 2]])


def test_a_last_sample_is_not_taken() -> None:
    counts = np.array([[0], [1]])

    np.testing.assert_array_equal(fill_empty(counts, np.array([[0.4], [0.6]])), counts)


@given(held=HELD, left=st.integers(0, 3), seed=st.integers(0, 5))
def test_deals_the_counts_asked_for(held: IntArray, left: int, seed: int) -> None:
    clients, classes = held.shape
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), held.sum(axis=0) + left))

    parts = deal(labels, held, rng)

    assert len(parts) == clients
    np.testing.assert_array_equal([np.bincount(labels[part], minlength=classes) for part in parts], held)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) == len(labels) - left * classes
    assert all((np.diff(part) > 0).all() for part in parts)
