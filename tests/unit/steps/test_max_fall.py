"""The bound on what a step may promise, in a run where it can be told from the losses alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dqnfed_flwr.engine.run import run
from tests.helpers.runs import TINY

CONVEX: dict[str, Any] = {**TINY, "model": "logistic", "clients": 6, "participation": 0.3, "rounds": 8}


def least_left(max_fall: float) -> float:
    """The least that a round left of a participant's loss."""
    events = run({**CONVEX, "local.threads": 1, "step.max-fall": max_fall}).events
    assert [event.round for event in events] == list(range(1, 9))
    return min(float(np.min(np.array(event.losses_after) / np.array(event.losses_before))) for event in events)


def test_no_loss_falls_by_more_than_its_slope_may_promise() -> None:
    # A convex loss falls by no more than its slope promises: f(a) >= f(0) - a g.u >= (1 - c) f(0).
    assert 0.95 <= least_left(0.05) < 1
    assert least_left(0.0) < 0.9
