"""Local work of PropFair; `methods/propfair` names the paper and lists the deviations."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import BlindWork, LocalRequest, LocalResult, sgd
from dqnfed_flwr.methods.propfair import PropFairSettings

EPSILON = 0.2
"""Utility below which the logarithm gives way to its tangent, so that the slope is at most 5."""


def propfair_objective(loss: Tensor, *, bound: float, epsilon: float) -> Tensor:
    """-log(M - F) where the utility M - F is at least epsilon, else its tangent there; M is `bound`.

    F is the mean cross-entropy of a mini-batch. The result is convex and rising in F, with slope
    1 / max(M - F, epsilon).
    """
    utility = bound - loss
    tangent = (epsilon - utility) / epsilon - math.log(epsilon)
    return torch.where(utility >= epsilon, -torch.log(utility.clamp(min=epsilon)), tangent)


class PropFairWork(BlindWork):
    """Row: the displacement theta - theta_k of E epochs of SGD on -log(M - F)."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """theta - theta_k, with the rate lr |row|^2."""
        settings = self._settings.group_of(PropFairSettings)
        objective = partial(propfair_objective, bound=settings.bound, epsilon=EPSILON)
        row = sgd(self._loss, point.theta, self._settings.local, request.key, objective=objective)
        return LocalResult(row, self.plain_rate(row))
