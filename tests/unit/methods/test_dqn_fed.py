"""The three forms of DQN-Fed on two clients, worked by hand, and what a round's step promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Scalar, Settings, resolve
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.guarantee.overrule import certificate
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import Method, RoundRows, make_method
from dqnfed_flwr.methods.dqn_fed.anchored import MAX_INVERSE_CURVATURE
from dqnfed_flwr.types import Float64Array, RoundBatch
from tests.helpers.gradient_sets import conflicting_set, random_set
from tests.helpers.rounds import decide

Rows = Callable[[np.random.Generator, int, int], Float64Array]


def dqn_fed(**mapping: Any) -> Method:
    lr = mapping.pop("lr", 0.1)
    return make_method(resolve(Settings.from_mapping({"local.lr": lr, "dqn-fed": mapping})))


def test_two_sided_meets_the_rates_exactly_and_knows_its_length() -> None:
    solved = decide(dqn_fed(**{"form": "two-sided", "rate-spread": 0}), np.array([[2.0, 0], [0, 1]]), rates=[4, 3])
    np.testing.assert_allclose(solved.step, [2, 3], rtol=1e-14)
    np.testing.assert_allclose(solved.combination.weights, [1, 3], rtol=1e-14)
    assert solved.combination.length == pytest.approx(13)  # eta = |step|^2
    assert solved.norm == pytest.approx(13**0.5)


def test_two_sided_is_the_recursion_of_the_paper(rng: np.random.Generator) -> None:
    grads, rates = conflicting_set(rng, 6, 20), rng.uniform(0.1, 2, 6)
    solved = decide(dqn_fed(**{"form": "two-sided", "rate-spread": 0}), grads, rates=rates)
    np.testing.assert_allclose(solved.step, newton_rate_step(grads, rates)[0], rtol=1e-10)


def test_one_sided_lets_a_client_fall_faster_than_its_rate() -> None:
    grads = np.array([[1.0, 0], [1, 1]])
    slow = decide(dqn_fed(**{"form": "one-sided", "rate-spread": 0}), grads, rates=[1, 0.5])
    np.testing.assert_allclose(slow.step, [1, 0], atol=1e-14)
    np.testing.assert_allclose(slow.slopes, [1, 1])
    held = decide(dqn_fed(**{"form": "two-sided", "rate-spread": 0}), grads, rates=[1, 0.5])
    np.testing.assert_allclose(held.step, [1, -0.5], rtol=1e-14)


def test_anchored_changes_the_reference_as_little_as_the_rates_ask() -> None:
    # Mean gradient (1/4, 1/2), reference (1/8, 1/4): the losses fall by 1/8 and 3/16 along it, 5/32 on average.
    # Rates in the proportion 1 : 5/4 with that mean are 5/36 and 25/144; client 0 lacks 1/72, client 1 nothing.
    grads = np.array([[1.0, 0], [-0.5, 1]])
    method = dqn_fed(**{"anchor": "fedsgd", "lr": 0.5, "rate-spread": 0})
    solved = decide(method, grads, rates=[1, 1.25])
    np.testing.assert_allclose(solved.combination.weights, [1 / 72, 0, 1], atol=1e-15)
    np.testing.assert_allclose(solved.step, [1 / 8 + 1 / 72, 1 / 4], rtol=1e-14)
    assert solved.slopes[0] == pytest.approx(5 / 36)
    assert solved.slopes[1] >= 25 / 144
    assert solved.combination.length == 1


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    anchor=st.sampled_from(["fedsgd", "momentum", "server-lbfgs", "fedavg"]),
    scale=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_anchored_rates_take_their_scale_from_the_anchor(seed: int, anchor: str, scale: float) -> None:
    rng = np.random.default_rng(seed)
    grads, rates = conflicting_set(rng, 5, 15), rng.uniform(0.5, 2.0, 5)
    settings = {"anchor": anchor, "anchor-bits": 32, "lr": 0.3, "scale": scale, "rate-spread": 0}
    solved = decide(dqn_fed(**settings), grads, rates=rates)
    # In the first round momentum and L-BFGS are the mean gradient too; `decide` sends updates of 0.1 g_k.
    reference_step = (0.1 if anchor == "fedavg" else 0.3) * grads.mean(axis=0)
    wanted = scale * np.maximum(grads @ reference_step, 0).mean() * rates / rates.mean()
    assert (solved.slopes >= wanted * (1 - 1e-9)).all()


def test_a_reference_that_raises_the_mean_loss_is_replaced_and_forgotten() -> None:
    grads = np.array([[1.0, 0.2], [1.0, -0.2]])
    method = dqn_fed(anchor="momentum", lr=0.1)
    method.step_taken(torch.tensor([-50.0, 0.0], dtype=torch.float64), 1.0)
    solved = decide(method, grads)
    assert solved.combination.notes["anchor_reset"] == 1
    expected = decide(dqn_fed(anchor="fedsgd", lr=0.1), grads)
    np.testing.assert_allclose(solved.step, expected.step, atol=1e-15)  # another number of rows rounds otherwise
    assert decide(method, grads).combination.notes["anchor_reset"] == 0  # the memory is gone


def test_an_anchor_that_was_reset_is_counted_though_the_round_is_solved_again() -> None:
    method = dqn_fed(anchor="momentum", lr=0.1)
    method.step_taken(torch.tensor([-50.0, 0.0], dtype=torch.float64), 1.0)
    held = RowSet(2 + method.reference_rows, 2, torch.float64)
    for slot, row in enumerate([[1.0, 0.2], [1.0, -0.2]]):
        held.put(slot, np.array(row))
    gram = held.gram((0, 1))
    batch = RoundBatch(gram, np.ones(2), np.diag(gram).copy(), np.full(2, 0.5), (0, 1), 1)
    rows = RoundRows(held, (0, 1))
    method.observe(batch, rows)
    once, again = method.combine(batch, rows), method.combine(batch, rows)
    assert once.notes["anchor_reset"] == again.notes["anchor_reset"] == 1
    np.testing.assert_array_equal(once.weights, again.weights)


def sampled(rounds: int) -> Method:
    """Two of four clients a round; the rates take half of the reference's descent."""
    anchored = {"anchor": "fedsgd", "scale": 0.5, "rate-spread": 0, "absent-rounds": rounds}
    run = {"clients": 4, "participation": 0.5, "local.lr": 1.0, "dqn-fed": anchored}
    return make_method(resolve(Settings.from_mapping(run)))


