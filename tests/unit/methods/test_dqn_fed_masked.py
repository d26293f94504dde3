from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.masked import MOST
from dqnfed_flwr.masked.sketch import LONGEST
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.dqn_fed.masked import MaskedAnchored, spread_out
from dqnfed_flwr.types import Sees
from tests.helpers.gradient_sets import conflicting_set
from tests.helpers.rounds import decide

LR = 0.1
"""The default of `local.lr`."""


def made(mode: str = "masked", **settings: object) -> Method:
    """DQN-Fed of ten clients, over momentum fed with gradients."""
    given_settings = {"privacy.mode": mode, "dqn-fed.anchor": "momentum", "dqn-fed.anchor-work": "gradient", **settings}
    return make_method(resolve(Settings.from_mapping(given_settings)))


def test_masked_run_takes_momentum_by_itself_and_sees_products_alone() -> None:
    plan = resolve(Settings.from_mapping({"privacy.mode": "masked", "local.epochs": 3}))
    assert plan.anchor is not None
    assert (plan.anchor.method.name, plan.anchor.work.name) == ("momentum", "gradient")
    method = make_method(plan)
    assert isinstance(method, MaskedAnchored)
    assert method.sees == Sees.PRODUCTS
    assert method.extras(7).figures == ("along",)
    alone = make_method(resolve(Settings.from_mapping({"privacy.mode": "masked", "dqn-fed.anchor": "fedsgd"})))
    assert alone.extras(7).figures == ()


@given(st.integers(4, 12), st.integers(0, 200))
def test_first_step_is_that_of_open_rows_where_no_client_gets_too_much(clients: int, seed: int) -> None:
    grads = conflicting_set(np.random.default_rng(seed), clients, 40)
    masked, opened = (decide(made(mode), grads) for mode in ("masked", "open"))
    weights = masked.combination.weights[:clients]
    assert (weights >= LR / clients - 1e-12).all()
    assert weights.max() <= MOST * weights.sum()
    if masked.combination.notes["floor"] == 1:
        np.testing.assert_allclose(masked.step, opened.step, rtol=1e-6, atol=1e-9)
    assert masked.slopes.min() > 0


@given(st.integers(0, 100), st.floats(2.0, 60.0))
def test_who_asks_for_much_gets_it_with_no_more_than_half_of_the_weights(seed: int, factor: float) -> None:
    """One short gradient against the others': its row alone would make most of the correction."""
    draw = np.random.default_rng(seed)
    common = draw.standard_normal(30)
    grads = np.vstack([common + 0.1 * draw.standard_normal((5, 30)), 0.3 * draw.standard_normal(30) - common / factor])
    found = decide(made(), grads)
    weights = found.combination.weights[:6]
    if found.combination.status != "stationary":
        assert weights.max() <= MOST * weights.sum()
        assert (weights >= LR / 6 - 1e-12).all()
        assert found.slopes.min() > 0 or found.combination.notes["capped"]


def test_floor_rises_where_a_client_would_get_too_much() -> None:
    """By hand, in units of eta: with floor 1 client 5 gets 1/6 + 1.03 of 2.03; with floor 2 1/3 + 0.41 of 2.41."""
    grads = np.vstack([np.tile([1.0, 0.0], (5, 1)), [[0.05, 0.3]]])
    found = decide(made(), grads, rates=[1.0] * 5 + [2 * 0.0925])
    assert found.combination.notes == {"floor": 2.0, "anchor_reset": 0.0}
    assert found.combination.weights[5] / LR == pytest.approx(1 / 3 + 0.4111, abs=1e-4)
    assert found.combination.weights[:6].sum() / LR == pytest.approx(2.4111, abs=1e-4)
    assert found.slopes.min() > 0


def test_demands_have_a_margin_where_rows_are_sketches() -> None:
    """It is |g_k| |eta g| / sqrt(m), g the mean gradient."""
    grads = np.zeros((6, LONGEST))
    grads[:, :40] = conflicting_set(np.random.default_rng(3), 6, 40)
    wide, short = decide(made(), grads), decide(made(), grads[:, :40])
    norms, mean = np.linalg.norm(grads, axis=1), LR * np.linalg.norm(grads.mean(axis=0))
    assert wide.combination.notes["floor"] == short.combination.notes["floor"]
    floor = wide.combination.weights[:6] > LR / 6 * (1 + 1e-9)
    binding = floor & (short.combination.weights[:6] > LR / 6 * (1 + 1e-9))
    assert binding.any()
    more = (wide.slopes - short.slopes)[binding]
    np.testing.assert_allclose(more, norms[binding] * mean / np.sqrt(LONGEST), rtol=1e-6)


@pytest.mark.parametrize("clients", [4, 7])
def test_shares_are_left_alone_or_brought_below_what_a_sum_allows(clients: int) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(clients, 5.0))
    np.testing.assert_array_equal(spread_out(shares), shares)
    uneven = np.array([0.9, *[0.1 / (clients - 1)] * (clients - 1)])
    found = spread_out(uneven)
    assert found.max() == pytest.approx(0.98 * MOST)
    assert found.sum() == pytest.approx(1.0)
    assert (np.argsort(found, kind="stable") == np.argsort(uneven, kind="stable")).all()
