"""The test on held-out samples: against SciPy's, its error over a run, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, ttest_rel

from benchmarks.heldout import ALPHA, ever_refuses, losses_of
from dqnfed_flwr.guarantee.harm import accepts
from dqnfed_flwr.guarantee.held_out import block, level, rises, rises_above_any
from dqnfed_flwr.types import Float64Array

losses = st.lists(st.floats(0, 20, allow_subnormal=False), min_size=2, max_size=40).map(np.array)
pairs = losses.flatmap(lambda before: st.tuples(st.just(before), st.permutations(before.tolist()).map(np.array)))


def drawn(samples: int, rise: float, seed: int) -> tuple[Float64Array, Float64Array]:
    """Losses before, and after a rise."""
    rng = np.random.default_rng(seed)
    before = rng.exponential(1.0, samples)
    return before, before + rise + 0.3 * rng.standard_normal(samples)


@pytest.mark.parametrize("samples", [2, 3, 10, 50, 1000])
@pytest.mark.parametrize("rise", [-0.1, 0.0, 0.02, 0.1, 0.3])
def test_it_refuses_at_the_levels_above_the_p_value_of_scipy(samples: int, rise: float) -> None:
    for seed in range(5):
        before, after = drawn(samples, rise, seed)
        p = float(ttest_rel(after, before, alternative="greater").pvalue)
        assert rises(after, before, min(p * (1 + 1e-9), 0.499)) == (p < 0.499)
        assert not rises(after, before, p * (1 - 1e-9))


def test_p_values_far_below_any_level_of_a_run_are_those_of_scipy() -> None:
    before, after = drawn(50, 0.3, 1)
    p = float(ttest_rel(after, before, alternative="greater").pvalue)
    assert p < 1e-8
    assert rises(after, before, p * (1 + 1e-6))
    assert not rises(after, before, p * (1 - 1e-6))


def test_without_spread_a_rise_is_what_is_above_the_tolerance_of_losses() -> None:
    before = np.array([1.0, 2.0, 3.0])
    assert not rises(before, before, 0.4)
    assert not rises(before + 2.0**-30, before, 0.4)
    assert rises(before + 0.25, before, 1e-300)
    assert not rises(before - 0.25, before, 0.4)
    assert [rises(np.array([after]), np.array([1.0]), 0.1) for after in (0.5, 1.0, 1.5)] == [False, False, True]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_is_a_rise_above_what_is(bad: float) -> None:
    fine, broken = np.array([1.0, 2.0]), np.array([1.0, bad])
    assert rises(broken, fine, 1e-9)
    assert not rises(fine, broken, 0.4)
    assert not rises(broken, broken, 0.4)


@given(pair=pairs, scale=st.floats(0.01, 100), at_level=st.floats(1e-6, 0.4))
def test_only_differences_count_and_not_their_scale_or_order(
    pair: tuple[Float64Array, Float64Array], scale: float, at_level: float
) -> None:
    before, after = pair  # of equal mean, so that no rise is without a spread
    before, after = np.round(before, 3), np.round(after, 3) + 0.5
    order = np.random.default_rng(0).permutation(len(before))
    if np.ptp(after - before) < 1e-6:
        return
    p = float(ttest_rel(after, before, alternative="greater").pvalue)
    if abs(p - at_level) < 1e-6 * at_level:
        return
    expected = p < at_level
    assert rises(after, before, at_level) == expected
    assert rises(scale * after, scale * before, at_level) == expected
    assert rises(after[order], before[order], at_level) == expected


@given(before=losses, falls=st.data(), at_level=st.floats(1e-6, 0.4))
def test_a_loss_that_falls_on_every_sample_never_rises(
    before: Float64Array, falls: st.DataObject, at_level: float
) -> None:
    by = falls.draw(st.lists(st.floats(0, 5), min_size=len(before), max_size=len(before)))
    assert not rises(before - np.array(by), before, at_level)


@given(before=losses, shift=st.floats(-1, 1), low=st.floats(1e-9, 0.2), by=st.floats(1, 2))
def test_what_is_refused_at_a_level_is_refused_at_a_larger_one(
    before: Float64Array, shift: float, low: float, by: float
) -> None:
    after = before + shift + 0.1 * np.sin(np.arange(len(before)))
    assert rises(after, before, low) <= rises(after, before, low * by)


def test_the_levels_of_all_answers_sum_to_alpha_and_fall() -> None:
    found = [level(0.1, answer) for answer in range(1, 100_001)]
    assert found == sorted(found, reverse=True)
    assert sum(found[:100]) == pytest.approx(0.05)
    assert sum(found) == pytest.approx(0.1, rel=2e-3)
    assert sum(found) < 0.1


def test_rounds_come_in_doublings() -> None:
    assert [block(number) for number in (1, 2, 3, 4, 7, 8, 15, 16)] == [0, 1, 1, 2, 2, 3, 3, 4]


def test_a_rise_above_one_of_several_models_counts_at_its_share_of_the_level() -> None:
    before, after = drawn(30, 0.25, 3)
    p = float(ttest_rel(after, before, alternative="greater").pvalue)
    higher = after + 1.0
    assert rises_above_any(after, [higher, before], 2.02 * p)
    assert not rises_above_any(after, [higher, before], 1.98 * p)
    assert rises_above_any(after, [before], 1.01 * p)


@pytest.mark.parametrize("wander", [0.0, pytest.param(0.9, marks=pytest.mark.slow), 0.99])
def test_a_client_that_is_never_harmed_seldom_refuses_in_a_whole_run(wander: float) -> None:
    repeats, rng = 100, np.random.default_rng(7)
    refused = sum(ever_refuses(losses_of(40, wander, 0.0, rng), best=False) for _ in range(repeats))
    assert refused <= binom.isf(1e-3, repeats, ALPHA)  # were alpha exceeded, this would fail sooner or later


def test_the_best_model_alone_would_be_lucky() -> None:
    rng = np.random.default_rng(7)
    refused = sum(ever_refuses(losses_of(40, 0.0, 0.0, rng), best=True) for _ in range(40))
    assert refused > binom.isf(1e-6, 40, ALPHA)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("held_out", [None, False, True])
def test_who_decides(training: bool, held_out: bool | None) -> None:
    assert accepts("training", training, held_out) == training
    assert accepts("held-out", training, held_out) == (training if held_out is None else held_out)
    assert accepts("both", training, held_out) == (training and held_out is not False)