NOW = np.array([[1.0, -0.5], [1.0, -0.5]])


@pytest.mark.parametrize(
    ("absent", "expected", "left_out"),
    [
        # The reference (1, -1/2) raises a loss with gradient (0, 1) at the rate 1/2; u = (1, 0) is the nearest step
        # that does not, and still gives the participants 1 where they are owed 5/8.
        ((0.0, 1.0), [1.0, 0.0], 0.0),
        ((0.0, -1.0), [1.0, -0.5], 0.0),  # content with the reference
        ((-1.0, 0.5), [1.0, -0.5], 1.0),  # nothing suits both: those who are here go first
    ],
)
def test_absent_clients_are_not_harmed_where_that_is_possible(
    absent: tuple[float, float], expected: list[float], left_out: float
) -> None:
    method = sampled(3)
    decide(method, np.array([absent, absent]), clients=[0, 1], number=1)
    solved = decide(method, NOW, clients=[2, 3], number=2)
    np.testing.assert_allclose(solved.step, expected, atol=1e-14)
    assert (solved.combination.notes["absent"], solved.combination.notes["absent_late"]) == (2, 0)
    assert solved.combination.notes["absent_left_out"] == left_out
    assert (solved.slopes >= 5 / 8 * (1 - 1e-12)).all()


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        # Those present are owed 5/8 = |g|^2 / 2, so a late row (0, 1) is owed 1/2; (1, 1/2) gives those present 3/4.
        ({"quorum": 0.5}, [1.0, 0.5]),
        ({"participation": 0.5}, [1.0, 0.0]),  # where clients are drawn, it will be its turn
    ],
)
def test_a_late_row_asks_for_a_rate_where_nobody_waits(shared: dict[str, float], expected: list[float]) -> None:
    anchored = {"anchor": "fedsgd", "scale": 0.5, "rate-spread": 0}
    run = {"clients": 4, "local.lr": 1.0, "dqn-fed": anchored, **shared}
    method = make_method(resolve(Settings.from_mapping(run)))
    assert method.keep_late(0, 1, 2, lambda: np.array([0.0, 1.0]))
    solved = decide(method, NOW, clients=[2, 3], number=2)
    np.testing.assert_allclose(solved.step, expected, atol=1e-14)
    assert (solved.combination.notes["absent"], solved.combination.notes["absent_late"]) == (1, 1)
    assert (solved.slopes >= 5 / 8 * (1 - 1e-12)).all()


