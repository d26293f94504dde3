"""MGDA and FedMGDA+ on two and three clients, and FedMGDA+ at the two ends of epsilon."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.min_norm import hull_weights
from dqnfed_flwr.methods._base import Method, make_method
from tests.helpers.gradient_sets import random_set, with_spread_lengths
from tests.helpers.rounds import decide

seeds = st.integers(0, 10_000)


def method(epsilon: float, **more: object) -> Method:
    given = {"method": "fedmgda+", "fedmgda.epsilon": epsilon, "local.work": "gradient", "local.lr": 1.0}
    return make_method(resolve(Settings.from_mapping(given | more)))


def mgda(lr: float = 0.1) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": "mgda", "local.lr": lr})))


def test_two_clients_worked_by_hand() -> None:
    # Unit rows (1, 0) and (-0.6, 0.8) of cosine -0.6: |l u_1 + (1 - l) u_2|^2 is least at l = 1/2 for any cosine. With
    # shares (0.2, 0.8) and epsilon 0.1 the first weight stops at 0.3: step = (0.3 - 0.7 * 0.6, 0.7 * 0.8).
    rows = np.array([[5.0, 0.0], [-0.06, 0.08]])
    solved = decide(method(0.1), rows, examples=[10, 40])
    np.testing.assert_allclose(solved.step, [-0.12, 0.56], rtol=1e-12)
    np.testing.assert_allclose(solved.combination.weights, [0.3 / 5, 0.7 / 0.1], rtol=1e-12)
    assert solved.combination.status == "converged"
    assert solved.slopes[0] < 0  # the box may leave no common descent, and that is no failure
    solved = decide(method(0.5), rows, examples=[10, 40])
    np.testing.assert_allclose(solved.step, [0.2, 0.4], rtol=1e-12)
    assert (solved.slopes > 0).all()


def test_the_step_is_eta_times_a_vector_of_unit_rows() -> None:
    rows = random_set(np.random.default_rng(1), 4, 6)
    long, short = decide(method(0.1), rows), decide(method(0.1, **{"local.lr": 0.25}), rows * 1000)
    np.testing.assert_allclose(short.step, 0.25 * long.step, rtol=1e-12)


def test_displacements_are_normalised_alike() -> None:
    solved = decide(
        make_method(resolve(Settings.from_mapping({"method": "fedmgda+", "local.lr": 0.1}))), np.diag([3.0, 0.5])
    )
    np.testing.assert_allclose(solved.step, [0.5, 0.5], rtol=1e-12)


@settings(max_examples=25)
@given(seed=seeds, clients=st.integers(1, 8))
def test_epsilon_zero_keeps_the_sample_shares(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    rows, examples = random_set(rng, clients, 10), rng.integers(1, 100, clients).tolist()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    solved = decide(method(0), rows, examples=examples)
    np.testing.assert_allclose(solved.step, np.array(examples) / sum(examples) @ unit, rtol=1e-12, atol=1e-13)


@settings(max_examples=25)
@given(seed=seeds, clients=st.integers(1, 8))
def test_epsilon_one_is_mgda_on_unit_rows(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    rows = with_spread_lengths(rng, random_set(rng, clients, 10))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = hull_weights(unit @ unit.T).weights @ unit
    np.testing.assert_allclose(decide(method(1), rows).step, expected, rtol=1e-9, atol=1e-11)


def test_a_client_without_gradient_is_left_out_and_named() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    solved = decide(method(0), rows, examples=[10, 70, 30])
    np.testing.assert_allclose(solved.step, [0.25, 0.75], rtol=1e-15)
    assert solved.combination.excluded == {1: "zero-gradient"}


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_where_the_direction_vanishes_the_model_is_stationary(epsilon: float) -> None:
    solved = decide(method(epsilon), np.array([[2.0, 0.0], [-0.5, 0.0]]))
    assert solved.combination.status == "stationary"
    assert solved.norm == pytest.approx(0, abs=1e-12)


def test_two_equal_clients_are_no_trouble() -> None:
    solved = decide(method(0.2), np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    # Least in the box around 1/3: as much weight for the third as its bound 8/15 allows, short of 1/2: l_3 = 1/2.
    np.testing.assert_allclose(solved.step, [0.5, 0.5], rtol=1e-12)
    assert solved.combination.status == "converged"


def test_mgda_goes_to_the_point_of_the_hull_nearest_to_zero() -> None:
    # |l (2, 0) + (1 - l) (0, 1)|^2 = 4 l^2 + (1 - l)^2 is least at l = 1/5.
    solved = decide(mgda(lr=0.5), np.array([[2.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(solved.combination.weights, [0.1, 0.4], rtol=1e-12)
    np.testing.assert_allclose(solved.slopes, [0.4, 0.4], rtol=1e-12)  # both fall alike
    assert solved.combination.status == "converged"


def test_mgda_takes_the_shorter_of_two_gradients_where_it_serves_both() -> None:
    solved = decide(mgda(lr=1.0), np.array([[1.0, 0.0], [3.0, 1.0]]))
    np.testing.assert_allclose(solved.combination.weights, [1, 0], atol=1e-12)


def test_mgda_stands_still_between_opposite_gradients() -> None:
    solved = decide(mgda(), np.array([[1.0, 0.0], [-2.0, 0.0]]))
    assert solved.combination.status == "stationary"
    assert solved.norm == pytest.approx(0, abs=1e-12)


def test_mgda_leaves_out_and_counts_who_has_no_gradient() -> None:
    solved = decide(mgda(lr=1.0), np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(solved.combination.weights, [0.5, 0, 0.5], atol=1e-12)
    assert solved.combination.excluded == {1: "zero-gradient"}
    nobody = decide(mgda(), np.zeros((2, 3))).combination
    assert (nobody.status, nobody.excluded) == ("stationary", {0: "zero-gradient", 1: "zero-gradient"})
