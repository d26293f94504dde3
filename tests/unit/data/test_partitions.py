from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from dqnfed_flwr.data import partitions
from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.partitions import apportion, deal, fill_empty, like_train, stratified
from dqnfed_flwr.errors import DataError

CLASSES = 10
RULES: dict[str, Callable[[IntArray, Generator], list[IntArray]]] = {
    "iid": lambda labels, rng: partitions.iid(labels, 7, rng),
    "shards": lambda labels, rng: partitions.sort_by_class(labels, 7, 3, rng),
    "dirichlet": lambda labels, rng: partitions.dirichlet(labels, 7, 0.5, 2, rng),
    "pathological": lambda labels, rng: partitions.pathological(labels, 7, 4, rng),
    "one-class": lambda labels, rng: partitions.one_class(labels, CLASSES, CLASSES),
}


def make_labels(samples: int, seed: int) -> IntArray:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.arange(samples) % CLASSES)


def class_counts(labels: IntArray, parts: list[IntArray]) -> NDArray[np.int64]:
    return np.stack([np.bincount(labels[part], minlength=CLASSES) for part in parts])


@pytest.mark.parametrize("rule", RULES)
@given(samples=st.integers(150, 400), seed=st.integers(0, 100))
def test_every_sample_is_dealt_out_exactly_once(rule: str, samples: int, seed: int) -> None:
    parts = RULES[rule](make_labels(samples, seed), np.random.default_rng(seed))

    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_generator_deals_the_same_parts(rule: str) -> None:
    labels = make_labels(300, 0)
    first, again = (RULES[rule](labels, np.random.default_rng(3)) for _ in range(2))

    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"one-class"}))
def test_another_seed_deals_other_parts(rule: str) -> None:
    labels = make_labels(300, 0)
    first, other = (RULES[rule](labels, np.random.default_rng(seed)) for seed in (3, 4))

    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_parts_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in partitions.iid(make_labels(103, 0), 10, np.random.default_rng(0))]

    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_shards_are_runs_of_the_samples_sorted_by_class() -> None:
    labels, clients, shards, size = make_labels(400, 1), 10, 4, 10
    place = np.empty(400, dtype=np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(400)

    parts = partitions.sort_by_class(labels, clients, shards, np.random.default_rng(0))

    for part in parts:
        runs = np.sort(place[part]).reshape(shards, size)
        np.testing.assert_array_equal(runs[:, 0] % size, 0)
        np.testing.assert_array_equal(runs, runs[:, :1] + np.arange(size))


def test_dirichlet_shares_follow_the_distribution() -> None:
    clients, alpha, classes, each = 6, 0.8, 300, 1000
    labels = np.repeat(np.arange(classes), each)

    parts = partitions.dirichlet(labels, clients, alpha, 2, np.random.default_rng(0))

    for part in parts[:2]:
        shares = np.bincount(labels[part], minlength=classes) / each
        assert stats.kstest(shares, stats.beta(alpha, (clients - 1) * alpha).cdf).pvalue > 0.01


def test_dirichlet_draws_until_every_client_has_enough() -> None:
    labels = make_labels(2000, 0)
    sizes = [
        [len(part) for part in partitions.dirichlet(labels, 10, 0.1, fewest, np.random.default_rng(0))]
        for fewest in (2, 40)
    ]

    assert min(sizes[0]) < 40 <= min(sizes[1])


def test_dirichlet_gives_up_and_says_what_to_change() -> None:
    labels = np.zeros(1000, dtype=np.int64)

    with pytest.raises(
        DataError, match=r"split.alpha 0.01 gave some of 10 clients fewer than split.min-samples 50.*rai"
    ):
        partitions.dirichlet(labels, 10, 0.01, 50, np.random.default_rng(0))


@given(clients=st.integers(1, 30), classes=st.integers(1, CLASSES), seed=st.integers(0, 50))
def test_pathological_clients_hold_as_many_classes_as_asked(clients: int, classes: int, seed: int) -> None:
    labels = make_labels(400, 0)

    counts = class_counts(labels, partitions.pathological(labels, clients, classes, np.random.default_rng(seed)))

    assert ((counts > 0).sum(axis=1) == classes).all()
    holders = (counts > 0).sum(axis=0)
    assert np.ptp(holders) <= 1
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T if column.any())
    np.testing.assert_array_equal(counts.sum(axis=0), np.where(holders > 0, 40, 0))


