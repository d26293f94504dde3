"""What harm is, and the one tolerance with which losses are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.harm import (
    OUTLIER,
    STRICT,
    below_floor,
    ceiling,
    entitlement,
    holds,
    not_above,
    resolution,
)
from dqnfed_flwr.types import ClientTask

losses = st.floats(0, 1e6)
any_loss = st.floats(-1e6, 1e6)
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


@given(st.lists(losses, min_size=1, max_size=9), st.floats(0, 1), st.integers(0, 3), st.floats(-1e3, 1e3))
def test_a_share_counts_from_the_floor(found: list[float], share: float, liars: int, floor: float) -> None:
    """A loss with a constant added, and the floor with it, has the entitlement with it."""
    plain = entitlement(found, 0.0, share, liars)
    shifted = entitlement([loss + floor for loss in found], 0.0, share, liars, floor=floor)
    if share and len(found) > liars:
        assert shifted == pytest.approx(plain + floor, abs=1e-6)
        assert shifted >= floor


def test_a_share_of_a_loss_with_a_floor_by_hand() -> None:
    assert entitlement([-1.0, 1.0, 3.0], 0.0, 0.5, 0, floor=-3.0) == -1.0


@given(st.lists(any_loss, min_size=1, max_size=9), st.floats(0.01, 1))
def test_without_a_floor_a_loss_below_0_makes_the_form_strict(found: list[float], share: float) -> None:
    below = min(found) < 0
    assert (entitlement(found, 0.0, share, 0, floor=None) == STRICT) == below
    if not below:
        assert entitlement(found, 0.0, share, 0, floor=None) == entitlement(found, 0.0, share, 0)
    assert entitlement([abs(loss) for loss in found], 0.0, share, 0, STRICT, floor=None) == STRICT  # and never back


@given(st.lists(losses, min_size=3, max_size=9), st.floats(-1e60, -1e-9))
def test_one_liar_below_0_does_not_make_it_strict(found: list[float], claimed: float) -> None:
    assert entitlement([*found, claimed], 0.0, 0.5, 1, floor=None) >= 0
    assert entitlement([*found, claimed], 0.0, 0.5, 0, floor=None) == STRICT


@given(any_loss, any_loss, st.lists(any_loss, max_size=5), st.sampled_from([None, 0.0, -2e6]))
def test_with_an_entitlement_of_0_no_loss_may_rise_whatever_its_sign(
    before: float, after: float, others: list[float], floor: float | None
) -> None:
    level = entitlement([before, *others], 0.0, 0.0, 0, floor=floor)
    fell = after <= before + resolution(before)
    assert holds(after, 1.0, task(before, level=level), armijo=0.0) == fell
    assert bool(not_above([after], [before], level)[0]) == fell
    assert (improved_ratio([before], [after]) == 1.0) == fell  # (29), whatever the entitlement was


@given(any_loss)
def test_a_level_below_0_is_a_loss_as_it_is(level: float) -> None:
    assert entitlement([-3.0, 5.0], level, 0.0, 0, floor=None) == (level or STRICT)


@pytest.mark.parametrize(("loss", "floor", "below"), [(-1e-12, 0.0, False), (-1e-6, 0.0, True), (-9.0, None, False)])
def test_rounding_is_not_below_the_floor(loss: float, floor: float | None, below: bool) -> None:
    assert below_floor(loss, floor) is below
