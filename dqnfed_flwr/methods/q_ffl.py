"""q-FFL, solved by q-FedAvg.

Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020: objective (2), step of
q-FedAvg, Algorithm 2; q-FedSGD, Algorithm 1, where the rows are gradients.

Deviations from the paper: a loss below `SMALLEST_LOSS` counts as that. L is one over the local rate of the round, so
that it follows a decaying rate. Deviations from published code: every client's own loss, before it trains, and not one
central loss; with q = 0 the loss does not enter at all.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.schema.work import SGD
from dqnfed_flwr.types import Combination, RoundBatch, Sees

SMALLEST_LOSS = 1e-10
"""Losses are taken to be at least this: F^(q-1) has no value at 0."""


class QFflSettings(Group):
    """q-FFL."""

    q: float = own(0.1, "power of the loss; 0 is the plain mean", ge=0)


class QFfl(GramMethod):
    """step = sum Delta_k / sum h_k, with L = 1 / eta and L (theta - theta_k) the gradient where the row is one.

    Delta_k = F_k^q L (theta - theta_k)
    h_k = q F_k^(q-1) |L (theta - theta_k)|^2 + L F_k^q
    """

    sees = Sees.NORMS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._q, self._lr = run.group_of(QFflSettings).q, run.settings.local.lr
        self._decay = run.settings.local.decay if run.work is SGD else 1.0

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the rows; all powers are relative to the largest loss, which cancels."""
        losses = np.maximum(batch.losses, SMALLEST_LOSS)
        powers = (losses / losses.max()) ** self._q
        lr = self._lr * self._decay ** (batch.round - 1)
        squared_moves = self._row_lr**2 * np.diag(batch.gram)
        estimates = powers * (1 + self._q * squared_moves / (lr * losses))
        return Combination(self._row_lr * powers / estimates.sum(), notes={"lipschitz": float(estimates.mean() / lr)})


class _QFfl(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return "takes powers of losses" if run.group_of(QFflSettings).q else ""


METHODS = (_QFfl(name="q-ffl", title="q-FFL", settings=QFflSettings, build=QFfl),)