def test_one_class_clients_hold_the_class_of_their_number() -> None:
    labels = make_labels(200, 0)

    counts = class_counts(labels, partitions.one_class(labels, CLASSES, CLASSES))

    np.testing.assert_array_equal(counts, 20 * np.eye(CLASSES, dtype=np.int64))


@pytest.mark.parametrize(("clients", "merge", "held"), [(3, (), 3), (9, (), 9), (4, (1, 2, 2, 2), 7)])
def test_classes_that_nobody_would_hold_are_refused(clients: int, merge: tuple[int, ...], held: int) -> None:
    message = rf"found {clients} clients and 10 classes, of which {held} are asked for; set clients to 10, .*"

    with pytest.raises(DataError, match=message + r"split\.only-classes, .*split\.merge, numbers that add up to 10"):
        partitions.one_class(make_labels(100, 0), clients, CLASSES, merge)


@pytest.mark.parametrize(("clients", "expected"), [(3, [[2, 3], [5, 8], [9]]), (5, [[2], [3], [5], [8], [9]])])
def test_groups_stay_whole(clients: int, expected: list[list[int]]) -> None:
    owners = partitions.group_owners(np.array([9, 2, 2, 5, 3, 8, 9]), clients)

    assert [owned.tolist() for owned in owners] == expected


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (lambda rng: partitions.iid(np.arange(3), 4, rng), "4 clients need 4 samples, found 3"),
        (
            lambda rng: partitions.sort_by_class(np.arange(9), 5, 2, rng),
            "5 clients x 2 shards need 10 samples, found 9",
        ),
        (
            lambda rng: partitions.dirichlet(np.arange(9), 5, 1.0, 2, rng),
            "split.min-samples 2 need 10 samples, found 9",
        ),
        (lambda rng: partitions.pathological(np.arange(3), 2, 4, rng), "4 classes a client; the data have 3"),
        (lambda rng: partitions.pathological(np.arange(3), 4, 1, rng), "has 1 samples for 2 clients"),
        (lambda rng: partitions.one_class(np.arange(3), 2, 3, (1, 2, 3)), "found 1,2,3 for 2 clients; give one number"),
        (lambda rng: partitions.one_class(np.arange(3), 2, 3, (0, 3)), "give one number above 0 a client"),
        (lambda rng: partitions.one_class(np.arange(3), 2, 3, (1, 3)), "3 classes, of which 4 are asked for"),
        (lambda rng: partitions.one_class(np.array([0, 2]), 3, 3), "classes [1] have no sample"),
        (lambda rng: partitions.group_owners(np.array([1, 1]), 2), "2 clients asked for, but the data have 1 groups"),
    ],
)
def test_impossible_deals_are_refused(deal: Callable[[Generator], object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        deal(np.random.default_rng(0))

    assert message in str(caught.value)


def test_one_class_merges_classes_in_their_order() -> None:
    labels = make_labels(100, 0)

    parts = partitions.one_class(labels, 5, CLASSES, (1, 2, 2, 2, 3))

    assert [sorted(set(labels[part].tolist())) for part in parts] == [[0], [1, 2], [3, 4], [5, 6], [7, 8, 9]]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))
    assert all((np.diff(part) > 0).all() for part in parts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 9), st.integers(0, 5), st.integers(0, 9))
def test_chosen_groups_are_large_enough_and_as_many_as_asked_for(
    sizes: list[int], least: int, wanted: int, seed: int
) -> None:
    large = [group for group, size in enumerate(sizes) if size >= max(least, 1)]
    counts, rng = np.array(sizes), np.random.default_rng(seed)
    if not large or len(large) < wanted:
        with pytest.raises(DataError, match=f"{len(large)} of .* have split.min-group-samples {least}"):
            partitions.choose_groups(counts, least, wanted, rng)
        return

    chosen = partitions.choose_groups(counts, least, wanted, rng).tolist()

    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(large)
    assert len(chosen) == (wanted or len(large))


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
