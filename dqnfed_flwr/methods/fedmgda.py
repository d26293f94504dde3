"""FedMGDA+: MGDA on unit gradients, with weights that stay near the sample shares.

Hu, Shaloudegi, Zhang and Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE Transactions on Network
Science and Engineering 9(4), 2022.
"""

from __future__ import annotations

import math

import numpy as np

from dqnfed_flwr.linalg.box_qp import box_simplex_weights
from dqnfed_flwr.linalg.min_norm import CUTOFF, STATIONARY_COSINE, Status
from dqnfed_flwr.linalg.scaling import ScaledGram
from dqnfed_flwr.methods._base import ZERO_GRADIENT, GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import Profile, RunSettings
from dqnfed_flwr.types import Combination, RoundBatch


class FedMgdaPlusSettings(Group):
    """FedMGDA+."""

    epsilon: float = own(0.1, "how far a weight may lie from the sample share; 1 is MGDA", ge=0, le=1)


class FedMgdaPlus(GramMethod):
    """step = eta * sum lambda_k u_k, u_k = g_k / |g_k|, lambda = argmin |sum lambda_k u_k|^2, |lambda_k - p_k| <= eps.

    lambda lies on the simplex. epsilon = 0 takes the sample shares p_k, epsilon = 1 is MGDA on the unit rows. With
    an epsilon below 1 the step need not lower every loss; it is `stationary`, and 0, only where it vanishes up to
    rounding.

    Deviations from the paper: a client without a gradient is left out and the shares of the others sum to 1. From
    published code: solvers that need a positive definite Gramian fail on two equal clients, and their status is
    thrown away; this one does neither.
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self._epsilon = run.group_of(FedMgdaPlusSettings).epsilon

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * lambda_k / |g_k|."""
        scaled = ScaledGram.of(batch.gram)
        excluded = {
            client: ZERO_GRADIENT for client, active in zip(batch.clients, scaled.active, strict=True) if not active
        }
        if not scaled.norms.size:
            return Combination(np.zeros(len(batch.clients)), status=Status.STATIONARY, excluded=excluded)
        shares = batch.shares[scaled.active] / batch.shares[scaled.active].sum()
        lower, upper = np.maximum(shares - self._epsilon, 0), np.minimum(shares + self._epsilon, 1)
        solved = box_simplex_weights(scaled.cosines, lower=lower, upper=upper)
        length = math.sqrt(max(float(solved.weights @ scaled.cosines @ solved.weights), 0.0))
        vanishes = length <= STATIONARY_COSINE
        return Combination(
            (0.0 if vanishes else self._row_lr) * scaled.unscale(solved.weights),
            rank=scaled.rank(CUTOFF),
            condition=scaled.condition(CUTOFF),
            residual=solved.residual,
            status=Status.STATIONARY if vanishes else solved.status,
            excluded=excluded,
        )


METHODS = (
    Profile(
        name="fedmgda+",
        title="FedMGDA+",
        settings=FedMgdaPlusSettings,
        build=FedMgdaPlus,
        group="fedmgda",
    ),
)
