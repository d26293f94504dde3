"""FedMDFG against examples worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.fedmdfg import FedMdfg
from dqnfed_flwr.types import SearchHints
from tests.helpers.gradient_sets import conflicting_set, pareto_stationary_set, random_set, with_spread_lengths
from tests.helpers.rounds import decide

CROSSED = np.array([[2.0, 0.0], [0.0, 4.0]])
HALF = {"clients": 4, "participation": 0.5}


def fedmdfg(**settings: Any) -> FedMdfg:
    return FedMdfg(resolve(Settings.from_mapping({"method": "fedmdfg", "local.lr": 0.5, **settings})))


def test_the_search_is_its_own_rule_and_needs_gradients() -> None:
    assert resolve(Settings.from_mapping({"method": "fedmdfg"})).rule.name == "search"
    with pytest.raises(ConfigError, match="step-rule: fedfv goes with newton, fixed, clipped, probed, found 'search'"):
        Settings.from_mapping({"method": "fedfv", "step-rule": "search"})
    with pytest.raises(ConfigError, match="step-rule: search compares losses with slopes of true gradients"):
        Settings.from_mapping({"method": "fedmdfg", "local.work": "sgd"})


def test_equal_losses_by_hand() -> None:
    # Both rows get the length 3: (3, 0) and (0, 3), whose hull comes closest to 0 at (1.5, 1.5), their mean.
    solved = decide(fedmdfg(), CROSSED, losses=[1.0, 1.0])
    np.testing.assert_allclose(solved.step, [0.75, 0.75], rtol=1e-12)
    np.testing.assert_allclose(solved.combination.weights, [0.5 * 1.5 / 2, 0.5 * 1.5 / 4], rtol=1e-12)
    hints = solved.combination.hints
    assert hints.stretch == pytest.approx(1.0)
    assert replace(hints, stretch=1.0) == SearchHints()


def test_unequal_losses_by_hand() -> None:
    # Losses (1, 3) make 26.6 degrees with (1, 1): h = (-3, 1)/sqrt(10), the fairness row 3 (-3, 1)/sqrt(10), as long
    # as the other two. The hull comes closest to 0 half way from (3, 0) to it: 3/2 (1 - 3/sqrt(10), 1/sqrt(10)), along
    # (sqrt(10) - 3, 1). The second row's product with it is larger. The length becomes |(1.5, 1.5)| = 3/sqrt(2).
    solved = decide(fedmdfg(), CROSSED, losses=[1.0, 3.0])
    along = np.array([sqrt(10) - 3, 1.0])
    np.testing.assert_allclose(solved.step, 0.5 * 3 / sqrt(2) * along / np.linalg.norm(along), rtol=1e-12)
    notes, hints = solved.combination.notes, solved.combination.hints
    assert (notes["fairness"], notes["objectives_dropped"]) == (1.0, 0.0)
    assert notes["angle"] == pytest.approx(26.565, abs=1e-3)
    assert (hints.fair, hints.lost) == (True, False)
    assert hints.stretch == pytest.approx(3 / sqrt(2) / np.linalg.norm(1.5 * along / sqrt(10)))


def test_the_angle_up_to_which_losses_count_as_equal_is_a_setting() -> None:
    losses = [1.0, 1.4]  # 9.5 degrees
    assert decide(fedmdfg(), CROSSED, losses=losses).combination.notes["fairness"] == 0
    assert decide(fedmdfg(**{"fedmdfg.angle": 9.0}), CROSSED, losses=losses).combination.notes["fairness"] == 1


@pytest.mark.parametrize(("losses", "fair"), [([1.05, 0.95], 1.0), ([1.05, 1.2], 0.0), ([0.9, 0.95], 0.0)])
def test_fairness_is_pursued_when_some_losses_rose_but_not_all(losses: list[float], fair: float) -> None:
    method = fedmdfg()
    decide(method, CROSSED, losses=[1.0, 1.0], number=1)
    assert decide(method, CROSSED, losses=losses, number=2).combination.notes["fairness"] == fair


def test_clients_of_the_last_round_that_are_absent_have_a_say() -> None:
    # Round 2: both at (-1, 1), of length sqrt(2); the absent ones' (1, 0) becomes (sqrt(2), 0). Half way between the
    # two is (sqrt(2) - 1, 1)/2. The step gets the length sqrt(2) of the mean, and eta.
    method = fedmdfg(**HALF)
    decide(method, np.array([[1.0, 0.0]] * 2), clients=[0, 1], number=1)
    solved = decide(method, np.array([[-1.0, 1.0]] * 2), clients=[2, 3], number=2)
    along = np.array([sqrt(2) - 1, 1.0])
    np.testing.assert_allclose(solved.step, 0.5 * sqrt(2) * along / np.linalg.norm(along), rtol=1e-12)
    assert solved.combination.hints.lost
    assert solved.combination.notes["absent"] == 2
    # Round 3: the same clients again, nobody is lost and nobody remembered.
    third = decide(method, np.array([[-1.0, 1.0]] * 2), clients=[2, 3], number=3)
    np.testing.assert_allclose(third.step, [-0.5, 0.5], rtol=1e-12)
    assert not third.combination.hints.lost


def test_a_client_that_drops_out_under_full_participation_is_noticed() -> None:
    method = fedmdfg()
    decide(method, CROSSED, clients=[0, 1], number=1)
    solved = decide(method, CROSSED[:1], clients=[0], number=2)
    assert (solved.combination.hints.lost, solved.combination.notes["absent"]) == (True, 0.0)


def test_absent_clients_that_oppose_the_present_ones_are_dropped() -> None:
    method = fedmdfg(**HALF)
    decide(method, np.array([[-1.0, 0.0]] * 2), clients=[0, 1], number=1)
    solved = decide(method, np.array([[1.0, 0.0]] * 2), clients=[2, 3], number=2)
    np.testing.assert_allclose(solved.step, [0.5, 0.0], rtol=1e-12)
    assert solved.combination.status == "converged"
    assert solved.combination.notes["objectives_dropped"] == 1


@given(seed=st.integers(0, 1000), equal=st.booleans())
def test_equal_gradients_give_their_mean(seed: int, equal: bool) -> None:
    # With unequal losses fairness alone opposes: the same step for all leaves the small losses smaller still.
    row = np.random.default_rng(seed).standard_normal(8)
    losses = [1.0, 1.0, 1.0, 1.0 if equal else 9.0]
    solved = decide(fedmdfg(), np.tile(row, (4, 1)), losses=losses)
    np.testing.assert_allclose(solved.step, 0.5 * row, rtol=1e-12)
    assert solved.combination.notes["objectives_dropped"] == (0 if equal else 1)


@given(seed=st.integers(0, 1000), clients=st.integers(2, 7), spread=st.booleans())
def test_every_loss_falls_along_the_step_whatever_the_losses(seed: int, clients: int, spread: bool) -> None:
    rng = np.random.default_rng(seed)
    grads = conflicting_set(rng, clients, 12)
    grads = with_spread_lengths(rng, grads, -4, 4) if spread else grads
    solved = decide(fedmdfg(), grads, losses=rng.uniform(0.01, 3, clients))
    assert solved.combination.status == "converged"
    assert (grads @ solved.step.numpy() > 0).all()
    norms = np.linalg.norm(grads, axis=1, keepdims=True)
    mean = (grads / norms * norms.mean()).mean(axis=0)
    assert solved.norm == pytest.approx(0.5 * np.linalg.norm(mean), rel=1e-9)


@given(seed=st.integers(0, 1000), clients=st.integers(2, 6))
def test_no_step_from_a_pareto_stationary_model(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    solved = decide(fedmdfg(), pareto_stationary_set(rng, clients, 8), losses=rng.uniform(0.1, 1, clients))
    assert (solved.norm, solved.combination.status) == (0.0, "stationary")


def test_a_client_without_a_gradient_is_left_out() -> None:
    solved = decide(fedmdfg(), np.vstack([CROSSED, np.zeros(2)]), losses=[1.0, 1.0, 50.0], clients=[2, 3, 8])
    np.testing.assert_allclose(solved.step, [0.75, 0.75], rtol=1e-12)
    assert solved.combination.excluded == {8: "zero-gradient"}
    assert solved.combination.notes["angle"] == 0


def test_a_method_restored_remembers_losses_and_clients() -> None:
    rng = np.random.default_rng(3)
    settings = {"clients": 6, "participation": 0.5}
    method, restored = fedmdfg(**settings), fedmdfg(**settings)
    decide(method, 1 + random_set(rng, 3, 8), losses=[1.0, 1.0, 1.0], clients=[0, 1, 2], number=1)
    restored.restore_state({name: np.array(value) for name, value in method.export_state().items()})
    grads, losses = 1 + random_set(rng, 3, 8), [1.1, 0.9, 1.0]
    one, other = (decide(m, grads, losses=losses, clients=[0, 2, 4], number=2) for m in (method, restored))
    assert np.array_equal(one.step, other.step)
    assert one.combination.notes == other.combination.notes
    assert one.combination.hints == other.combination.hints
    assert (one.combination.notes["fairness"], one.combination.notes["absent"]) == (1.0, 1.0)
