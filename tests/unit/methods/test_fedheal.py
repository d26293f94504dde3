"""FedHEAL over three rounds of two clients, worked by hand, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.methods import fedheal
from dqnfed_flwr.methods._base import RoundRows, make_method
from dqnfed_flwr.methods.fedheal import FedHeal
from dqnfed_flwr.types import Combination, RoundBatch
from tests.helpers.gradient_sets import random_set
from tests.helpers.rounds import decide


def method(threshold: float = 0.3, beta: float = 0.4, more: Mapping[str, object] = MappingProxyType({})) -> FedHeal:
    given = {"method": "fedheal", "fedheal.threshold": threshold, "fedheal.beta": beta}
    made = make_method(resolve(Settings.from_mapping({**given, **more})))
    assert isinstance(made, FedHeal)
    return made


def test_two_rounds_of_two_clients_worked_by_hand() -> None:
    heal = method(threshold=0.6, beta=0.5)
    # Round 1 keeps all. Norms 5 and 15, shares 1/4 and 3/4: w = 1/2 + (1/8, 3/8) = (5/8, 7/8), over 3/2 (5/12, 7/12).
    first = np.array([[3.0, 4.0], [-9.0, 12.0]])
    np.testing.assert_allclose(decide(heal, first).step, (5 * first[0] + 7 * first[1]) / 12, rtol=1e-14)
    # Round 2: client 0 turns in coordinate 1 (sign share 0 < 0.6) and client 1 in coordinate 0; norms 6 and 2, shares
    # 3/4 and 1/4; delta = (1/16 + 3/8, 3/16 + 1/8) = (7/16, 5/16), w = (17/16, 19/16). Each coordinate has one keeper.
    second = np.array([[6.0, -1.0], [5.0, 2.0]])
    solved = decide(heal, second, number=2)
    np.testing.assert_allclose(solved.step, [6, 2], rtol=1e-14)
    assert solved.combination.notes == {"kept": 0.5}
    # Round 3: client 0 had + + and + -: shares 1 and 1/2 of plus; client 1 had - + and + +: 1/2 and 1. At 0.6 each
    # keeps one coordinate, the same as before if plus; here client 0 turns there too, so nobody keeps coordinate 0.
    third = np.array([[-1.0, 7.0], [4.0, 3.0]])
    np.testing.assert_allclose(decide(heal, third, number=3).step, [0, 3], rtol=1e-14)


def test_weights_follow_the_running_shares() -> None:
    heal = method(threshold=0.0, beta=0.5)
    rows = np.array([[4.0, 0.0], [0.0, 12.0]])  # shares 1/4 and 3/4 in every round
    # delta: 1/8, 3/8; then 3/16, 9/16. w: (5/8, 7/8), then (13/16, 23/16), over 9/4: (13/36, 23/36).
    decide(heal, rows)
    np.testing.assert_allclose(decide(heal, rows, number=2).step, [4 * 13 / 36, 12 * 23 / 36], rtol=1e-14)


def test_without_threshold_and_beta_it_is_the_plain_mean() -> None:
    heal = method(threshold=0.0, beta=0.0)
    for number in range(1, 5):
        rows = random_set(np.random.default_rng(number), 3, 8)
        np.testing.assert_allclose(decide(heal, rows, number=number).step, rows.mean(axis=0), atol=1e-12)


def test_a_share_of_exactly_the_threshold_suffices() -> None:
    heal = method(threshold=0.5)
    for number, sign in enumerate([1.0, -1.0], 1):
        decide(heal, np.array([[sign]]), number=number)
    assert decide(heal, np.array([[2.0]]), number=3).step.item() == 2.0


def test_asking_twice_changes_nothing() -> None:
    class Twice(FedHeal):
        def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
            super().combine(batch, rows)
            return super().combine(batch, rows)

    once, twice = method(), Twice(resolve(Settings.from_mapping({"method": "fedheal"})))
    rng = np.random.default_rng(2)
    for number in range(1, 5):
        rows = random_set(rng, 3, 6)
        np.testing.assert_array_equal(decide(once, rows, number=number).step, decide(twice, rows, number=number).step)


def test_a_client_that_comes_late_is_weighed_like_the_others() -> None:
    heal = method(threshold=0.0, beta=0.4)
    rows = np.array([[2.0, 0.0], [0.0, 2.0]])
    for number in range(1, 30):
        decide(heal, rows, clients=[0, 1], number=number)
    late = decide(heal, rows, clients=[1, 2], number=30).step
    np.testing.assert_allclose(late, [1.0, 1.0], rtol=1e-12)  # equal norms, equal weights


def test_counts_outlast_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedheal, "MOST_VISITS", 8)
    heal = method(threshold=0.3)
    for number in range(1, 100):
        decide(heal, np.array([[1.0, -1.0]]), number=number)
    assert heal.export_state()["positive"].max() <= 8
    np.testing.assert_array_equal(decide(heal, np.array([[1.0, 1.0]]), number=100).step, [1, 0])


def test_the_state_is_compact_and_complete() -> None:
    heal = method()
    decide(heal, random_set(np.random.default_rng(1), 3, 50), clients=[1, 4, 7])
    state = heal.export_state()
    assert state["positive"].dtype == np.uint16
    assert state["positive"].shape == (3, 50)
    assert state["clients"].tolist() == [1, 4, 7]
    restored = method()
    restored.restore_state(state)
    rows = random_set(np.random.default_rng(2), 2, 50)
    one, other = (decide(heal, rows, clients=[1, 7], number=2).step for heal in (heal, restored))
    np.testing.assert_array_equal(one, other)


def test_no_state_before_the_first_round() -> None:
    assert method().export_state() == {}
    method().restore_state({})


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_a_coordinate_lies_between_what_the_clients_sent(seed: int, threshold: float) -> None:
    heal, rng = method(threshold), np.random.default_rng(seed)
    for number in range(1, 4):
        rows = random_set(rng, 4, 9)
        step = decide(heal, rows, number=number).step.numpy()
        assert (step <= np.maximum(rows.max(axis=0), 0) + 1e-12).all()
        assert (step >= np.minimum(rows.min(axis=0), 0) - 1e-12).all()


def test_gradients_count_eta_times() -> None:
    rows = random_set(np.random.default_rng(3), 3, 5)
    gradients = method(more={"local.work": "gradient", "local.lr": 0.5})
    np.testing.assert_allclose(decide(gradients, rows).step, 0.5 * decide(method(), rows).step, rtol=1e-15)
