"""MGDA and FedMGDA+: along the minimum-norm point of the convex hull of the gradients.

Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", Comptes Rendus Mathematique
350, 2012; Hu, Shaloudegi, Zhang and Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE Transactions on
Network Science and Engineering 9(4), 2022: FedMGDA+, on unit gradients, with weights that stay near the sample shares.
"""

from __future__ import annotations

import math

import numpy as np

from dqnfed_flwr.linalg.box_qp import box_simplex_weights
from dqnfed_flwr.linalg.min_norm import CUTOFF, STATIONARY_COSINE, ScaledGram, Status, hull_weights
from dqnfed_flwr.methods._base import GramMethod, answer, left_out
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import FREE_LENGTH, GRADIENTS_FIRST, Profile
from dqnfed_flwr.types import Combination, RoundBatch


class Mgda(GramMethod):
    """step = eta * sum lambda_k g_k, lambda = argmin |sum lambda_k g_k|^2 over the simplex.

    It is FedMGDA+ with epsilon = 1, except that the gradients are not normalised. Deviation from the paper: a client
    with a zero gradient, for whom the hull's nearest point is 0, is left out and counted; the paper's iteration ends
    there.
    """

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * lambda_k; zero at a Pareto-stationary model."""
        point = hull_weights(batch.gram)
        length = 0.0 if point.status == Status.STATIONARY else self._row_lr
        return answer(length * point.weights, point, left_out(batch, np.diag(batch.gram) > 0))


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

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * lambda_k / |g_k|."""
        epsilon, scaled = self._run.group_of(FedMgdaPlusSettings).epsilon, ScaledGram.of(batch.gram)
        excluded = left_out(batch, scaled.active)
        if not scaled.norms.size:
            return Combination(np.zeros(len(batch.clients)), status=Status.STATIONARY, excluded=excluded)
        shares = batch.shares[scaled.active] / batch.shares[scaled.active].sum()
        lower, upper = np.maximum(shares - epsilon, 0), np.minimum(shares + epsilon, 1)
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
        name="mgda",
        title="MGDA",
        works=GRADIENTS_FIRST,
        one_gradient="only the shortest point of the gradients' hull is a common descent direction",
        build=Mgda,
    ),
    Profile(
        name="fedmgda+",
        title="FedMGDA+",
        settings=FedMgdaPlusSettings,
        build=FedMgdaPlus,
        rule=FREE_LENGTH,
        group="fedmgda",
    ),
)
