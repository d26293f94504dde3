"""FedFV against examples worked out by hand."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods.fedfv import FedFV, project, project_off_absent
from tests.helpers.gradient_sets import conflicting_set, random_set
from tests.helpers.rounds import decide

ROWS = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -2.0]])


def fedfv(**settings: Any) -> FedFV:
    return FedFV(resolve(Settings.from_mapping({"method": "fedfv", **settings})))


def test_three_clients_by_hand() -> None:
    # Client 2 has the largest loss and keeps its row, as ceil(0.1 * 2) = 1.
    # g0 . g1 = -1, |g1|^2 = 2: (1, 0) + 1/2 (-1, 1) = (1/2, 1/2); its product with g2 is -1, |g2|^2 = 4: (1/2, 0).
    # g1 . g0 = -1, |g0|^2 = 1: (0, 1); its product with g2 is -2: (0, 0).
    # Sum (1/2, -2) of length sqrt(4.25); the plain mean (0, -1/3) is 1/3 long.
    solved = decide(fedfv(), ROWS, losses=[1.0, 2.0, 3.0])
    np.testing.assert_allclose(solved.step, np.array([0.5, -2.0]) / sqrt(4.25) / 3, rtol=1e-12)
    assert solved.combination.status == "converged"


def test_conflicts_are_met_in_order_of_rising_loss() -> None:
    # Order 1, 2, 0; client 0 keeps (1, 0).
    # g1 off g2: (-1, 1) + 1/2 (0, -2) = (-1, 0); off g0: (0, 0).
    # g2 off g1: (0, -2) + (-1, 1) = (-1, -1); off g0: (0, -1). The other way round it would end at (-1, -1).
    # Sum (1, -1).
    solved = decide(fedfv(), ROWS, losses=[3.0, 1.0, 2.0])
    np.testing.assert_allclose(solved.step, np.array([1.0, -1.0]) / sqrt(2) / 3, rtol=1e-12)


@pytest.mark.parametrize(("alpha", "direction"), [(0.0, [1.0, 3.0]), (1.0, [-0.2, 2.4])])
def test_alpha_is_the_share_left_alone(alpha: float, direction: list[float]) -> None:
    # g0 = (1, 0) and g1 = (-1, 2) conflict by -1; |g1|^2 = 5; the plain mean (0, 1) has length 1.
    # alpha 0: (1, 0) + 1/5 (-1, 2) = (4, 2)/5 and (-1, 2) + (1, 0) = (0, 2), together (4, 12)/5.
    # alpha 1 keeps ceil(1 * 1) = 1 of two, g1: (4, 2)/5 + (-1, 2) = (-1, 12)/5.
    grads = np.array([[1.0, 0.0], [-1.0, 2.0]])
    step = decide(fedfv(**{"fedfv.alpha": alpha}), grads, losses=[1.0, 2.0]).step
    np.testing.assert_allclose(step, np.array(direction) / np.linalg.norm(direction), rtol=1e-12)


def test_clients_absent_since_last_round_are_heeded() -> None:
    # Round 1: two clients at (1, 0). Round 2: two others at (-1, 1), whose mean opposes both: it is projected off
    # (2, 0), which leaves (0, 1), and gets the length sqrt(2) back. In round 3 nobody remembers round 1, with tau 1.
    first, later = np.array([[1.0, 0.0]] * 2), np.array([[-1.0, 1.0]] * 2)
    half = {"clients": 4, "participation": 0.5}
    for tau, third in ((1, [-1.0, 1.0]), (2, [0.0, sqrt(2)])):
        method = fedfv(**half, **{"fedfv.tau": tau})
        assert method.reference_rows == min(2 * tau, 3)
        decide(method, first, clients=[0, 1], number=1)
        second = decide(method, later, clients=[2, 3], number=2)
        np.testing.assert_allclose(second.step, [0.0, sqrt(2)], atol=1e-12)
        assert second.combination.notes == {"absent": 2.0, "absent_conflicts": 2.0}
        np.testing.assert_allclose(decide(method, later, clients=[2, 3], number=3).step, third, atol=1e-12)


def test_the_absent_of_one_round_are_met_as_their_sum() -> None:
    # The mean (-1, -2, 1), of length sqrt(6), conflicts with (1, 0, 0) by -1 and with (0, 1, 0) by -2, not with
    # (0, 0, 3). Off the sum (1, 1, 0), of product -3 and squared length 2: (1/2, -1/2, 1), of length sqrt(3/2).
    # Off one of the two alone it would be (0, -2, 1) or (-1, 0, 1), off one after the other (0, 0, 1).
    method = fedfv(**{"clients": 6, "participation": 0.5, "fedfv.tau": 1})
    decide(method, np.diag([1.0, 1.0, 3.0]), clients=[0, 1, 2], number=1)
    solved = decide(method, np.array([[-1.0, -2.0, 1.0]] * 3), clients=[3, 4, 5], number=2)
    np.testing.assert_allclose(solved.step, [1.0, -1.0, 2.0], rtol=1e-12)
    assert solved.combination.notes == {"absent": 3.0, "absent_conflicts": 2.0}


@pytest.mark.parametrize(
    ("rounds", "expected", "conflicts"),
    [
        ([4, 4, 4], [1 / 3, -4 / 3, 2 / 3], 3),  # (-1, -2, 0) off the sum (2, 1, 1): the product is -4, its square 6
        ([4, 4, 5], [0.5, -0.5, 0.0], 2),  # off the sum (1, 1, 0), and then nothing opposes (1, 0, 1)
        ([3, 4, 5], [0.0, 0.0, 0.0], 2),  # off (1, 0, 0), and then off (0, 1, 0)
    ],
)
def test_the_rounds_of_the_absent_are_met_one_after_the_other(
    rounds: list[int], expected: list[float], conflicts: int
) -> None:
    rows = np.array([[-1.0, -2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    mean, met = project_off_absent(np.array([1.0, 0.0, 0.0, 0.0]), rows @ rows.T, rounds)
    np.testing.assert_allclose(mean @ rows, expected, atol=1e-12)
    assert met == conflicts


def test_absent_clients_survive_a_restart() -> None:
    rng = np.random.default_rng(1)
    settings = {"clients": 6, "participation": 0.5, "fedfv.tau": 2}
    method, restored = fedfv(**settings), fedfv(**settings)
    decide(method, random_set(rng, 3, 8), clients=[0, 1, 2], number=1)
    restored.restore_state({name: np.array(value) for name, value in method.export_state().items()})
    grads = random_set(rng, 3, 8)
    one, other = (decide(m, grads, clients=[2, 3, 5], number=2) for m in (method, restored))
    assert np.array_equal(one.step, other.step)
    assert one.combination.notes["absent"] == 2


def test_full_participation_copies_no_row() -> None:
    method = fedfv()
    assert method.reference_rows == 0
    decide(method, ROWS, losses=[1.0, 2.0, 3.0])
    assert method.export_state() == {}


@given(seed=st.integers(0, 1000), unit=st.sampled_from(["sgd", "gradient"]))
def test_without_conflicts_it_is_the_plain_mean(seed: int, unit: str) -> None:
    grads = np.abs(random_set(np.random.default_rng(seed), 5, 7))  # no product is negative
    step = decide(fedfv(**{"local.work": unit, "local.lr": 0.5}), grads).step
    np.testing.assert_allclose(step, (0.5 if unit == "gradient" else 1.0) * grads.mean(axis=0), rtol=1e-12)


@given(seed=st.integers(0, 1000))
def test_a_row_ends_without_conflict_with_the_last_it_was_projected_off(seed: int) -> None:
    grads = conflicting_set(np.random.default_rng(seed), 5, 9)
    projected = project(0, [4, 2, 0, 1, 3], grads @ grads.T) @ grads
    assert projected @ grads[3] >= -1e-12
    # The same, one vector after the other.
    vector = grads[0].copy()
    for other in (4, 2, 1, 3):
        vector -= min(vector @ grads[other], 0) / (grads[other] @ grads[other]) * grads[other]
    np.testing.assert_allclose(projected, vector, atol=1e-12)


def test_a_mean_that_cancels_gives_no_step() -> None:
    solved = decide(fedfv(**{"fedfv.alpha": 0}), np.array([[1.0, 2.0], [-2.0, -4.0]]), losses=[1.0, 2.0])
    assert (solved.norm, solved.combination.status) == (0.0, "stationary")
