"""The bound on what a step may promise, in a run where it can be told from the losses alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.steps.probed import max_fall_of
from tests.helpers.runs import TINY

CONVEX: dict[str, Any] = {**TINY, "model": "logistic", "clients": 6, "participation": 0.3, "rounds": 8}


def least_left(max_fall: float) -> float:
    """The least that a round left of the participants' mean loss."""
    events = run({**CONVEX, "local.threads": 1, "step.max-fall": max_fall}).events
    assert [event.round for event in events] == list(range(1, 9))
    return min(float(np.sum(event.losses_after) / np.sum(event.losses_before)) for event in events)


def test_the_mean_loss_falls_by_no_more_than_a_step_may_promise() -> None:
    # Convex losses fall by no more than their slopes promise: f(a) >= f(0) - a g.u >= (1 - c) f(0), each the mean.
    assert 0.9 <= least_left(0.1) < 0.95
    assert least_left(1000.0) < 0.9


def test_two_of_six_bound_it_unasked() -> None:
    assert least_left(0.0) == least_left(0.1)


@pytest.mark.parametrize(
    ("clients", "participation", "max_fall"),
    [(10, 0.1, 0.15), (100, 0.02, 0.15), (100, 0.1, 0.15), (10, 1.0, math.inf), (1, 1.0, math.inf)],
)
def test_with_sampling_the_bound_is_chosen_by_the_number_of_participants(
    clients: int, participation: float, max_fall: float
) -> None:
    settings = {"clients": clients, "participation": participation}
    assert max_fall_of(Settings.from_mapping(settings))(3) == pytest.approx(max_fall)
    assert max_fall_of(Settings.from_mapping({**settings, "step.max-fall": 0.3}))(3) == 0.3
