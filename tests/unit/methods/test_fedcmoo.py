from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods import fedcmoo as fedcmoo_file
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.fedcmoo import find_weights
from tests.helpers.gradient_sets import conflicting_set, random_set
from tests.helpers.rounds import decide

ROWS = np.array([[2.0, 0.0], [0.0, 1.0]])


@pytest.fixture(autouse=True)
def _one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that a hand can follow."""
    monkeypatch.setattr(fedcmoo_file, "STEPS", 1)


def fedcmoo(rate: float = 0.1, given: Mapping[str, Any] = MappingProxyType({})) -> Method:
    chosen = {"local.work": "gradient", "local.lr": 1.0, **given}
    own = {"method": "fedcmoo", "fedcmoo.rate": rate}
    return make_method(resolve(Settings.from_mapping({**own, **chosen})))


def test_two_rounds_by_hand() -> None:
    method = fedcmoo(given={"local.lr": 0.5})
    # w - 0.1 G w = 0.5 - 0.2, 0.5 - 0.05, shifted by 0.125: 0.425, 0.575.
    np.testing.assert_allclose(decide(method, ROWS).step, [0.425, 0.2875], rtol=1e-12)
    # 0.425 - 0.17, 0.575 - 0.0575, shifted by 0.11375.
    solved = decide(method, ROWS, number=2)
    np.testing.assert_allclose(solved.combination.weights, [0.5 * 0.36875, 0.5 * 0.63125], rtol=1e-12)
    assert solved.combination.notes["rate"] == 0.1


@settings(max_examples=5)
@given(seed=st.integers(0, 10_000), clients=st.integers(2, 6))
def test_many_steps_lead_to_the_shortest_vector_of_the_hull(seed: int, clients: int) -> None:
    rows = conflicting_set(np.random.default_rng(seed), clients, 12)
    shortest = decide(make_method(resolve(Settings.from_mapping({"method": "mgda", "local.lr": 1.0}))), rows).step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedcmoo_file, "STEPS", 20_000)
        step = decide(fedcmoo(rate=1e9), rows).step  # counts as 1 over the largest eigenvalue
    np.testing.assert_allclose(step, shortest, rtol=1e-4, atol=1e-7)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 20))
def test_every_step_shortens_the_sum_and_stays_on_the_simplex(seed: int, steps: int) -> None:
    rows = random_set(np.random.default_rng(seed), 5, 3)
    gram = rows @ rows.T
    start = np.random.default_rng(seed + 1).dirichlet(np.ones(5))
    found = find_weights(start, gram, 1 / float(np.linalg.eigvalsh(gram)[-1]), steps)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    assert found @ gram @ found <= start @ gram @ start * (1 + 1e-12)


def test_displacements_count_as_the_mean_gradient_on_their_way() -> None:
    # Ten and thirty samples in mini-batches of ten, two epochs: two and six steps at the rate 0.1 * 0.5.
    passes = {"local.work": "sgd", "local.lr": 0.1, "local.decay": 0.5, "local.epochs": 2, "local.batch-size": 10}
    method = fedcmoo(given=passes)
    displaced = ROWS * np.array([[2 * 0.05], [6 * 0.05]])
    found = decide(method, displaced, examples=[10, 30], number=2).combination.weights
    np.testing.assert_allclose(found, [0.425, 0.575], rtol=1e-12)
    whole = fedcmoo(given={**passes, "local.batch-size": 0, "local.epochs": 1})
    np.testing.assert_allclose(decide(whole, 0.1 * ROWS).combination.weights, [0.425, 0.575], rtol=1e-12)


def test_the_weights_of_absent_clients_stay() -> None:
    method = fedcmoo()
    rows = np.eye(3)
    decide(method, rows, clients=[0, 1, 2])
    moved = decide(method, ROWS, clients=[0, 2], number=2).combination.weights
    np.testing.assert_allclose(moved, [0.425, 0.575], rtol=1e-12)
    still = decide(method, np.tile(rows[:1], (3, 1)), clients=[0, 1, 2], number=3).combination.weights
    np.testing.assert_allclose(still, [0.425 * 2 / 3, 1 / 3, 0.575 * 2 / 3], rtol=1e-12)


def test_a_client_without_a_gradient_is_left_out_and_keeps_its_weight() -> None:
    method = fedcmoo()
    solved = decide(method, np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    assert solved.combination.excluded == {2: "zero-gradient"}
    np.testing.assert_allclose(solved.combination.weights, [0.425, 0.575, 0], rtol=1e-12)
    again = decide(method, np.tile([[1.0, 0.0]], (3, 1)), number=2).combination.weights
    np.testing.assert_allclose(again, [0.425 * 2 / 3, 0.575 * 2 / 3, 1 / 3], rtol=1e-12)
    assert decide(method, np.zeros((3, 2)), number=3).combination.status == "stationary"
