from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.guidance import angle
from tests.helpers.rounds import decide

LOSSES = st.lists(st.floats(0, 50), min_size=2, max_size=8)


def fedeba(tau: float = 0.5, alpha: float = 0.5, angle: float = 45.0, rate: float = 1.0) -> Method:
    own = {"fedeba.tau": tau, "fedeba.alpha": alpha, "fedeba.angle": angle}
    return make_method(
        resolve(Settings.from_mapping({"method": "fedeba+", "local.work": "gradient", "local.lr": rate, **own}))
    )


def test_by_hand() -> None:
    losses = [0.0, 2 * math.log(3)]  # 45 degrees from equal ones
    fair = decide(fedeba(tau=2.0, angle=44.0, rate=0.1), np.eye(2), losses=losses)
    np.testing.assert_allclose(fair.step, [0.1 * 1 / 4, 0.1 * 3 / 4], rtol=1e-12)
    assert fair.combination.notes["model_alignment"] == 0
    aligned = decide(fedeba(tau=2.0, alpha=0.4, angle=46.0, rate=0.1), np.eye(2), losses=losses)
    np.testing.assert_allclose(aligned.step, [0.1 * (0.6 / 4 + 0.2), 0.1 * (0.6 * 3 / 4 + 0.2)], rtol=1e-12)
    assert aligned.combination.notes["model_alignment"] == 1
    assert aligned.combination.notes["angle"] == pytest.approx(45)


@pytest.mark.parametrize(
    ("losses", "degrees"),
    [([3, 3, 3], 0), ([0, 0], 0), ([1, 0], 45), ([1, 0, 0, 0], 60), ([1e200, 0], 45), ([math.sqrt(3), 0, 0], 54.7356)],
)
def test_angles_by_hand(losses: list[float], degrees: float) -> None:
    assert angle(np.array(losses, np.float64)) == pytest.approx(degrees, abs=1e-4)


@given(losses=LOSSES, tau=st.floats(0.05, 10), alpha=st.floats(0, 1))
def test_the_weights_are_a_softmax_mixed_with_the_mean(losses: list[float], tau: float, alpha: float) -> None:
    rows, fair = np.eye(len(losses)), softmax(np.array(losses) / tau)
    never = decide(fedeba(tau, alpha, 0.0), rows, losses=losses).combination
    always = decide(fedeba(tau, alpha, 90.0), rows, losses=losses).combination
    if never.notes["angle"] > 0:
        np.testing.assert_allclose(never.weights, fair, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(always.weights, (1 - alpha) * fair + alpha / len(losses), rtol=1e-9, atol=1e-12)


@given(losses=LOSSES)
def test_a_higher_loss_has_no_lower_weight(losses: list[float]) -> None:
    found = decide(fedeba(), np.eye(len(losses)), losses=losses).combination.weights
    order = np.argsort(losses)
    assert (np.diff(found[order]) >= -1e-15).all()
    assert found.sum() == pytest.approx(1)


def test_sample_shares_do_not_count() -> None:
    for examples in ([1, 1], [1, 99]):
        found = decide(fedeba(), np.eye(2), losses=[1, 1], examples=examples).combination.weights
        np.testing.assert_allclose(found, [0.5, 0.5], rtol=1e-12)
