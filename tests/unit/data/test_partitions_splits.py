from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dqnfed_flwr.data import partitions
from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.partitions import apportion, deal, fill_empty, like_train, stratified

LABELS = hnp.arrays(np.int64, st.integers(2, 60), elements=st.integers(0, 5))


def test_test_samples_have_the_class_mix_of_the_training_samples() -> None:
    y_train, y_test = np.arange(5000) % 10, np.arange(1000) % 10
    parts = partitions.dirichlet(y_train, 12, 0.3, 20, np.random.default_rng(1))

    tested = like_train(y_train, parts, y_test, np.random.default_rng(2))

    for train, test in zip(parts, tested, strict=True):
        exact = np.bincount(y_train[train], minlength=10) / 5
        assert (np.abs(np.bincount(y_test[test], minlength=10) - exact) < 1).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(tested)), np.arange(1000))


@given(seed=st.integers(0, 200))
def test_no_client_goes_without_a_test_sample(seed: int) -> None:
    y_train, y_test = np.arange(600) % 10, np.arange(100) % 10
    parts = partitions.dirichlet(y_train, 20, 0.2, 2, np.random.default_rng(seed))

    tested = like_train(y_train, parts, y_test, np.random.default_rng(seed))

    for train, test in zip(parts, tested, strict=True):
        assert len(test)
        assert set(y_test[test]) <= set(y_train[train])
    np.testing.assert_array_equal(np.sort(np.concatenate(tested)), np.arange(100))


def test_test_samples_of_classes_nobody_trains_on_are_left_out() -> None:
    (tested,) = like_train(np.array([0, 0]), [np.arange(2)], np.array([0, 1, 0]), np.random.default_rng(0))

    np.testing.assert_array_equal(tested, [0, 2])


def test_a_client_whose_classes_are_not_tested_has_no_test_sample() -> None:
    parts = [np.array([0]), np.array([1])]

    tested = like_train(np.array([0, 1]), parts, np.array([0, 0]), np.random.default_rng(0))

    assert [part.tolist() for part in tested] == [[0, 1], []]


@given(labels=LABELS, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_stratified_parts_keep_the_class_mix(labels: IntArray, fraction: float, seed: int) -> None:
    kept, apart = stratified(labels, fraction, np.random.default_rng(seed))

    np.testing.assert_array_equal(np.sort(np.concatenate([kept, apart])), np.arange(len(labels)))
    assert len(kept)
    assert len(apart)
    exact = fraction * np.bincount(labels, minlength=6)
    assert (np.abs(np.bincount(labels[apart], minlength=6) - exact) < 1 + 1e-9).all()
    assert abs(len(apart) - exact.sum()) < 1


def test_nothing_is_set_apart_for_fraction_zero() -> None:
    kept, apart = stratified(np.array([3]), 0.0, np.random.default_rng(0))

    assert (kept.tolist(), apart.tolist()) == ([0], [])


@pytest.mark.parametrize("samples", [0, 1])
def test_a_single_sample_is_kept(samples: int) -> None:
    kept, apart = stratified(np.full(samples, 3), 0.5, np.random.default_rng(0))

    assert (kept.tolist(), apart.tolist()) == ([0] * samples, [])


def test_no_class_is_tested_less_than_others_everywhere() -> None:
    labels = np.repeat(np.arange(10), 2)  # two of each: a tenth set apart is two samples of twenty
    rng = np.random.default_rng(0)
    tested = np.concatenate([labels[stratified(labels, 0.1, rng)[1]] for _ in range(500)])
    shares = np.bincount(tested, minlength=10) / len(tested)
    assert shares == pytest.approx(np.full(10, 0.1), abs=0.04)  # four standard deviations of a tenth of 1000


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