def test_clients_are_heeded_for_as_many_rounds_as_the_settings_say() -> None:
    for rounds, heeded in ((0, False), (1, False), (2, True)):
        method = sampled(rounds)
        decide(method, np.array([[0.0, 1.0], [0.0, 1.0]]), clients=[0, 1], number=1)
        decide(method, NOW, clients=[2, 3], number=2)
        solved = decide(method, NOW, clients=[2, 3], number=3)
        np.testing.assert_allclose(solved.step, [1.0, 0.0] if heeded else [1.0, -0.5], atol=1e-14)


def test_absent_clients_survive_a_restart() -> None:
    method, again = sampled(3), sampled(3)
    decide(method, np.array([[0.0, 1.0], [0.0, 1.0]]), clients=[0, 1], number=1)
    again.restore_state(method.export_state())
    np.testing.assert_allclose(decide(again, NOW, clients=[2, 3], number=2).step, [1.0, 0.0], atol=1e-14)


def test_clients_left_out_of_the_solve_have_no_weight_and_a_reason() -> None:
    grads = np.array([[1.0, 0], [0, 1], [1, 1]])
    for form in ("two-sided", "one-sided", "anchored"):
        solved = decide(dqn_fed(form=form), grads, rates=[1, -1, 2], clients=[3, 5, 8])
        assert solved.combination.excluded == {5: "bad-rate"}
        assert solved.combination.weights[1] == 0
        assert solved.combination.status == "converged"


def test_nobody_fit_is_stationary() -> None:
    for form in ("two-sided", "one-sided", "anchored"):
        solved = decide(dqn_fed(form=form), np.eye(2), rates=[-1, -1])
        assert solved.combination.status == "stationary"
        assert solved.norm == 0


@pytest.mark.parametrize("form", ["one-sided", "anchored"])
def test_opposite_gradients_have_no_common_step(form: str) -> None:
    solved = decide(dqn_fed(form=form), np.array([[1.0, 0], [-3.0, 0]]))
    assert solved.combination.status == "stationary"
    assert solved.norm == 0


def test_a_retreat_is_one_sided_then_with_equal_cosines_and_ends_with_its_round() -> None:
    grads = np.array([[1.0, 0], [-0.5, 1]])
    method, one_sided = dqn_fed(anchor="fedsgd"), dqn_fed(form="one-sided")
    assert method.fall_back()
    solved = decide(method, grads)
    assert solved.combination.notes == {"retreat": 1.0}
    assert np.array_equal(solved.step, decide(one_sided, grads).step)
    assert method.fall_back()
    assert one_sided.fall_back()
    further = decide(method, grads)
    assert np.array_equal(further.step, decide(one_sided, grads).step)
    assert not np.array_equal(further.step, solved.step)
    assert not method.fall_back()  # nothing else is left
    method.step_taken(solved.step, 0.0)
    assert "retreat" not in decide(method, grads).combination.notes
    assert method.fall_back()
    assert np.array_equal(decide(method, grads).step, solved.step)


