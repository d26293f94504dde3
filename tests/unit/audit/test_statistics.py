"""The tests of an audit against hand-worked figures, closed forms, SciPy, and simulated clients that are not harmed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, bootstrap

from dqnfed_flwr.audit import statistics
from dqnfed_flwr.audit.statistics import (
    PairedTest,
    corrected,
    holm,
    mcnemar,
    mean_difference,
    needed,
    resamples_for,
    smallest_of_mean,
)
from dqnfed_flwr.types import Float64Array

DRAWS = 9_999
counts = st.integers(0, 60)
chances = st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=30)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_mcnemar_by_hand() -> None:
    """Seven samples are answered rightly by one alone, six of them by the other: P(X >= 6) = (7 + 1) / 128."""
    found = mcnemar(1, 6)
    assert found.worse == pytest.approx(8 / 128, rel=1e-12)
    assert found.better == pytest.approx(127 / 128, rel=1e-12)
    assert found.two_sided == pytest.approx(16 / 128, rel=1e-12)
    assert found.smallest == 1 / 128


@given(counts, counts)
def test_mcnemar_is_scipys_binomial_test_and_mirrors(only_first: int, only_second: int) -> None:
    found, mirrored = mcnemar(only_first, only_second), mcnemar(only_second, only_first)
    assert (found.worse, found.better) == (mirrored.better, mirrored.worse)
    assert found.smallest <= min(found.worse, found.better)
    n = only_first + only_second
    expected = binomtest(only_first, n).pvalue if n else 1.0
    assert found.two_sided == pytest.approx(expected, rel=1e-9)


def test_without_a_discordant_sample_nothing_could_be_shown() -> None:
    assert mcnemar(0, 0) == PairedTest(1.0, 1.0, 1.0)


@pytest.mark.parametrize("differences", [[1.0], [0.5] * 6, [0.1, 0.4, 0.9, 2.0], [2.0] * 3, [0.0, 0.0]])
def test_p_of_a_mean_is_a_product_where_no_difference_is_negative(differences: list[float]) -> None:
    """P(sum e_i d_i <= e_0 b) = prod 1 / (1 + d_i / b): the Laplace transform of the exponentials."""
    bound = 2.0
    exact = math.prod(1 / (1 + d / bound) for d in differences)
    found = mean_difference(np.array(differences), bound, DRAWS, rng())
    hits = round(found.worse * (DRAWS + 1)) - 1
    assert binomtest(hits, DRAWS, exact).pvalue > 1e-6
    assert found.better == 1.0


@settings(max_examples=50)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.integers(0, 1000))
def test_swapping_the_models_mirrors_everything(differences: list[float], seed: int) -> None:
    values = np.array(differences)
    one, other = (mean_difference(sign * values, 3.0, 199, rng(seed)) for sign in (1, -1))
    assert (one.worse, one.better) == (other.better, other.worse)
    np.testing.assert_allclose([one.mean, one.low, one.high], [-other.mean, -other.high, -other.low], atol=1e-12)
    assert one.low <= one.mean + 1e-12
    assert one.mean <= one.high + 1e-12
    assert max(-one.low, one.high) <= 3 + 1e-12


def test_in_blocks_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = rng(1).normal(size=40)
    whole = mean_difference(values, 9.0, 500, rng(2))
    monkeypatch.setattr(statistics, "BLOCK", 41 * 7)
    in_blocks = mean_difference(values, 9.0, 500, rng(2))
    assert (whole.worse, whole.better, whole.mean) == (in_blocks.worse, in_blocks.better, in_blocks.mean)
    np.testing.assert_allclose([whole.low, whole.high], [in_blocks.low, in_blocks.high], rtol=1e-12)


def test_with_many_samples_the_interval_is_that_of_scipys_bootstrap() -> None:
    values = rng(3).exponential(size=4000) - 0.7
    values = np.minimum(values, 4.0)
    found = mean_difference(values, 4.0, DRAWS, rng())
    theirs = bootstrap(
        (values,), np.mean, n_resamples=2000, method="percentile", random_state=rng()
    ).confidence_interval
    error = values.std() / math.sqrt(len(values))
    assert abs(found.low - theirs.low) < 0.3 * error
    assert abs(found.high - theirs.high) < 0.3 * error


def unlucky(q: float, bound: float, samples: int, generator: np.random.Generator) -> Float64Array:
    """The other model fails on the share q of samples; the federated one has the same mean loss on every sample."""
    return q * bound - np.where(generator.random(samples) < q, bound, 0.0)


@pytest.mark.parametrize(("q", "samples"), [(0.01, 36), (0.05, 36), (0.05, 100), (0.3, 36)])
def test_a_client_that_is_not_harmed_is_seldom_called_worse(q: float, samples: int) -> None:
    """Equal means, and a long tail on one side: at most 5 % by this test; SciPy's bootstrap goes far beyond."""
    generator, bound, trials = rng(4), 4.6, 400
    cases = [unlucky(q, bound, samples, generator) for _ in range(trials)]
    wrong = sum(mean_difference(case, bound, 499, generator).worse <= 0.05 for case in cases)
    assert binom.sf(wrong - 1, trials, 0.05) > 1e-4
    if q < 0.1 and samples == 36:
        assert sum(not (case < 0).any() for case in cases) > 0.1 * trials  # all of their resamples say worse


