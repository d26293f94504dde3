from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.guarantee.harm import resolution
from dqnfed_flwr.types import ClientTask, Probe


def task(factor: float, *, grow: bool = False, halvings: int = 0, loss: float = 1.0, slope: float = 1.0) -> ClientTask:
    return ClientTask(2, 2, probe=True, factor=factor, grow=grow, halvings=halvings, reference_loss=loss, slope=slope)


class Losses:
    """f(a) of a table; remembers what was asked."""

    def __init__(self, table: dict[float, float]) -> None:
        self.table = table
        self.asked: list[float] = []

    def __call__(self, factor: float) -> float:
        self.asked.append(factor)
        return self.table[factor]


def test_a_candidate_that_holds_is_one_pass() -> None:
    losses = Losses({1.0: 0.5})
    assert probe(losses, task(1.0, halvings=6), 0.1) == Probe(0.5, True)
    assert losses.asked == [1.0]


@pytest.mark.parametrize(("double", "grown"), [(0.4, True), (0.85, False), (1.1, False)])
def test_growing_tests_twice_the_factor(double: float, grown: bool) -> None:
    losses = Losses({1.0: 0.5, 2.0: double})
    assert probe(losses, task(1.0, grow=True), 0.1) == Probe(0.5, True, grown_holds=grown)
    assert losses.asked == [1.0, 2.0]


def test_a_failing_candidate_is_halved_until_it_holds() -> None:
    losses = Losses({8.0: math.inf, 4.0: math.nan, 2.0: 1.5, 1.0: 0.95, 0.5: 0.94})
    found = probe(losses, task(8.0, grow=True, halvings=6), 0.1)
    assert found.loss == math.inf
    assert (found.holds, found.grown_holds, found.back_factor, found.back_loss) == (False, None, 0.5, 0.94)
    assert losses.asked == [8.0, 4.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize("holding", [0.5, 1.5])
def test_a_ladder_is_one_pass_a_rung(holding: float) -> None:
    losses = Losses({4.0: math.inf, 2.0: 0.9, 1.0: holding, 0.5: 0.8})
    asked = ClientTask(2, 2, probe=True, factor=1.0, rungs_above=2, rungs_below=1, reference_loss=1.0, slope=1.0)
    found = probe(losses, asked, 0.1)
    assert found == Probe(holding, holding < 1, losses=(math.inf, 0.9, holding, 0.8))
    assert losses.asked == [1.0, 4.0, 2.0, 0.5]


def test_halvings_are_limited() -> None:
    losses = Losses({1.0: 2.0, 0.5: 2.0, 0.25: 2.0, -0.25: 1.5})
    assert probe(losses, task(1.0, halvings=2), 0.1) == Probe(2.0, False, behind_loss=1.5)
    assert losses.asked == [1.0, 0.5, 0.25, -0.25]
    assert probe(Losses({1.0: 2.0}), task(1.0), 0.1) == Probe(2.0, False)


def test_where_only_the_last_half_suits_the_loss_behind_is_told() -> None:
    losses = Losses({1.0: 2.0, 0.5: 2.0, 0.25: 0.9, -0.25: 1.2})
    asked = task(1.0, halvings=2)
    assert probe(losses, asked, 0.1) == Probe(2.0, False, back_factor=0.25, back_loss=0.9, behind_loss=1.2)
    assert losses.asked == [1.0, 0.5, 0.25, -0.25]


def test_a_client_below_its_entitlement_tests_against_that() -> None:
    losses = Losses({4.0: 2.1, 2.0: 1.9, 1.0: 0.5})
    served = ClientTask(
        2, 2, probe=True, factor=1.0, grow=True, halvings=2, reference_loss=0.4, slope=1.0, entitlement=2.0
    )
    assert probe(losses, served, 0.1) == Probe(0.5, True, grown_holds=True)  # a rise to 1.9 is below 2 as well
    assert probe(losses, replace(served, factor=2.0), 0.1) == Probe(1.9, True, grown_holds=False)
    refused = probe(losses, replace(served, factor=4.0), 0.1)
    assert (refused.holds, refused.back_factor, refused.back_loss) == (False, 2.0, 1.9)


@given(
    curvature=st.floats(0.01, 100),
    slope=st.floats(0.01, 10),
    factor=st.floats(1e-3, 100),
    armijo=st.floats(1e-4, 0.4),
)
def test_on_a_parabola_the_test_holds_up_to_the_known_factor(
    curvature: float, slope: float, factor: float, armijo: float
) -> None:
    # f(a) = 1 - a slope + a^2 curvature / 2 is at most 1 - armijo a slope + r up to the larger root.
    fall = (1 - armijo) * slope
    largest = (fall + math.sqrt(fall**2 + 2 * curvature * resolution(1.0))) / curvature
    asked = task(factor, halvings=40, slope=slope)
    found = probe(lambda a: 1 - a * slope + a * a * curvature / 2, asked, armijo)
    accepted = factor if found.holds else found.back_factor
    assert accepted is not None
    assert accepted <= largest * (1 + 1e-6) + 1e-9
    if not found.holds:
        assert 2 * accepted >= largest * (1 - 1e-6) - 1e-9
