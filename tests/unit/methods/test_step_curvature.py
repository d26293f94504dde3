"""The curvature of the clients' losses along a step: exact on quadratics, and what it asks of the next step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.engine.run import run
from dqnfed_flwr.methods.dqn_fed.step_curvature import KEPT, MOST, StepCurvature
from dqnfed_flwr.run_files import MODEL
from dqnfed_flwr.types import Probe
from tests.helpers.runs import TINY

MARGIN = {
    "dqn-fed.margin": 20.0,
    "guarantee.entitlement": "0",
    "dqn-fed.anchor": "fedavg",
    "local.epochs": 4,
    "local.batch-size": 8,
    "rounds": 6,
}


def known(found: dict[int, float], margin: float = 1.0) -> StepCurvature:
    curvature = StepCurvature(margin)
    curvature.note(found)
    return curvature


@given(
    st.lists(st.floats(0.1, 50.0), min_size=2, max_size=5),
    st.floats(0.05, 4.0),
    st.integers(0, 1000),
)
def test_on_quadratics_a_step_that_meets_the_demands_harms_nobody_at_factor_1(
    scales: list[float], factor: float, seed: int
) -> None:
    """f_k(x) = 1/2 x^T H_k x - b_k . x: one answer tells c_k, and g_k . u >= 1/2 c_k |u|^2 is f_k(x - u) <= f_k(x)."""
    draw = np.random.default_rng(seed)
    dim, clients = 6, range(len(scales))
    roots = [scale * draw.standard_normal((dim, dim)) for scale in scales]
    hessians = [root @ root.T for root in roots]
    linear = draw.standard_normal((len(scales), dim))
    at, step = draw.standard_normal(dim), draw.standard_normal(dim)

    def loss(client: int, place: np.ndarray) -> float:
        return float(0.5 * place @ hessians[client] @ place - linear[client] @ place)

    slopes = [float((hessians[k] @ at - linear[k]) @ step) for k in clients]
    length = float(np.linalg.norm(step))
    found = {
        k: Probe(loss(k, at - factor * step), True).curvature(loss(k, at), slopes[k], factor, length) for k in clients
    }
    for k in clients:
        assert found[k] == pytest.approx(step @ hessians[k] @ step / length**2, rel=1e-6, abs=1e-6)
    asked = known(found).demands(list(clients), length**2)
    for k in clients:
        if not 0 <= found[k] < MOST * np.median(list(found.values())):
            continue  # asks nothing, or does not count in full
        rise = loss(k, at - step) - loss(k, at)
        slack = 1e-6 * (1 + abs(loss(k, at)) + asked[k])
        assert rise <= slack if slopes[k] >= asked[k] else rise >= -slack


def test_what_was_seen_counts_on_by_half_with_each_round() -> None:
    curvature = known({0: 4.0, 1: 2.0}, margin=2.0)
    curvature.note({0: 1.0, 1: 3.0})
    assert curvature.demands([0, 1, 7], 1.0).tolist() == [4.0 * KEPT, 3.0, 0.0]


def test_what_is_not_finite_says_nothing_and_what_is_negative_asks_nothing() -> None:
    curvature = known({0: 1.0, 1: -3.0, 2: 1.0, 3: float("inf"), 4: float("nan")})
    assert curvature.demands([0, 1, 2], 2.0).tolist() == [1.0, 0.0, 1.0]
    assert curvature.export_state()["curvature_clients"].tolist() == [0, 1, 2]


def test_a_client_that_claims_any_curvature_counts_with_ten_times_the_median() -> None:
    asked = known({0: 1.0, 1: 1.0, 2: 1e30}).demands([0, 1, 2], 2.0)
    assert asked.tolist() == [1.0, 1.0, MOST]


def test_without_a_margin_nothing_is_kept() -> None:
    assert known({0: 1.0}, margin=0.0).export_state() == {}


def test_a_memory_that_was_written_and_read_asks_the_same() -> None:
    first, second = known({3: 0.1, 1: 0.7, 2: 0.5}), StepCurvature(1.0)
    second.restore_state(first.export_state())
    assert second.demands([1, 2, 3], 0.3).tolist() == first.demands([1, 2, 3], 0.3).tolist()
    second.forget([2])
    assert second.demands([1, 2, 3], 0.3)[1] == 0


def test_a_run_with_a_margin_takes_other_steps_harms_nobody_and_resumes(tmp_path: Path) -> None:
    whole = run({**TINY, **MARGIN, "output": str(tmp_path / "whole")})
    plain = run({**TINY, **MARGIN, "dqn-fed.margin": 0.0})
    assert all(event.unharmed_ratio == 1 for event in whole.events)
    assert whole.events[-1].losses_after != plain.events[-1].losses_after
    run({**TINY, **MARGIN, "rounds": 3, "output": str(tmp_path / "cut")})
    run({**TINY, **MARGIN, "output": str(tmp_path / "cut")}, resume=True)
    assert (tmp_path / "cut" / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()
