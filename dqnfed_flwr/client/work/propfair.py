"""PropFair: local SGD on minus the logarithm of a client's utility.

Zhang, Malekmohammadi, Chen and Yu, "Proportional Fairness in Federated Learning", TMLR 2023, Algorithm 1: clients
minimise -log(M - F), the server averages as FedAvg does.

Deviations from the paper: `ridge` is added to the objective and is no part of F; F is the mean of a mini-batch, as in
the paper's own experiments. Deviations from published code: below epsilon the logarithm continues along its tangent,
so that the slope is 1 / epsilon there and nowhere jumps down.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work._base import BlindWork, Occasion, Product
from dqnfed_flwr.client.work.passes import sgd


def propfair_objective(loss: Tensor, *, bound: float, epsilon: float) -> Tensor:
    """-log(M - F) where the utility M - F is at least epsilon, else its tangent there.

    Parameters
    ----------
    loss : Tensor
        F, the mean cross-entropy of a mini-batch; a scalar.
    bound, epsilon : float
        M and epsilon.

    Returns
    -------
    Tensor
        A scalar, convex and rising in F, with slope 1 / max(M - F, epsilon).
    """
    utility = bound - loss
    tangent = (epsilon - utility) / epsilon - math.log(epsilon)
    return torch.where(utility >= epsilon, -torch.log(utility.clamp(min=epsilon)), tangent)


class PropFairWork(BlindWork):
    """Row: the displacement theta - theta_k of E epochs of SGD on -log(M - F)."""

    def perform(self, occasion: Occasion, point: Point) -> Product:
        """theta - theta_k, with the rate lr |row|^2."""
        settings = self._settings
        objective = partial(propfair_objective, bound=settings.propfair.bound, epsilon=settings.propfair.epsilon)
        row = sgd(self._loss, point.theta, settings.local, occasion.turn, objective=objective)
        return Product(row, self.plain_rate(row))
