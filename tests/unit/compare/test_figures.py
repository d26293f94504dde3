from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.figures import (
    Interval,
    curve,
    hierarchical_bootstrap,
    mean_accuracy,
    mean_difference,
    paired,
    ranks,
    shifts,
    summaries,
    summarise,
    worst10_difference,
)
from dqnfed_flwr.errors import DataError
from tests.helpers.comparisons import make_record

OURS, THEIRS = Entry("dqn-fed"), Entry("fedavg")


def test_mean_and_standard_deviation_over_seeds() -> None:
    assert summarise([1.0, 3.0]) == pytest.approx((2.0, math.sqrt(2)))  # deviations 1 and 1, over n - 1 = 1
    assert summarise([1.0, math.nan, 3.0]).mean == 2.0
    assert math.isnan(summarise([1.0]).std)
    assert math.isnan(summarise([]).mean)


def test_summaries_leave_failed_runs_out() -> None:
    records = [make_record(OURS, 0, (0.5, 0.7)), make_record(OURS, 1, reason="lost"), make_record(OURS, 2, (0.7, 0.9))]
    found = summaries(records)
    assert found["mean"] == pytest.approx((0.7, math.sqrt(0.02)))
    assert found["worst"].mean == pytest.approx(0.6)
    assert found["rounds"].mean == 3
    assert found["seconds_per_round"].mean == pytest.approx(0.5)
    assert found["exchanges_per_round"].mean == 1
    assert summaries(records[1:2]) == {}


def test_ranks_mark_the_best_and_the_second_best_with_ties() -> None:
    assert ranks([1.0, 3.0, 2.0, 3.0], higher=True, digits=2) == [0, 1, 2, 1]
    assert ranks([1.0, 3.0, 2.0, 3.0], higher=False, digits=2) == [1, 0, 2, 0]
    assert ranks([1.001, 1.002, 0.5, math.nan], higher=True, digits=2) == [1, 1, 2, 0]
    assert ranks([1.001, 1.002], higher=True, digits=2) == [0, 0]
    assert ranks([2.0], higher=True, digits=2) == [0]


def test_pairs_are_of_one_seed_and_one_client() -> None:
    ours = [make_record(OURS, 0, (0.1, 0.2, 0.3)), make_record(OURS, 1, (0.4, 0.5)), make_record(OURS, 2, reason="no")]
    theirs = [make_record(THEIRS, seed, (0.6, 0.7)) for seed in (2, 1, 0)]
    found = paired(ours, theirs)
    assert [(a.tolist(), b.tolist()) for a, b in found] == [([0.1, 0.2], [0.6, 0.7]), ([0.4, 0.5], [0.6, 0.7])]


def test_worst_ten_percent_are_those_of_each_method_itself() -> None:
    ours, theirs = np.linspace(0.5, 0.88, 20), np.linspace(0.88, 0.5, 20)  # two clients are 10 % of 20
    assert worst10_difference(ours, theirs) == pytest.approx(0.0)
    assert worst10_difference(ours + 0.1, theirs) == pytest.approx(0.1)
    assert worst10_difference(np.array([0.2, 0.9]), np.array([0.5, 0.4])) == pytest.approx(-0.2)


def test_bootstrap_of_a_constant_difference_is_that_difference() -> None:
    base = np.array([0.1, 0.5, 0.6])
    pairs = [(base + 0.25, base), (base[:2] + 0.25, base[:2])]
    for difference in (mean_difference, worst10_difference):
        assert hierarchical_bootstrap(pairs, difference) == pytest.approx((0.25, 0.25, 0.25))
    assert hierarchical_bootstrap(pairs, mean_difference).excludes_zero


def test_bootstrap_by_hand() -> None:
    # Clients alike within a seed, differences -0.5, 0, 0.5: all three seeds drawn are the lowest with
    # probability 1/27 = 0.037, above the 0.025 that is cut off at either side.
    pairs = [(np.full(4, value), np.full(4, 0.5)) for value in (0.0, 0.5, 1.0)]
    assert hierarchical_bootstrap(pairs, mean_difference, draws=20_000) == pytest.approx((-0.5, 0.0, 0.5))
    # Four seeds, one of them different: sums of 4 draws from (0, 0, 0, 1) are binomial; P(sum = 0) = 0.32,
    # P(sum <= 2) = 0.949, P(sum <= 3) = 0.996: the quantiles are 0 and 3 of 4.
    pairs = [(np.array([value]), np.array([0.0])) for value in (0.0, 0.0, 0.0, 1.0)]
    assert hierarchical_bootstrap(pairs, mean_difference, draws=20_000) == pytest.approx((0.0, 0.25, 0.75))


