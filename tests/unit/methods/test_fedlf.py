"""FedLF against examples worked out by hand: two rows of one length come closest to 0 half way between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods.fedlf import FedLf
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import conflicting_set, pareto_stationary_set, random_set
from tests.helpers.rounds import decide

PAIR = (slice(0, 2), slice(2, 4))
ONE = (slice(0, 2),)


def fedlf(layers: tuple[slice, ...], **settings: Any) -> FedLf:
    method = FedLf(resolve(Settings.from_mapping({"method": "fedlf", **settings})))
    method.layers = layers
    return method


def along(direction: Float64Array | Sequence[float], length: float) -> Float64Array:
    vector = np.asarray(direction, np.float64)
    return np.asarray(length * vector / np.linalg.norm(vector))


def test_every_layer_by_hand() -> None:
    # First layer: (1, 0) and (0, 3) become (2, 0) and (0, 2), half way (1, 1); the second layer is the first turned
    # round. |mean| = |(1, 3, 3, 1)| / 2 = sqrt(5).
    solved = decide(fedlf(PAIR), np.array([[1.0, 0, 3, 0], [0, 3, 0, 1]]))
    np.testing.assert_allclose(solved.step, along([1, 1, 1, 1], sqrt(5)), rtol=1e-12)
    assert solved.combination.notes == {"blocks": 2.0, "fairness": 0.0, "absent": 0.0, "objectives_dropped": 0.0}


@pytest.mark.parametrize("last", [False, True])
def test_a_layer_whose_direction_vanishes_is_merged_with_its_neighbour(last: bool) -> None:
    # In one layer the clients oppose each other, (3, 0) and (-3, 0). Together with the other the rows are sqrt(13) and
    # 5 long, and half way between them, made equally long, is along (3, 0, 2, 0)/sqrt(13) + (-3, 0, 0, 4)/5.
    grads = np.array([[3.0, 0, 2, 0], [-3, 0, 0, 4]])
    expected = along(grads[0] / sqrt(13) + grads[1] / 5, sqrt(5))  # |mean| = |(0, 0, 1, 2)|
    order = [2, 3, 0, 1] if last else [0, 1, 2, 3]
    solved = decide(fedlf(PAIR), grads[:, order])
    np.testing.assert_allclose(solved.step, expected[order], rtol=1e-12, atol=1e-15)
    assert solved.combination.notes["blocks"] == 1


@pytest.mark.parametrize(("second", "step"), [((3.0, -1.0, 1.0), (2.0, 0.0, 1.0)), ((3.0, 1.0, -1.0), (2.0, 1.0, 0.0))])
def test_a_layer_is_merged_with_the_next_and_the_last_with_the_one_before(
    second: tuple[float, ...], step: tuple[float, ...]
) -> None:
    # The vanishing layer and its neighbour: (1, 1) and (-1, 1), of one length, have (0, 1) half way between them.
    solved = decide(fedlf((slice(0, 1), slice(1, 2), slice(2, 3))), np.array([(1.0, 1.0, 1.0), second]))
    np.testing.assert_allclose(solved.step, step, rtol=1e-12, atol=1e-15)
    assert solved.combination.notes["blocks"] == 2


def test_only_the_layers_that_vanish_are_merged() -> None:
    grads = np.array([[3.0, 0, 2, 0, 1, 0], [-3, 0, 0, 4, 0, 1]])
    solved = decide(fedlf((*PAIR, slice(4, 6))), grads)
    parts = [sqrt(13), 5.0]
    first = (sum(parts) / 2) * (grads[0, :4] / parts[0] + grads[1, :4] / parts[1]) / 2
    direction = np.concatenate([first, [0.5, 0.5]])
    np.testing.assert_allclose(solved.step, along(direction, float(np.linalg.norm(grads.mean(axis=0)))), atol=1e-12)
    assert solved.combination.notes["blocks"] == 2


def test_fairness_by_hand() -> None:
    # As for FedMDFG: h = (-3, 1)/sqrt(10), half way between (1, 0) and the fairness row is along (sqrt(10) - 3, 1).
    solved = decide(fedlf(ONE), np.eye(2), losses=[1.0, 3.0])
    np.testing.assert_allclose(solved.step, along([sqrt(10) - 3, 1], sqrt(0.5)), rtol=1e-12)
    assert solved.combination.notes["fairness"] == 1


def test_absent_clients_count_until_all_could_have_been_asked() -> None:
    # (1, 0), made as long as (-1, 1), and that: half way is along (sqrt(2) - 1, 1). 4 clients, 2 a round: two rounds.
    method = fedlf(ONE, clients=4, participation=0.5)
    decide(method, np.array([[1.0, 0.0]] * 2), clients=[0, 1], number=1)
    both = [sqrt(2) - 1, 1.0]
    for number, expected in ((2, both), (3, both), (4, [-1.0, 1.0])):
        solved = decide(method, np.array([[-1.0, 1.0]] * 2), clients=[2, 3], number=number)
        np.testing.assert_allclose(solved.step, along(expected, sqrt(2)), rtol=1e-12)
        assert solved.combination.notes["absent"] == (2 if number < 4 else 0)


def test_absent_clients_survive_a_restart() -> None:
    rng = np.random.default_rng(2)
    settings = {"clients": 6, "participation": 0.5}
    method, restored = (fedlf((slice(0, 3), slice(3, 8)), **settings) for _ in range(2))
    decide(method, 1 + random_set(rng, 3, 8), clients=[0, 1, 2], number=1)
    restored.restore_state({name: np.array(value) for name, value in method.export_state().items()})
    grads = 1 + random_set(rng, 3, 8)
    one, other = (decide(m, grads, losses=[1, 2, 1], clients=[2, 3, 4], number=2) for m in (method, restored))
    assert np.array_equal(one.step, other.step)
    assert one.combination.notes == other.combination.notes


def test_layers_longer_than_a_block_of_columns() -> None:
    rng = np.random.default_rng(4)
    grads = random_set(rng, 2, 20_000) * np.array([[1.0], [3.0]])
    layers = (slice(0, 9_001), slice(9_001, 20_000))
    parts = []
    for layer in layers:
        norms = np.linalg.norm(grads[:, layer], axis=1)
        parts.append(norms.mean() * (grads[:, layer] / norms[:, None]).mean(axis=0))
    solved = decide(fedlf(layers), grads)
    expected = along(np.concatenate(parts), float(np.linalg.norm(grads.mean(axis=0))))
    np.testing.assert_allclose(solved.step, expected, rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 1000), equal=st.booleans())
def test_equal_gradients_give_their_mean(seed: int, equal: bool) -> None:
    row = np.random.default_rng(seed).standard_normal(9)
    solved = decide(
        fedlf((slice(0, 2), slice(2, 5), slice(5, 9))), np.tile(row, (3, 1)), losses=[1, 1, 1 if equal else 4]
    )
    np.testing.assert_allclose(solved.step, row, rtol=1e-12)
    assert solved.combination.notes["objectives_dropped"] == (0 if equal else 1)


@given(seed=st.integers(0, 1000), clients=st.integers(2, 5))
def test_every_loss_falls_along_every_block(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    layers = (slice(0, 8), slice(8, 20), slice(20, 26))
    grads = np.hstack([conflicting_set(rng, clients, layer.stop - layer.start) for layer in layers])
    solved = decide(
        fedlf(layers, **{"local.work": "gradient", "local.lr": 0.1}), grads, losses=rng.uniform(0.1, 2, clients)
    )
    step = solved.step.numpy()
    assert solved.combination.status == "converged"
    assert (grads @ step > 0).all()
    assert solved.norm == pytest.approx(0.1 * np.linalg.norm(grads.mean(axis=0)))
    if solved.combination.notes["blocks"] == 3:
        for layer in layers:
            assert (grads[:, layer] @ step[layer] > 0).all()


@given(seed=st.integers(0, 1000), clients=st.integers(2, 6))
def test_no_step_from_a_pareto_stationary_model(seed: int, clients: int) -> None:
    # Rows that oppose each other in every layer, with the same positive weights.
    rng = np.random.default_rng(seed)
    grads = pareto_stationary_set(rng, clients, 12)
    solved = decide(fedlf((slice(0, 4), slice(4, 12))), grads, losses=rng.uniform(0.1, 1, clients))
    assert (solved.norm, solved.combination.status) == (0.0, "stationary")


def test_a_client_without_a_gradient_and_a_layer_without_one() -> None:
    # The middle layer is zero for all; client 5 has no gradient at all and its loss does not count.
    grads = np.array([[1.0, 0, 0, 2, 0], [0, 1, 0, 0, 2], [0, 0, 0, 0, 0]])
    solved = decide(fedlf((slice(0, 2), slice(2, 3), slice(3, 5))), grads, losses=[1, 1, 9], clients=[0, 2, 5])
    assert solved.combination.excluded == {5: "zero-gradient"}
    np.testing.assert_allclose(solved.step, along([1, 1, 0, 2, 2], sqrt(10) / 3), rtol=1e-12, atol=1e-15)
