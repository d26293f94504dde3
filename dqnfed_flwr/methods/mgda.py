"""MGDA: along the minimum-norm point of the convex hull of the gradients.

Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", Comptes Rendus Mathematique
350, 2012; in federated learning, Hu et al. 2022 with their epsilon = 1. The gradients are not normalised.

Deviation from the paper: a client with a zero gradient, for whom the hull's nearest point is 0, is left out and
counted; the paper's iteration ends there.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.linalg.min_norm import Status, hull_weights
from dqnfed_flwr.methods._base import ZERO_GRADIENT, GramMethod
from dqnfed_flwr.schema.run import GRADIENTS_FIRST, Profile
from dqnfed_flwr.types import Combination, RoundBatch


class Mgda(GramMethod):
    """step = eta * sum lambda_k g_k, lambda = argmin |sum lambda_k g_k|^2 over the simplex."""

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * lambda_k; zero at a Pareto-stationary model."""
        point = hull_weights(batch.gram)
        moving = np.diag(batch.gram) > 0
        length = 0.0 if point.status == Status.STATIONARY else self._row_lr
        return Combination(
            length * point.weights,
            rank=point.rank,
            condition=point.condition,
            residual=point.residual,
            status=point.status,
            excluded={client: ZERO_GRADIENT for client, moves in zip(batch.clients, moving, strict=True) if not moves},
        )


METHODS = (Profile(name="mgda", title="MGDA", works=GRADIENTS_FIRST, build=Mgda),)
