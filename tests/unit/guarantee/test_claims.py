"""Claims that contradict each other, and honest ones that do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.guarantee.overrule import (
    accusation,
    broken_promise,
    differ,
    falls_behind,
    falls_behind_a_flat_start,
    infinite_everywhere,
    refuses_against_its_gradient,
    two_losses,
)
from dqnfed_flwr.types import ClientTask, Probe

HALVINGS = 4


def refusal(
    loss: float = 2.0, back: float | None = None, back_loss: float | None = None, behind: float | None = None
) -> Probe:
    return Probe(loss, False, back_factor=back, back_loss=back_loss, behind_loss=behind)


def test_two_losses_of_one_model_are_named_with_both_numbers() -> None:
    words = two_losses("it reported", 2.3, "and later", 0.0)
    assert "2.3" in words
    assert " 0;" in words
    assert "draws at random does that, too" in words
    assert two_losses("it reported", 2.3, "and later", 2.3 * (1 + 1e-7)) == ""


def test_only_what_no_honest_reader_can_say_is_called_a_contradiction() -> None:
    drawn = two_losses("it reported", 2.3, "and later", 2.4)
    assert accusation(drawn) == drawn
    assert accusation("7 samples; the node registered 5") == "contradicts itself: 7 samples; the node registered 5"
    promised = broken_promise(refusal(2.0), (0.25, 1.0), 0.25)
    assert "contradicts" not in accusation(promised)


@pytest.mark.parametrize(
    ("one", "other", "found"), [(math.inf, math.inf, False), (math.inf, 1.0, True), (0, 1e-9, False)]
)
def test_infinite_losses_are_equal_and_tiny_ones_too(one: float, other: float, found: bool) -> None:
    assert differ(one, other) is found


def test_refusing_the_factor_that_it_named_is_a_contradiction_only_with_another_loss() -> None:
    assert "0.25" in broken_promise(refusal(2.0), (0.25, 1.0), 0.25)
    assert broken_promise(refusal(1.0), (0.25, 1.0), 0.25) == ""
    assert broken_promise(refusal(2.0), (0.5, 1.0), 0.25) == ""
    assert broken_promise(Probe(0.9, True), (0.25, 1.0), 0.25) == ""
    assert broken_promise(refusal(2.0), None, 0.25) == ""


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 10.0), st.booleans())
def test_an_honest_client_with_a_convex_loss_contradicts_itself_never(
    seed: int, curvature: float, offset: float, factor: float, sharp: bool
) -> None:
    """Whatever its curvature: it may refuse every rung, but then its loss rises behind the model as well."""
    rng = np.random.default_rng(seed)
    center, step = offset * rng.standard_normal(3), rng.standard_normal(3)
    bend = curvature * (1e6 if sharp else 1.0) * rng.uniform(0.1, 1.0, 3)

    def loss_at(a: float) -> float:
        return float(0.5 * bend @ (center + a * step) ** 2)

    slope = -float((bend * center) @ step)
    task = ClientTask(1, 1, probe=True, factor=factor, halvings=HALVINGS, reference_loss=loss_at(0.0), slope=slope)
    said = probe(loss_at, task, 1e-4)
    against = refuses_against_its_gradient(said, loss_at(0.0), slope, factor * 0.5**HALVINGS)
    assert not (against and falls_behind(said, loss_at(0.0)))


def test_a_row_turned_round_shows_in_the_losses_on_both_sides() -> None:
    """Its row says that the loss falls along the step; it rises there, and falls behind."""
    task = ClientTask(1, 1, probe=True, factor=1.0, halvings=HALVINGS, reference_loss=2.0, slope=1.0)
    said = probe(lambda a: 2.0 + a, task, 1e-4)
    assert refuses_against_its_gradient(said, 2.0, 1.0, 0.5**HALVINGS)
    assert falls_behind(said, 2.0)


def test_a_row_of_zeros_shows_where_the_loss_falls_on_one_side() -> None:
    task = ClientTask(1, 1, probe=True, factor=1.0, halvings=HALVINGS, reference_loss=2.0, slope=0.0)
    said = probe(lambda a: 2.0 + a + 0.1 * a**2, task, 1e-4)
    assert refuses_against_its_gradient(said, 2.0, 0.0, 0.5**HALVINGS)
    assert falls_behind_a_flat_start(said, 2.0)


@pytest.mark.parametrize("behind", [None, 2.5, 2.0, 2.0 - 1e-6])
def test_a_loss_that_is_flat_may_refuse_every_length(behind: float | None) -> None:
    """It rises on both sides; what rounding does to it is no fall, and silence is none either."""
    assert not falls_behind_a_flat_start(refusal(3.0, behind=behind), 2.0)


def test_who_does_not_say_what_is_behind_counts_as_falling_there() -> None:
    assert falls_behind(refusal(), 1.0)
    assert not falls_behind(refusal(behind=1.5), 1.0)


def test_refusing_a_step_that_its_gradient_does_not_ask_for_is_none() -> None:
    assert not refuses_against_its_gradient(refusal(2.0), 1.0, slope=-1.0, last_rung=0.1)


def test_a_factor_above_the_last_rung_is_a_wish_and_no_contradiction() -> None:
    assert not refuses_against_its_gradient(refusal(2.0, back=0.5, back_loss=0.9), 1.0, 1.0, last_rung=0.1)
    assert refuses_against_its_gradient(refusal(2.0, back=0.1, back_loss=0.9), 1.0, 1.0, last_rung=0.1)


def test_losses_that_are_finite_nowhere_are_found_where_others_are() -> None:
    fine, broken = Probe(1.0, True, losses=(1.0, math.inf)), Probe(math.inf, False, losses=(math.inf, math.inf))
    assert infinite_everywhere({0: fine, 1: broken}) == [1]
    assert infinite_everywhere({0: broken, 1: broken}) == []
