"""What harm is, and the one tolerance with which losses are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.harm import OUTLIER, ceiling, entitlement, holds, not_above, resolution
from dqnfed_flwr.types import ClientTask

losses = st.floats(0, 1e6)
many = st.lists(losses, min_size=1, max_size=12)


def task(loss: float, slope: float = 0.0, level: float = 0.0) -> ClientTask:
    return ClientTask(1, 1, probe=True, factor=1.0, reference_loss=loss, slope=slope, entitlement=level)


@given(many, st.floats(0, 10))
def test_a_number_is_the_entitlement_whatever_the_losses_are(found: list[float], level: float) -> None:
    assert entitlement(found, level, 0.0, 0) == level


def test_a_share_is_one_of_the_mean_loss() -> None:
    assert entitlement([1.0, 2.0, 3.0], 0.0, 0.5, 0) == pytest.approx(1.0)


@given(st.lists(losses, min_size=3, max_size=12), st.floats(0, 1e12))
def test_one_liar_cannot_raise_the_typical_loss_above_the_honest_ones_own(found: list[float], claimed: float) -> None:
    honest = entitlement(found, 0.0, 0.5, 0)
    assert entitlement([*found, claimed], 0.0, 0.5, 1) <= max(honest, 0.5 * float(np.mean(found))) + 1e-9


@given(st.lists(losses, min_size=3, max_size=12), st.floats(0, math.inf))
def test_without_liars_no_single_loss_counts_for_more_than_its_limit(found: list[float], claimed: float) -> None:
    together = np.array([*found, claimed])
    limit = OUTLIER * float(np.median(together))
    assert entitlement(together, 0.0, 1.0, 0) == pytest.approx(float(np.minimum(together, limit).mean()))


@given(many, st.floats(0, 1), st.floats(0, 10))
def test_it_never_rises(found: list[float], share: float, before: float) -> None:
    assert entitlement(found, 0.0, share, 0, before) <= before


@given(losses, losses, st.floats(0, 5))
def test_vote_and_event_agree(before: float, after: float, level: float) -> None:
    """A client accepts exactly the losses that do it no harm, where nothing more is asked of the step."""
    accepted = holds(after, 1.0, task(before, level=level), armijo=0.0)
    assert accepted == bool(not_above([after], [before], level)[0])
    assert accepted == (improved_ratio([before], [after], level) == 1.0)
    assert accepted == (after <= ceiling(before, level))


@given(losses, losses, st.floats(0, 5))
def test_the_finer_vote_on_a_float64_model_accepts_no_loss_that_does_harm(
    before: float, after: float, level: float
) -> None:
    if holds(after, 1.0, task(before, level=level), armijo=0.0, dtype="float64"):
        assert not_above([after], [before], level)[0]


def test_twice_the_newton_step_is_refused_close_to_the_minimum() -> None:
    """f(x) = 0.15 + x^2 / 2 has the same value there; float32 could not tell it from a fall, float64 can."""
    x = 1e-4
    doubled = task(0.15 + x**2 / 2, slope=x**2)
    assert holds(doubled.reference_loss, 2.0, doubled, armijo=1e-4, dtype="float32")
    assert not holds(doubled.reference_loss, 2.0, doubled, armijo=1e-4, dtype="float64")
    assert holds(0.15, 1.0, doubled, armijo=1e-4, dtype="float64")


@given(losses)
def test_the_same_loss_and_a_rounding_more_do_no_harm(loss: float) -> None:
    assert not_above([loss, loss + resolution(loss) / 2], [loss, loss]).all()
    assert not not_above([loss + 3 * resolution(loss)], [loss])[0]


def test_losses_near_zero_are_compared_with_an_absolute_floor() -> None:
    assert not_above([1.6e-16], [0.0])[0]
    assert not not_above([1e-8], [0.0])[0]


@pytest.mark.parametrize("after", [math.nan, math.inf])
def test_what_is_no_number_harms(after: float) -> None:
    assert not not_above([after], [1.0], 100.0)[0] or math.isinf(after)
    assert not holds(after, 1.0, task(1.0, level=100.0), 0.0)


def test_who_is_below_the_entitlement_may_rise_but_not_above_it() -> None:
    assert holds(0.4, 1.0, task(0.1, slope=1.0, level=0.5), armijo=0.5)
    assert not holds(0.6, 1.0, task(0.1, slope=1.0, level=0.5), armijo=0.5)


def test_who_is_above_it_must_fall_by_the_armijo_amount() -> None:
    assert holds(0.94, 1.0, task(1.0, slope=0.5, level=0.5), armijo=0.1)
    assert not holds(0.96, 1.0, task(1.0, slope=0.5, level=0.5), armijo=0.1)


def test_a_rise_that_its_gradient_foresees_is_harm_all_the_same() -> None:
    assert not holds(1.1, 1.0, task(1.0, slope=-0.5), armijo=0.5)
    assert holds(1.0, 1.0, task(1.0, slope=-0.5), armijo=0.5)
