from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cosine
from scipy.stats import entropy

from dqnfed_flwr.errors import DataError, ShapeError
from dqnfed_flwr.fairness import fairness_report, improved_ratio, suffering_and_well_performing
from dqnfed_flwr.types import Figure, Float64Array

MAE = Figure("mae", higher=False)
KEYS = {
    *("mean", "std", "worst", "worst5", "worst10", "worst20", "best5", "best10", "best20"),
    *("angle_deg", "angle_rad", "kl_uniform", "jain"),
}
accuracy = st.floats(0, 1, allow_subnormal=True)
federations = arrays(np.float64, st.integers(1, 60), elements=accuracy)
# Some client has learnt something, and no figure is so small that a square of it vanishes.
ordinary = arrays(np.float64, st.integers(1, 60), elements=st.integers(0, 200).map(lambda right: right / 200)).filter(
    np.any
)


def test_hand_example() -> None:
    report = fairness_report([0.1, 0.2, 0.3, 0.4])
    assert report["mean"] == pytest.approx(0.25)
    assert report["std"] == pytest.approx(math.sqrt(0.0125))  # squares of 0.15, 0.05, 0.05, 0.15 over 4
    assert report["worst"] == report["worst10"] == 0.1
    assert report["best10"] == 0.4
    assert report["jain"] == pytest.approx(1.0 / (4 * 0.3))  # (sum a)^2 = 1, sum a^2 = 0.3
    assert report["angle_rad"] == pytest.approx(math.acos(1.0 / math.sqrt(4 * 0.3)))
    assert report["angle_deg"] == pytest.approx(math.degrees(report["angle_rad"]))
    expected = sum(p * math.log(4 * p) for p in (0.1, 0.2, 0.3, 0.4))
    assert report["kl_uniform"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clients", "tail", "size"),
    [(1, "5", 1), (10, "5", 1), (10, "10", 1), (10, "20", 2), (11, "10", 2), (100, "5", 5), (30, "10", 3)],
)
def test_tails_hold_the_rounded_up_share_of_clients(clients: int, tail: str, size: int) -> None:
    values = np.linspace(0.2, 0.8, clients)
    report = fairness_report(values)
    assert report[f"worst{tail}"] == pytest.approx(values[:size].mean())
    assert report[f"best{tail}"] == pytest.approx(values[-size:].mean())


def test_mapping_sequence_and_array_agree() -> None:
    values = [0.5, 0.25, 0.75]
    assert fairness_report(values) == fairness_report(np.array(values))
    assert fairness_report(values) == fairness_report({3: 0.5, 1: 0.25, 2: 0.75})
    assert fairness_report(values) == fairness_report({"3": 0.5, "1": 0.25, "2": 0.75})


def test_all_zero_accuracies_count_as_equal() -> None:
    report = fairness_report([0.0] * 5)
    assert (report["angle_deg"], report["kl_uniform"], report["jain"]) == (0.0, 0.0, 1.0)


@given(federations)
def test_figures_are_finite_and_in_range(values: Float64Array) -> None:
    report = fairness_report(values)
    assert report.keys() == KEYS
    assert all(math.isfinite(value) for value in report.values())
    assert 0 <= report["angle_deg"] <= 90
    assert 0 <= report["kl_uniform"] <= math.log(values.size) + 1e-9
    assert 1 / values.size - 1e-9 <= report["jain"] <= 1
    tails = [report[key] for key in ("worst", "worst5", "worst10", "worst20", "mean", "best20", "best10", "best5")]
    assert all(low <= high + 1e-12 for low, high in itertools.pairwise(tails))


@given(ordinary)
def test_figures_agree_with_scipy(values: Float64Array) -> None:
    report = fairness_report(values)
    ones = np.ones(values.size)
    assert math.cos(report["angle_rad"]) == pytest.approx(1 - float(cosine(values, ones)), abs=1e-12)
    assert report["kl_uniform"] == pytest.approx(float(entropy(values, ones)), abs=1e-12)
    assert report["jain"] == pytest.approx(values.sum() ** 2 / (values.size * (values**2).sum()))


@given(ordinary, st.permutations(range(60)), st.floats(0.01, 1))
def test_order_changes_nothing_and_scale_only_the_level(values: Float64Array, order: list[int], scale: float) -> None:
    report = fairness_report(values)
    mixed = values[[place for place in order if place < values.size]]
    assert fairness_report(mixed) == pytest.approx(report, rel=1e-12, abs=1e-15)
    scaled = fairness_report(values * scale)
    for key in ("angle_deg", "kl_uniform", "jain"):
        assert scaled[key] == pytest.approx(report[key], rel=1e-9, abs=1e-9)


@given(st.integers(1, 60), st.floats(1e-3, 1))
def test_equal_clients_are_fair(clients: int, value: float) -> None:
    report = fairness_report([value] * clients)
    assert report["angle_rad"] == pytest.approx(0, abs=1e-12)
    assert report["kl_uniform"] == pytest.approx(0, abs=1e-12)
    assert report["jain"] == pytest.approx(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 1.0001])
