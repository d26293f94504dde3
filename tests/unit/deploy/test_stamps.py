"""A clock measured by what another is willing to believe."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.deploy.stamps import AHEAD, BEHIND, measured


def server(skew: float) -> Callable[[float], bool]:
    """Flower's rule, at a server behind whose clock this one is `-skew` seconds."""
    return lambda ahead: -BEHIND < skew + ahead < AHEAD


@given(st.floats(-80_000, 80_000))
def test_it_finds_by_how_much_clocks_differ(skew: float) -> None:
    assert measured(server(skew)) == pytest.approx(skew, abs=0.5)


@pytest.mark.parametrize("skew", [90_000, -90_000, 1e9])
def test_beyond_a_day_it_gives_up(skew: float) -> None:
    assert measured(server(skew)) == math.inf


def test_a_server_that_says_nothing_is_asked_once() -> None:
    asked: list[float] = []
    assert measured(asked.append) is None  # append returns None
    assert asked == [0.0]
