"""Krum, trimmed mean and median, by hand and against flwr's and torchjd's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean as scipy_trim_mean

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.rows import TRUSTED_CONDITION
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.robust import krum_scores
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import random_set
from tests.helpers.rounds import decide

seeds = st.integers(0, 10_000)
LINE = np.array([[0.0], [1.0], [2.0], [4.0], [100.0]])


def method(name: str, **more: object) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": name} | more)))


def flwr_krum(rows: Float64Array, byzantine: int, keep: int) -> Sequence[int]:
    """The rows that flwr selects."""
    contents = [
        RecordDict({"arrays": ArrayRecord({"row": Array(row)}), "metrics": MetricRecord({"row": number})})
        for number, row in enumerate(rows)
    ]
    chosen = select_multikrum(contents, byzantine, keep)
    return [int(content.metric_records["metrics"]["row"]) for content in chosen]  # type: ignore[arg-type]


def test_a_share_just_below_a_half_leaves_a_value() -> None:
    trimmed = method("trimmed-mean", **{"trimmed-mean.share": 0.4999999999})
    np.testing.assert_allclose(decide(trimmed, np.array([[1.0, 4.0], [3.0, 0.0]])).step, [2.0, 2.0])


def test_krum_worked_by_hand() -> None:
    # K = 5, f = 1: squared distances to the two nearest are 1 + 4, 1 + 1, 1 + 4, 4 + 9, 96^2 + 98^2.
    np.testing.assert_allclose(krum_scores(LINE @ LINE.T, 1), [5, 2, 5, 13, 96**2 + 98**2])
    solved = decide(method("krum"), LINE)
    np.testing.assert_array_equal(solved.combination.weights, [0, 1, 0, 0, 0])
    assert solved.combination.status == "converged"
    assert solved.combination.notes == {"byzantine": 1, "kept": 1}


def test_krum_tells_how_nearly_its_rows_agree() -> None:
    # Distances are differences of inner products: with rows this close float32 sums do not decide them.
    rows = 1 + 1e-3 * np.random.default_rng(0).standard_normal((6, 50))
    combination = decide(method("krum"), rows).combination
    assert combination.condition > TRUSTED_CONDITION
    assert decide(method("krum"), LINE).combination.rank == 1


def test_multi_krum_averages_as_equals_and_takes_the_first_of_a_tie() -> None:
    solved = decide(method("krum", **{"krum.keep": 2}), LINE, examples=[1, 2, 3, 4, 5])
    np.testing.assert_array_equal(solved.combination.weights, [0.5, 0.5, 0, 0, 0])


@pytest.mark.parametrize(("clients", "byzantine"), [(1, 0), (2, 0), (3, 0), (6, 1), (7, 2), (8, 2)])
def test_too_few_clients_for_f_are_told(clients: int, byzantine: int) -> None:
    rows = random_set(np.random.default_rng(0), clients, 4)
    combination = decide(method("krum", **{"krum.byzantine": 3, "krum.keep": 9}), rows).combination
    assert combination.status == "fewer-byzantine"
    assert combination.notes == {"byzantine": byzantine, "kept": clients}
    np.testing.assert_allclose(combination.weights, np.full(clients, 1 / clients))


@settings(max_examples=30)
@given(seed=seeds, clients=st.integers(5, 12), byzantine=st.integers(0, 1), keep=st.integers(1, 4))
def test_krum_agrees_with_flwr(seed: int, clients: int, byzantine: int, keep: int) -> None:
    rows = random_set(np.random.default_rng(seed), clients, 7)
    solved = decide(method("krum", **{"krum.byzantine": byzantine, "krum.keep": keep}), rows)
    chosen = flwr_krum(rows, byzantine, keep)
    assert sorted(np.flatnonzero(solved.combination.weights)) == sorted(chosen)
    np.testing.assert_allclose(solved.step, rows[list(chosen)].mean(axis=0), atol=1e-6)


def test_an_outlier_has_no_say() -> None:
    rng = np.random.default_rng(4)
    rows = 1 + 0.1 * rng.standard_normal((9, 6))
    rows[3] *= -1e6
    for name in ("krum", "median", "trimmed-mean"):
        step = decide(method(name), rows).step.numpy()
        np.testing.assert_allclose(step, 1, atol=0.5)


def test_trimmed_mean_worked_by_hand() -> None:
    # beta K = 0.2 * 5: one value off either end; (1 + 2 + 4) / 3.
    solved = decide(method("trimmed-mean"), LINE, examples=[9, 1, 1, 1, 1])
    np.testing.assert_allclose(solved.step, [7 / 3], rtol=1e-15)
    assert solved.combination.notes == {"trimmed": 1}


def test_too_few_clients_to_trim_leave_the_mean() -> None:
    solved = decide(method("trimmed-mean"), LINE[:4])
    np.testing.assert_allclose(solved.step, [7 / 4], rtol=1e-15)
    assert solved.combination.notes == {"trimmed": 0}


def test_median_worked_by_hand() -> None:
    np.testing.assert_allclose(decide(method("median"), LINE).step, [2])
    np.testing.assert_allclose(decide(method("median"), LINE[1:]).step, [3])


@settings(max_examples=30)
@given(seed=seeds, clients=st.integers(1, 12), share=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.45]))
def test_coordinate_wise_figures_agree_with_flwr_and_scipy(seed: int, clients: int, share: float) -> None:
    rows = random_set(np.random.default_rng(seed), clients, 9)
    trimmed = decide(method("trimmed-mean", **{"trimmed-mean.share": share}), rows).step
    np.testing.assert_allclose(trimmed, trim_mean(rows, share), atol=1e-12)
    np.testing.assert_allclose(trimmed, scipy_trim_mean(rows, share, axis=0), atol=1e-12)
    np.testing.assert_allclose(decide(method("median"), rows).step, np.median(rows, axis=0), atol=1e-12)


@pytest.mark.parametrize("name", ["krum", "median", "trimmed-mean"])
def test_gradients_count_eta_times(name: str) -> None:
    gradients = method(name, **{"local.work": "gradient", "local.lr": 0.5})
    np.testing.assert_allclose(decide(gradients, LINE).step, 0.5 * decide(method(name), LINE).step, rtol=1e-15)


def test_columns_beyond_one_block_are_all_done() -> None:
    rows = random_set(np.random.default_rng(5), 3, 20_001)
    np.testing.assert_allclose(decide(method("median"), rows).step, np.median(rows, axis=0), atol=1e-12)