def test_a_client_that_is_harmed_is_found() -> None:
    values = np.minimum(rng(5).normal(0.5, 0.5, 100), 4.6)
    assert mean_difference(values, 4.6, DRAWS, rng()).worse < 0.001


@pytest.mark.parametrize("samples", [1, 3, 6, 40])
def test_smallest_p_of_a_mean_is_that_of_differences_at_the_bound(samples: int) -> None:
    found = mean_difference(np.full(samples, 2.0), 2.0, DRAWS, rng())
    smallest = smallest_of_mean(samples, DRAWS)
    assert found.worse >= 1 / (1 + DRAWS)
    hits = round(found.worse * (DRAWS + 1)) - 1
    assert binomtest(hits, DRAWS, 0.5**samples).pvalue > 1e-6
    assert smallest == max(0.5**samples, 1e-4)


def test_enough_draws_for_the_strictest_step() -> None:
    assert resamples_for(20, 0.05) == 9_999
    draws = resamples_for(2000, 0.05)
    assert 1 / (draws + 1) <= 0.05 / 2000 / 10


def test_holm_by_hand() -> None:
    """Rising .005, .01, .03, .04 by 4, 3, 2, 1: .02, .03, .06, and .04 raised to .06."""
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02], rtol=1e-12)


@given(chances)
def test_holm_is_never_below_p_keeps_the_order_and_is_no_stricter_than_bonferroni(given_p: list[float]) -> None:
    p = np.array(given_p)
    found = holm(p)
    assert (found >= p).all()
    assert (found <= np.minimum(1.0, len(p) * p) * (1 + 1e-12)).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    np.testing.assert_array_equal(holm(p[order]), found[order])


@given(chances, st.integers(0, 29), st.floats(0.1, 1.0))
def test_a_smaller_p_makes_no_corrected_p_larger(given_p: list[float], place: int, factor: float) -> None:
    p = np.array(given_p)
    smaller = p.copy()
    smaller[place % len(p)] *= factor
    assert (holm(smaller) <= holm(p) * (1 + 1e-12)).all()


def test_needed_by_hand() -> None:
    """Level .05: two tests can reach .05 / 1, more than one; two can reach .05 / 2, so they are judged."""
    assert needed(np.array([0.5, 0.25, 0.01, 0.001]), 0.05) == 0.025
    assert needed(np.array([0.5, 0.25]), 0.05) == 0.05
    assert needed(np.array([]), 0.05) == 0.05


def test_tests_that_could_not_count_cost_the_others_nothing() -> None:
    p, smallest = np.array([0.02, 0.9, 0.9, 0.9]), np.array([0.001, 0.5, 0.25, 1.0])
    np.testing.assert_array_equal(corrected(p, smallest, 0.05), [0.02, np.nan, np.nan, np.nan])


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=20))
def test_nobody_outside_of_the_family_could_have_counted(pairs: list[tuple[int, int]]) -> None:
    tests = [mcnemar(*pair) for pair in pairs]
    smallest = np.array([test.smallest for test in tests])
    judged = ~np.isnan(corrected(np.array([test.worse for test in tests]), smallest, 0.05))
    threshold = needed(smallest, 0.05)
    assert (smallest[~judged] > threshold).all()
    assert (smallest[judged] * judged.sum() <= 0.05 * (1 + 1e-12)).all()


def test_nobody_is_called_worse_in_95_of_100_federations_without_harm() -> None:
    """Ten clients with few and many discordant samples, of which each falls to either model with probability 1/2."""
    generator, totals, trials = rng(6), np.array([0, 2, 4, 5, 6, 8, 10, 15, 20, 40]), 1500
    table = {(b, n): mcnemar(int(b), int(n - b)) for n in totals for b in range(n + 1)}
    smallest = np.array([0.5**n for n in totals])
    wrong = 0
    for _ in range(trials):
        drawn = generator.binomial(totals, 0.5)
        p = np.array([table[b, n].worse for b, n in zip(drawn.tolist(), totals.tolist(), strict=True)])
        wrong += bool(np.nanmin(corrected(p, smallest, 0.05)) <= 0.05)
    assert binom.sf(wrong - 1, trials, 0.05) > 1e-4
    assert wrong
