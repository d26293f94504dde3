"""Which clients are held to a rate, and how far rates may spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.dqn_fed.anchored import MAX_INVERSE_CURVATURE, fit_clients, limit_spread
from dqnfed_flwr.types import RoundBatch

positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9)


def batch(norms: list[float], rates: list[float]) -> RoundBatch:
    count = len(norms)
    clients = tuple(range(10, 10 + count))
    return RoundBatch(np.diag(norms), np.ones(count), np.array(rates), np.full(count, 1 / count), clients, 1)


@pytest.mark.parametrize(
    ("squared_norm", "rate", "reason"),
    [
        (4.0, 0.5, None),
        (4.0, 4 * MAX_INVERSE_CURVATURE, None),
        (4.0, 5 * MAX_INVERSE_CURVATURE, "bad-rate"),
        (4.0, 0.0, "bad-rate"),
        (4.0, -1.0, "bad-rate"),
        (4.0, float("nan"), "bad-rate"),
        (4.0, float("inf"), "bad-rate"),
        (0.0, 1.0, "zero-gradient"),
        (0.0, 0.0, "zero-gradient"),
    ],
)
def test_a_client_without_gradient_or_believable_rate_is_left_out(
    squared_norm: float, rate: float, reason: str | None
) -> None:
    mask, excluded = fit_clients(batch([1.0, squared_norm], [1.0, rate]), spread=0)
    assert list(mask) == [True, reason is None]
    assert excluded == ({} if reason is None else {11: reason})


@pytest.mark.parametrize("squared_norm", [1e-200, 1e-12, 4.0, 1e12])
def test_where_rates_are_held_near_their_median_no_curvature_is_too_small(squared_norm: float) -> None:
    mask, excluded = fit_clients(batch([1.0, squared_norm, 0.0], [1.0, 1e14, 1.0]), spread=4.0)
    assert (list(mask), excluded) == ([True, True, False], {12: "zero-gradient"})


def test_rates_are_held_within_the_factor_of_their_median() -> None:
    # d / |g|^2 = 1/8, 1, 1, 4: the median is 1, the factor 2.
    squared_norms = np.array([8.0, 1.0, 3.0, 2.0])
    limited = limit_spread(np.array([1.0, 1.0, 3.0, 8.0]), squared_norms, 2.0)
    np.testing.assert_array_equal(limited, [4.0, 1.0, 3.0, 4.0])


@given(positive)
def test_no_limit_leaves_rates_alone(rates: list[float]) -> None:
    assert np.array_equal(limit_spread(np.array(rates), np.ones(len(rates)), 0), rates)


@given(positive)
def test_the_tightest_limit_makes_rates_proportional_to_the_squared_gradients(rates: list[float]) -> None:
    squared_norms = np.arange(1.0, len(rates) + 1)
    limited = limit_spread(np.array(rates), squared_norms, 1.0)
    np.testing.assert_allclose(limited / squared_norms, (limited / squared_norms)[0], rtol=1e-12)


@given(positive, st.floats(1, 100))
def test_limited_rates_keep_their_order_and_the_bound(rates: list[float], spread: float) -> None:
    limited = limit_spread(np.array(rates), np.ones(len(rates)), spread)
    median = np.median(rates)
    assert (limited <= median * spread * (1 + 1e-12)).all()
    assert (limited >= median / spread * (1 - 1e-12)).all()
    assert (np.diff(limited[np.argsort(rates)]) >= 0).all()


@pytest.mark.parametrize("spread", [0.01, 0.5, 0.999])
def test_a_spread_below_one_is_refused(spread: float) -> None:
    with pytest.raises(ConfigError, match=rf"rate-spread: found {spread:g}; give a factor of at least 1, or 0"):
        Settings.from_mapping({"dqn-fed.rate-spread": spread})
