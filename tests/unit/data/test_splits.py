from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dqnfed_flwr.data import partitions
from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.splits import like_train, stratified
from dqnfed_flwr.errors import DataError

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


def test_a_client_whose_classes_are_not_tested_is_named() -> None:
    with pytest.raises(DataError, match=r"no test sample of their classes is left for the clients \[1\]"):
        like_train(np.array([0, 1]), [np.array([0]), np.array([1])], np.array([0, 0]), np.random.default_rng(0))


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


def test_a_single_sample_cannot_be_divided() -> None:
    with pytest.raises(DataError, match=r"a client has 1 sample\(s\), which cannot be divided; lower clients"):
        stratified(np.array([3]), 0.5, np.random.default_rng(0))


def test_no_class_is_tested_less_than_others_everywhere() -> None:
    labels = np.repeat(np.arange(10), 2)  # two of each: a tenth set apart is two samples of twenty
    rng = np.random.default_rng(0)
    tested = np.concatenate([labels[stratified(labels, 0.1, rng)[1]] for _ in range(500)])
    shares = np.bincount(tested, minlength=10) / len(tested)
    assert shares == pytest.approx(np.full(10, 0.1), abs=0.04)  # four standard deviations of a tenth of 1000
