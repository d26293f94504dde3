"""What every method of the table promises, whatever the gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Float64Array
from tests.helpers.gradient_sets import (
    conflicting_set,
    duplicated_set,
    pareto_stationary_set,
    random_set,
    rank_deficient_set,
    with_spread_lengths,
)
from tests.helpers.rounds import decide

CASES: dict[str, dict[str, Any]] = {name: {"method": name} for name in METHODS} | {
    "fedcorr": {"method": "fedcorr", "rounds": 100},  # its first stages alone take more than the default
    "fednl": {"method": "fednl", "fednl.form": "exact"},  # the form that needs no layers
    "two-sided": {"dqn-fed.form": "two-sided"},
    "two-sided, rates as they are": {"dqn-fed.form": "two-sided", "dqn-fed.rate-spread": 0},
    "one-sided": {"dqn-fed.form": "one-sided"},
    **{
        f"anchored by {name}": {"dqn-fed.anchor": name}
        for name in ("fedsgd", "momentum", "server-lbfgs", "fedavg", "fedadam", "krum", "fedfv")
    },
    "fedmgda+, epsilon 1": {"method": "fedmgda+", "fedmgda.epsilon": 1},
    "aaggff, device": {"method": "aaggff", "aaggff.form": "device"},  # by default it is the form silo
    "torchjd:UPGrad": {"method": "torchjd:UPGrad"},
}
EXEMPT: dict[str, dict[str, str]] = {
    "order": {},
    "alone": {
        "fedadam": "every coordinate is divided by its own root mean square",
        "anchored by fedadam": "as fedadam",
    },
    "zero gradient": {"krum": "a zero row may lie nearest to its neighbours, and is then the step"},
    "no gradient": {},
    "twice": {
        "fedcmoo": "each of two equal clients moves at the rate, so that the pair moves twice as far",
        "fairgrad": "the utility counts every client, so that two equal ones have two shares",
        "fedfv": "how many clients are left unprojected is rounded up to a whole number",
        "anchored by fedfv": "as fedfv",
        "fedmgda+": "epsilon bounds the weight of a client, so that two equal ones may go twice as far",
        "trimmed-mean": "how many values are cut is rounded down to a whole number",
    },
}
"""Laws that a case does not obey by its definition, and why."""
COMMON_DESCENT = [
    name
    for name in CASES
    if name in ("dqn-fed", "adafed", "fairgrad", "mgda", "fedmgda+, epsilon 1", "fedmdfg", "fedlf")
]
COMMON_DESCENT += [name for name in CASES if "sided" in name or "anchored" in name]
"""Cases whose step lowers every loss; not torchjd:UPGrad, which adds 1e-4 of the trace to the Gramian's diagonal."""
SETS: list[Callable[[np.random.Generator, int, int], Float64Array]] = [
    random_set,
    conflicting_set,
    pareto_stationary_set,
    lambda rng, clients, dim: rank_deficient_set(rng, clients, dim, max(1, clients // 2)),
    lambda rng, clients, dim: duplicated_set(rng, (clients + 1) // 2, dim),
]
every_method = pytest.mark.parametrize("case", CASES)


def obeying(law: str) -> pytest.MarkDecorator:
    """Every case but those that are exempt from `law`."""
    assert set(EXEMPT[law]) <= set(CASES)
    return pytest.mark.parametrize("case", [case for case in CASES if case not in EXEMPT[law]])


seeds = st.integers(0, 10_000)


@cache
def planned(case: str) -> RunPlan:
    return resolve(Settings.from_mapping(CASES[case]))


def fresh(case: str) -> Method:
    return make_method(planned(case))


@every_method
@settings(max_examples=15)
@given(seed=seeds, clients=st.integers(2, 8), kind=st.sampled_from(SETS), spread=st.booleans())
def test_weights_and_step_are_finite_and_of_the_right_shape(
    case: str, seed: int, clients: int, kind: Callable[..., Float64Array], spread: bool
) -> None:
    rng = np.random.default_rng(seed)
    grads = kind(rng, clients, 12)
    grads = with_spread_lengths(rng, grads) if spread else grads
    method = fresh(case)
    solved = decide(method, grads)
    assert solved.combination.weights.shape == (len(grads) + method.reference_rows,)
    assert np.isfinite(solved.combination.weights).all()
    assert solved.step.shape == (12,)
    assert solved.step.isfinite().all()
    assert solved.norm == pytest.approx(float(solved.step.norm()), rel=1e-6, abs=1e-7 * np.abs(grads).max())


@obeying("order")
@settings(max_examples=10)
@given(seed=seeds, order=st.permutations(range(5)))
def test_the_order_of_the_clients_makes_no_difference(case: str, seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    grads, examples, losses = random_set(rng, 5, 12), rng.integers(1, 50, 5), rng.uniform(0.5, 2, 5)
    straight = decide(fresh(case), grads, examples=list(examples), losses=losses)
    turned = decide(fresh(case), grads[order], examples=list(examples[order]), losses=losses[order])
    np.testing.assert_allclose(
        turned.combination.weights[:5], straight.combination.weights[order], rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(turned.step, straight.step, rtol=1e-6, atol=1e-9)


@obeying("alone")
@settings(max_examples=5)
@given(seed=seeds)
def test_a_client_alone_gets_a_step_along_its_gradient(case: str, seed: int) -> None:
    grads = random_set(np.random.default_rng(seed), 1, 12)
    step = decide(fresh(case), grads).step.numpy()
    length = float(step @ grads[0] / (grads[0] @ grads[0]))
    assert length > 0
    np.testing.assert_allclose(step, length * grads[0], rtol=1e-9, atol=1e-12)


@obeying("zero gradient")
@settings(max_examples=8)
@given(seed=seeds)
def test_a_zero_gradient_spoils_nothing(case: str, seed: int) -> None:
    grads = random_set(np.random.default_rng(seed), 4, 12)
    grads[2] = 0
    solved = decide(fresh(case), grads)
    assert solved.step.isfinite().all()
    assert solved.norm > 0
    assert set(solved.combination.excluded) <= {2}


@obeying("no gradient")
def test_no_gradient_at_all_gives_no_step(case: str) -> None:
    solved = decide(fresh(case), np.zeros((3, 5)))
    assert solved.norm == 0
    assert not solved.step.any()


@obeying("twice")
@settings(max_examples=8)
@given(seed=seeds)
def test_everybody_twice_changes_nothing(case: str, seed: int) -> None:
    twice = duplicated_set(np.random.default_rng(seed), 3, 12)
    expected = decide(fresh(case), twice[::2]).step
    np.testing.assert_allclose(decide(fresh(case), twice).step, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", COMMON_DESCENT)
@settings(max_examples=25)
@given(seed=seeds, clients=st.integers(2, 8), kind=st.sampled_from(SETS[:2]), spread=st.booleans())
def test_every_loss_falls_along_the_step(
    case: str, seed: int, clients: int, kind: Callable[..., Float64Array], spread: bool
) -> None:
    rng = np.random.default_rng(seed)
    grads = kind(rng, clients, 12)
    grads = with_spread_lengths(rng, grads, -4, 4) if spread else grads
    solved = decide(fresh(case), grads)
    assert solved.combination.status == "converged" or (spread and solved.combination.status == "stationary")
    if solved.combination.status == "converged":
        assert (solved.slopes > 0).all()
        np.testing.assert_allclose(
            solved.slopes, grads @ solved.step.numpy(), rtol=1e-6, atol=1e-9 * np.abs(grads).max()
        )


@every_method
@settings(max_examples=8)
@given(seed=seeds, rounds=st.integers(0, 3))
def test_a_method_restored_goes_on_with_the_same_bits(case: str, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    straight = fresh(case)
    for number in range(1, rounds + 1):
        solved = decide(straight, 1 + 0.3 * random_set(rng, 4, 12), number=number)
        straight.step_taken(solved.step, 0.5)
    restored = fresh(case)
    restored.restore_state({name: np.array(value) for name, value in straight.export_state().items()})
    for number in range(rounds + 1, rounds + 3):
        grads = 1 + 0.3 * random_set(rng, 4, 12)
        one, other = decide(straight, grads, number=number), decide(restored, grads, number=number)
        assert np.array_equal(one.combination.weights, other.combination.weights)
        assert np.array_equal(one.step.numpy(), other.step.numpy())
        straight.step_taken(one.step, 0.25)
        restored.step_taken(other.step, 0.25)