def test_bootstrap_with_one_seed_is_the_plain_paired_one(rng: np.random.Generator) -> None:
    ours, theirs = rng.uniform(size=(2, 60))
    found = hierarchical_bootstrap([(ours, theirs)], mean_difference, draws=20_000)
    plain = stats.bootstrap((ours - theirs,), np.mean, n_resamples=20_000, method="percentile", rng=rng)
    assert found.low == pytest.approx(plain.confidence_interval.low, abs=0.005)
    assert found.high == pytest.approx(plain.confidence_interval.high, abs=0.005)
    assert found.estimate == pytest.approx(np.mean(ours - theirs))


def test_bootstrap_gives_the_same_interval_twice_in_blocks_or_not(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(rng.uniform(size=15), rng.uniform(size=15)) for _ in range(3)]
    first = hierarchical_bootstrap(pairs, worst10_difference)
    assert hierarchical_bootstrap(pairs, worst10_difference) == first
    assert hierarchical_bootstrap(pairs, worst10_difference, seed=1) != first
    monkeypatch.setattr("dqnfed_flwr.compare.figures.BLOCK", 100)
    assert hierarchical_bootstrap(pairs, worst10_difference) == first


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    # Differences 0.02 + seed effect + client effect, 12 seeds of 10 clients.
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        seeds = 0.02 + 0.03 * rng.standard_normal(12)
        pairs = [(each + 0.05 * rng.standard_normal(10), np.zeros(10)) for each in seeds]
        found = hierarchical_bootstrap(pairs, mean_difference, draws=300, seed=trial)
        hits += found.low <= 0.02 <= found.high
    assert 0.88 <= hits / 200 <= 0.995


def test_bootstrap_needs_a_pair() -> None:
    with pytest.raises(DataError, match="no seed that both methods finished"):
        hierarchical_bootstrap([], mean_difference)


def test_zero_is_excluded_on_either_side_only() -> None:
    assert Interval(0.1, 0.2, 0.3).excludes_zero
    assert Interval(-0.3, -0.2, -0.1).excludes_zero
    assert not Interval(-0.1, 0.0, 0.1).excludes_zero
    assert not Interval(0.0, 0.0, 0.0).excludes_zero


def test_shifts_are_means_over_seeds() -> None:
    # Seed 0: mean 0.5, client 0 suffers and improves, client 1 does well and falls; seed 1: nothing moves.
    theirs = [make_record(THEIRS, 0, (0.2, 0.8)), make_record(THEIRS, 1, (0.2, 0.8))]
    ours = [make_record(OURS, 0, (0.3, 0.7)), make_record(OURS, 1, (0.2, 0.8))]
    found = shifts(ours, theirs)
    assert found is not None
    assert (found[0].mean, found[1].mean) == (0.5, 0.5)
    assert shifts(ours, []) is None


def test_curves_are_means_over_seeds_against_rounds_traffic_and_time() -> None:
    found = curve([make_record(OURS, 0, (0.6, 0.6)), make_record(OURS, 1, (0.9, 0.9))], mean_accuracy)
    assert found is not None
    assert found.rounds.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.megabytes, [3, 6, 9])
    np.testing.assert_allclose(found.seconds, [0.5, 1.0, 1.5])
    np.testing.assert_allclose(found.mean, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(found.std, np.array([0.1, 0.2, 0.3]) / math.sqrt(2))


def test_a_run_that_ended_early_keeps_its_last_value_and_unknown_rounds_are_left_out() -> None:
    short, long = make_record(OURS, 0, (0.4,), rounds=1), make_record(OURS, 1, (0.8,), rounds=4)
    blind = replace(long.events[1], accuracy=None)
    long = replace(long, events=(long.events[0], blind, *long.events[2:]))
    found = curve([short, long], mean_accuracy)
    assert found is not None
    assert found.rounds.tolist() == [1, 3, 4]
    np.testing.assert_allclose(found.mean, [0.3, 0.5, 0.6])
    np.testing.assert_allclose(found.seconds, [0.5, 1.0, 1.25])


def test_no_curve_where_nothing_is_known() -> None:
    assert curve([make_record(OURS, 0, reason="lost")], mean_accuracy) is None
    assert curve([make_record(OURS, 0, (0.5,), rho=math.nan)], lambda event: event.improved_ratio) is None
