"""TERM: the tilted empirical risk over clients.

Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021, the hierarchical tilt over groups,
with the clients as groups.

Deviations from the paper: the weights are normalised with the losses of this round; the paper's stochastic solver
keeps a running estimate of the normaliser. Deviations from published code: the weights sum to 1 and are not divided
by K once more; no running estimate that mixes values of different shifts.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.types import Combination, RoundBatch, Sees


class TermSettings(Group):
    """TERM."""

    t: float = own(1.0, "tilt; 0 is FedAvg", ge=0)


class Term(GramMethod):
    """step = eta sum w_k g_k with w_k proportional to p_k exp(t F_k): the gradient of (1/t) log sum p_k exp(t F_k)."""

    sees = Sees.NORMS

    def weights(self, batch: RoundBatch) -> Combination:
        """eta w_k, with the largest loss subtracted in the exponent."""
        tilt = self._run.group_of(TermSettings).t
        tilted = batch.shares * np.exp(tilt * (batch.losses - batch.losses.max()))
        return Combination(self._row_lr * tilted / tilted.sum())


METHODS = (Profile(name="term", title="TERM", settings=TermSettings, build=Term),)