def test_unfit_accuracy_names_the_client(bad: float) -> None:
    with pytest.raises(DataError, match="client 7 "):
        fairness_report({2: 0.5, 7: bad})


@pytest.mark.parametrize("empty", [[], {}, np.ones((2, 2))])
def test_no_client_or_a_table_is_refused(empty: list[float]) -> None:
    with pytest.raises(ShapeError, match="at least one client"):
        fairness_report(empty)


def test_words_are_refused() -> None:
    with pytest.raises(DataError, match="no number"):
        fairness_report({0: "good"})  # type: ignore[arg-type]


def test_improved_ratio_counts_unchanged_and_skips_absent() -> None:
    assert improved_ratio([1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 1.5, math.nan]) == pytest.approx(2 / 3)
    assert improved_ratio([1.0, math.inf], [1.0, 3.0]) == 1.0
    assert math.isnan(improved_ratio([1.0], [math.nan]))
    assert math.isnan(improved_ratio([], []))


def test_improved_ratio_refuses_uneven_and_unknown_losses() -> None:
    with pytest.raises(ShapeError, match=r"\(2,\) before and \(1,\) after"):
        improved_ratio([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="before the round is NaN"):
        improved_ratio([math.nan], [1.0])


def test_shift_against_a_baseline() -> None:
    # Baseline mean 0.6: clients 0 and 1 suffer. Client 0 gains, 1 stays; 2 and 4 lose, 3 stays.
    baseline = {0: 0.2, 1: 0.4, 2: 0.9, 3: 0.7, 4: 0.8}
    accuracies = {0: 0.5, 1: 0.4, 2: 0.8, 3: 0.7, 4: 0.7}
    shift = suffering_and_well_performing(accuracies, baseline)
    assert shift.suffering_improved == 0.5
    assert shift.well_performing_degraded == pytest.approx(2 / 3)
    as_json = {str(client): value for client, value in reversed(baseline.items())}
    assert suffering_and_well_performing(accuracies, as_json) == shift
    assert suffering_and_well_performing(list(accuracies.values()), list(baseline.values())) == shift


def test_shift_where_nobody_suffers() -> None:
    shift = suffering_and_well_performing([0.5, 0.4], [0.5, 0.5])
    assert math.isnan(shift.suffering_improved)
    # the mean of three times 0.1 is 0.10000000000000002 in float64
    assert suffering_and_well_performing([0.1, 0.1, 0.0], [0.1] * 3).well_performing_degraded == pytest.approx(1 / 3)
    assert shift.well_performing_degraded == 0.5


def test_shift_needs_the_same_clients() -> None:
    with pytest.raises(ShapeError, match="client 1, 2"):
        suffering_and_well_performing({0: 0.5, 1: 0.5}, {0: 0.5, 2: 0.5})
    with pytest.raises(ShapeError, match="3 and 2 clients"):
        suffering_and_well_performing([0.1, 0.2, 0.3], [0.1, 0.2])
    with pytest.raises(ShapeError, match="two of a kind"):
        suffering_and_well_performing([0.1], {0: 0.1})


def test_of_an_error_the_worst_clients_have_the_most() -> None:
    report = fairness_report([4.0, 1.0, 2.0, 3.0, 10.0], MAE)
    assert (report["mean"], report["worst"], report["worst20"], report["best20"]) == (4.0, 10.0, 10.0, 1.0)
    assert report["std"] == pytest.approx(math.sqrt(10))  # deviations 0, 3, 2, 1, 6
    assert report["jain"] == pytest.approx(400 / (5 * 130))
    shift = suffering_and_well_performing([3.0, 1.0, 2.0, 4.0, 9.0], [4.0, 1.0, 2.0, 3.0, 10.0], MAE)
    assert shift == (1.0, 0.25)  # only the client at 10 is above the mean of 4; of the others the one at 3 got worse


def test_what_compares_ratios_is_unknown_where_a_value_is_negative() -> None:
    report = fairness_report([-0.5, 0.5], Figure("r2"))
    assert (report["mean"], report["std"], report["worst"]) == (0.0, 0.5, -0.5)
    assert all(math.isnan(report[key]) for key in ("angle_deg", "angle_rad", "kl_uniform", "jain"))


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6)))
def test_less_is_better_is_more_of_the_negative_is_better(values: Float64Array) -> None:
    less, more = fairness_report(values, MAE), fairness_report(-values, Figure("gain"))
    for key in ("mean", "worst", *(f"{side}{tail}" for side in ("worst", "best") for tail in (5, 10, 20))):
        assert less[key] == pytest.approx(-more[key], rel=1e-12, abs=1e-300)
    assert less["std"] == pytest.approx(more["std"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        (MAE, math.inf, "values: client 1 has inf; a mae is a finite number"),
        (MAE, math.nan, "values: client 1 has nan; a mae is a finite number"),
        (Figure("auroc", percent=True), 1.5, r"values: client 1 has 1.5; an auroc is a number in \[0, 1\]"),
    ],
)
def test_the_figure_says_which_values_are_allowed(figure: Figure, value: float, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fairness_report([0.5, value], figure)