@pytest.mark.parametrize("retreats", [0, 1, 2])
def test_how_far_it_has_retreated_is_remembered_across_a_stop(retreats: int) -> None:
    grads = np.array([[1.0, 0], [-0.5, 1]])
    for form in ({"form": "one-sided"}, {"anchor": "fedsgd"}):
        method, restored = dqn_fed(**form), dqn_fed(**form)
        for _ in range(retreats):
            method.fall_back()
        restored.restore_state({name: np.array(value) for name, value in method.export_state().items()})
        assert np.array_equal(decide(restored, grads).step, decide(method, grads).step)
        assert restored.fall_back() == method.fall_back()


def test_equal_cosines_take_their_length_from_the_median_rate() -> None:
    # Rates over norms are 4/2 and 3/1, 5/2 in the middle: that is the product with both unit gradients.
    method = dqn_fed(**{"form": "one-sided", "rate-spread": 0})
    assert method.fall_back()
    solved = decide(method, np.array([[2.0, 0], [0, 1]]), rates=[4, 3])
    np.testing.assert_allclose(solved.step, [2.5, 2.5], rtol=1e-14)
    assert solved.combination.notes == {"equal_cosines": 1.0}
    assert solved.combination.length == pytest.approx(12.5)
    assert not method.fall_back()  # once a round
    method.step_taken(solved.step, 1.0)
    again = decide(method, np.array([[2.0, 0], [0, 1]]), rates=[4, 3])
    np.testing.assert_allclose(again.step, [2.0, 3.0], rtol=1e-14)
    assert "equal_cosines" not in again.combination.notes


@given(seed=st.integers(0, 10_000), rows=st.sampled_from([conflicting_set, random_set]))
def test_no_direction_has_a_larger_smallest_cosine(seed: int, rows: Rows) -> None:
    rng = np.random.default_rng(seed)
    grads = rows(rng, 5, 15)
    method = dqn_fed(form="one-sided")
    method.fall_back()
    solved = decide(method, grads, rates=rng.uniform(0.5, 2.0, 5))
    cosines = solved.slopes / np.linalg.norm(grads, axis=1) / solved.norm
    assert cosines.min() == pytest.approx(certificate(grads @ grads.T, range(5)).distance, rel=1e-9)


def test_a_served_client_asks_only_not_to_rise_above_its_entitlement() -> None:
    # u_x >= 1 and -u_x + u_y / 2 >= -s: the shortest is (1, 2 (1 - s)), or (1, 0) where s is 1 or more.
    grads = np.array([[1.0, 0], [-1, 0.5]])
    for slack, expected in ((0.25, [1.0, 1.5]), (1.0, [1.0, 0.0]), (5.0, [1.0, 0.0])):
        method = dqn_fed(**{"form": "one-sided", "rate-spread": 0})
        solved = decide(method, grads, rates=[1, 1], slack=[0.0, slack])
        np.testing.assert_allclose(solved.step, expected, atol=1e-12)
        assert solved.slopes[1] >= -slack * (1 + 1e-12)
    strict = decide(dqn_fed(**{"form": "one-sided", "rate-spread": 0}), grads, rates=[1, 1], slack=[0.0, 0.0])
    np.testing.assert_allclose(strict.step, [1.0, 4.0], rtol=1e-12)


def test_the_two_sided_form_knows_no_entitlement() -> None:
    grads = np.array([[2.0, 0], [0, 1]])
    method = dqn_fed(**{"form": "two-sided", "rate-spread": 0})
    np.testing.assert_allclose(decide(method, grads, rates=[4, 3], slack=[0.0, 9.0]).step, [2, 3], rtol=1e-14)


def test_equal_cosines_are_those_of_clients_above_their_entitlement() -> None:
    # Opposite gradients, and too little slack for the rate of client 0: it alone is left, at 4/2 a unit gradient.
    grads = np.array([[2.0, 0], [-1, 0]])
    solved = decide(dqn_fed(**{"form": "one-sided", "rate-spread": 0}), grads, rates=[4, 1], slack=[0.0, 0.25])
    np.testing.assert_allclose(solved.step, [2.0, 0.0], rtol=1e-14)
    assert (solved.combination.status, solved.combination.notes) == ("converged", {"equal_cosines": 1.0})


