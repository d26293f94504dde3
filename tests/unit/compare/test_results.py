from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dqnfed_flwr.compare.files import as_json, read_comparison
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.results import (
    Comparison,
    Row,
    difference_of,
    interval,
    over_seeds,
    paired,
    ranks,
    shifts,
    summaries,
    summarise,
)
from dqnfed_flwr.compare.row_specs import RowSpec
from tests.helpers.comparisons import NOWHERE, make_record

OURS, THEIRS = RowSpec("dqn-fed"), RowSpec("fedavg")


def test_who_suffers_is_told_by_fedavg_without_settings_of_its_own() -> None:
    plain, own = RowSpec("fedavg", title="FedAvg"), RowSpec("fedavg", {"local.lr": 1e-4}, title="FedAvg [slow]")
    ours = RowSpec("dqn-fed", title="DQN-Fed")
    told = [(own, (0.1, 0.9)), (plain, (0.9, 0.1)), (ours, (0.5, 0.5))]
    rows = [Row(spec, {}, (make_record(spec, 0, found),)) for spec, found in told]
    for order in (rows, rows[::-1]):
        made = Comparison(Plan({}, tuple(row.spec for row in order), (0,), NOWHERE, 0), order, ours, "mean", 1)
        baseline = made.baseline
        assert baseline is not None
        assert (baseline.label, made.shifts[made.rows.index(baseline)]) == ("FedAvg", None)


def test_the_reference_is_read_back_by_its_place(tmp_path: Path) -> None:
    rows = [RowSpec("fedavg", {"local.lr": lr}, title="Same") for lr in (0.1, 0.2)]
    made = Comparison(
        Plan({}, tuple(rows), (0,), tmp_path, 0),
        [Row(spec, {}, (make_record(spec, 0, (0.5, 0.7)),)) for spec in rows],
        rows[1],
        "mean",
        1,
    )
    (tmp_path / "comparison.json").write_text(json.dumps(as_json(made, "none", 1.0)))
    found = read_comparison(tmp_path).comparison
    assert found.reference is found.rows[1]


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


def test_interval_over_seeds_is_the_paired_t_interval(rng: np.random.Generator) -> None:
    values = rng.normal(0.02, 0.03, size=5)
    plain = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert interval(values.tolist()) == pytest.approx((plain.low, values.mean(), plain.high), rel=1e-12)
    # Two seeds, differences 1 and 3: 2 -+ 12.706 * sqrt(2) / sqrt(2), the table's quantile for one degree of freedom.
    assert interval([1.0, math.nan, 3.0]) == pytest.approx((2 - 12.7062, 2.0, 2 + 12.7062), abs=1e-4)


def test_one_seed_has_no_bounds_and_none_no_interval() -> None:
    one = interval([0.5])
    assert one is not None
    assert one.estimate == 0.5
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert not one.mark
    assert interval([math.nan]) is None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_covers_the_truth_as_often_as_it_says(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    found = [interval(rng.normal(0.02, 0.03, size=seeds).tolist()) for _ in range(2000)]
    hits = sum(each is not None and each.low <= 0.02 <= each.high for each in found)
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)  # three standard deviations of a binomial share


def test_differences_are_of_runs_with_the_same_seed() -> None:
    ours = [make_record(OURS, 0, (0.1, 0.3)), make_record(OURS, 1, (0.4, 0.8)), make_record(OURS, 2, reason="lost")]
    theirs = [make_record(THEIRS, seed, (0.1 * seed, 0.1 * seed)) for seed in (2, 1, 0)]
    # Seed 0: 0.2 - 0; seed 1: 0.6 - 0.1.
    found = over_seeds(ours, theirs, difference_of("mean"))
    assert found is not None
    assert found.estimate == pytest.approx(0.35)
    assert over_seeds(ours[2:], theirs, difference_of("mean")) is None
    assert over_seeds(ours[:1], theirs[:1], difference_of("mean")) is None


def test_shifts_are_means_over_seeds() -> None:
    # Seed 0: mean 0.5, client 0 suffers and improves, client 1 does well and falls; seed 1: nothing moves.
    theirs = [make_record(THEIRS, 0, (0.2, 0.8)), make_record(THEIRS, 1, (0.2, 0.8))]
    ours = [make_record(OURS, 0, (0.3, 0.7)), make_record(OURS, 1, (0.2, 0.8))]
    found = shifts(ours, theirs)
    assert found is not None
    assert (found[0].mean, found[1].mean) == (0.5, 0.5)
    assert shifts(ours, []) is None
