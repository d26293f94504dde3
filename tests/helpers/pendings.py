"""A step that waits for its clients' verdict, for tests that look at one thing of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dqnfed_flwr.guarantee.overrule import Votes
from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.strategy.state import PendingStep
from dqnfed_flwr.types import Combination
from tests.helpers.runs import changed


def pending_step_of(*clients: int, **changes: Any) -> PendingStep:
    """The step of round 8 for clients of loss 1 and slope 1; `changes` are fields of it, or of its records."""
    count = len(clients)
    ones = dict.fromkeys(clients, 1.0)
    plain = PendingStep(
        round=8,
        step=torch.tensor([1.0, -1.0]),
        ladder=Ladder(0.5),
        scale=StepScale(norm=1.4, length=1.0, theta_norm=1.0, round=8),
        asked=clients,
        clients=clients,
        losses=ones,
        slopes=ones,
        rates=ones,
        shares=dict.fromkeys(clients, 1 / max(count, 1)),
        weights=ones,
        combination=Combination(np.ones(count), 1.0, count, 1.0, 0.0, Status.CONVERGED),
        dropped=[],
        gram=np.eye(count),
        binding=clients,
        votes=Votes(clients),
    )
    return changed(plain, **changes)