def test_where_all_are_served_equal_cosines_are_those_of_all() -> None:
    method = dqn_fed(**{"form": "one-sided", "rate-spread": 0})
    method.fall_back()
    solved = decide(method, np.array([[2.0, 0], [0, 1]]), rates=[4, 3], slack=[0.1, 0.2])
    np.testing.assert_allclose(solved.step, [2.5, 2.5], rtol=1e-14)


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), served=st.lists(st.booleans(), min_size=5, max_size=5))
def test_what_each_client_asks_for_is_met(seed: int, served: list[bool]) -> None:
    rng = np.random.default_rng(seed)
    grads, rates = conflicting_set(rng, 5, 15), rng.uniform(0.5, 2.0, 5)
    slack = np.where(served, rng.uniform(0.01, 1.0, 5), 0.0)
    above = slack == 0
    descent = np.maximum(grads @ (0.3 * grads.mean(axis=0)), 0)[above]
    scaled = descent.mean() * rates / rates[above].mean() if above.any() else rates
    for form, wanted in (("one-sided", rates), ("anchored", scaled)):
        method = dqn_fed(**{"form": form, "anchor": "fedsgd", "lr": 0.3, "rate-spread": 0})
        solved = decide(method, grads, rates=rates, slack=[*slack])
        assert solved.combination.status == "converged"
        demands = np.where(above, wanted, -slack)
        assert (solved.slopes >= demands - 1e-9 * np.linalg.norm(grads, axis=1) * solved.norm).all()


def test_anchored_changes_the_reference_for_a_served_client_as_little_as_its_slack_asks() -> None:
    # The reference (1, 1/4) has client 0's loss fall by 4, which is all that is asked of it, and lets client 1's rise
    # by 15/8. With 4 u_x >= 4 and -2 u_x + u_y / 2 >= -s the nearest is (1, 2 (2 - s)) while that is above 1/4.
    grads = np.array([[4.0, 0], [-2, 0.5]])
    for slack, expected in ((1.0, [1.0, 2.0]), (1.875, [1.0, 0.25]), (9.0, [1.0, 0.25])):
        method = dqn_fed(**{"anchor": "fedsgd", "lr": 1.0, "rate-spread": 0})
        solved = decide(method, grads, rates=[3, 5], slack=[0.0, slack])
        np.testing.assert_allclose(solved.step, expected, rtol=1e-12)
        assert "retreat" not in solved.combination.notes
        assert solved.slopes[1] >= -slack * (1 + 1e-12)


def test_where_all_are_served_the_reference_is_the_step_as_far_as_slack_allows() -> None:
    # With slack 1, client 1 lacks 7/8 along the reference (1, 1/4): 7/34 of its gradient (-2, 1/2) make up for that.
    grads = np.array([[4.0, 0], [-2, 0.5]])
    for slack, expected in (([9.0, 9.0], [1.0, 0.25]), ([9.0, 1.0], [10 / 17, 6 / 17])):
        method = dqn_fed(**{"anchor": "fedsgd", "lr": 1.0, "rate-spread": 0})
        np.testing.assert_allclose(decide(method, grads, slack=slack).step, expected, rtol=1e-12)


def test_anchored_falls_back_to_equal_cosines_where_no_step_suits_the_served() -> None:
    grads = np.array([[2.0, 0], [-1, 0]])
    method = dqn_fed(**{"anchor": "fedsgd", "lr": 1.0, "rate-spread": 0})
    solved = decide(method, grads, rates=[4, 1], slack=[0.0, 0.25])
    np.testing.assert_allclose(solved.step, [2.0, 0.0], rtol=1e-14)
    assert solved.combination.notes["retreat"] == 1.0


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), client=st.integers(0, 4), power=st.integers(-60, 60))
@pytest.mark.parametrize("retreats", [0, 1])
def test_the_unit_in_which_a_client_counts_its_loss_does_not_matter(
    retreats: int, seed: int, client: int, power: int
) -> None:
    # c f has the gradient c g and the rate c d~. A spread that holds no rate leaves the solve as it is; equal cosines
    # keep their direction.
    rng = np.random.default_rng(seed)
    grads, rates = conflicting_set(rng, 5, 15), rng.uniform(0.5, 2.0, 5)
    unit = np.ones(5)
    unit[client] = 2.0**power
    steps = []
    for factors in (np.ones(5), unit):
        method = dqn_fed(**{"form": "one-sided", "rate-spread": 1e100})
        for _ in range(retreats):
            method.fall_back()
        solved = decide(method, grads * factors[:, None], rates=rates * factors)
        assert solved.combination.excluded == {}
        steps.append(np.asarray(solved.step))
    one, other = (step / (float(np.linalg.norm(step)) if retreats else 1.0) for step in steps)
    np.testing.assert_allclose(other, one, atol=1e-9 * float(np.linalg.norm(one)))


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), client=st.integers(0, 4), power=st.integers(-60, 10))
def test_a_short_row_is_heard_in_the_direction_like_any_other(seed: int, client: int, power: int) -> None:
    # Without the limit a rate beyond `MAX_INVERSE_CURVATURE` would have it left out.
    rng = np.random.default_rng(seed)
    grads, rates = conflicting_set(rng, 5, 15), rng.uniform(0.5, 2.0, 5)
    grads[client] *= 2.0**power  # the rate stays
    for form in ("one-sided", "anchored"):
        solved = decide(dqn_fed(form=form), grads, rates=rates)
        assert (solved.combination.excluded, solved.combination.status) == ({}, "converged")
        cosines = solved.slopes / np.linalg.norm(grads, axis=1) / solved.norm
        assert (cosines > (0 if power > -20 else -1e-12)).all()
    unlimited = decide(dqn_fed(**{"form": "one-sided", "rate-spread": 0}), grads, rates=rates)
    too_flat = rates[client] > MAX_INVERSE_CURVATURE * float(grads[client] @ grads[client])
    assert unlimited.combination.excluded == ({client: "bad-rate"} if too_flat else {})


def test_a_retreat_forgets_the_anchors_memory() -> None:
    method = dqn_fed(anchor="momentum")
    method.step_taken(torch.ones(2, dtype=torch.float64), 1.0)
    assert "anchor/last" in method.export_state()
    method.fall_back()
    assert "anchor/last" not in method.export_state()


@pytest.mark.parametrize(
    ("own", "anchor", "work"),
    [
        ({}, "server-lbfgs", "gradient"),
        ({"participation": 0.5}, "momentum", "gradient"),
        ({"local.batch-size": 8}, "momentum", "sgd"),
        ({"local.epochs": 2, "participation": 0.5}, "momentum", "sgd"),
        ({"local.batch-size": 8, "guarantee.tolerate": 1}, "momentum", "gradient"),
        ({"local.batch-size": 8, "dqn-fed.anchor-work": "gradient"}, "server-lbfgs", "gradient"),
        ({"local.batch-size": 8, "guarantee.tolerate": 1, "step-rule": "newton"}, "momentum", "sgd"),
        ({"guarantee.tolerate": 1}, "momentum", "gradient"),
        ({"guarantee.tolerate": 1, "step-rule": "fixed"}, "server-lbfgs", "gradient"),
        ({"guarantee.tolerate": 1, "dqn-fed.anchor-work": "sgd"}, "momentum", "sgd"),
        ({"dqn-fed.anchor-work": "sgd"}, "momentum", "sgd"),
        ({"local.epochs": 5, "guarantee.tolerate": 1, "dqn-fed.anchor": "fedavg"}, "fedavg", "sgd"),
        ({"local.batch-size": 8, "dqn-fed.anchor": "fedsgd"}, "fedsgd", "gradient"),
    ],
)
def test_the_anchor_goes_by_the_local_passes_unless_clients_may_lie(
    own: dict[str, Scalar], anchor: str, work: str
) -> None:
    plan = resolve(Settings.from_mapping(own))
    found = plan.anchor
    assert found is not None
    assert (found.method.name, found.work.name) == (anchor, work)
    assert plan.sends_anchor_row is (work == "sgd")
