"""FairGrad: the step of largest alpha-fair utility of the clients' descents.

Ban and Ji, "Fair Resource Allocation in Multi-Task Learning", ICML 2024: the utility of equation (2), its solution in
equation (4), Algorithm 1; there for tasks of one model, here for clients.

Deviations from the paper: a client with a zero gradient, whose weight would be infinite, is left out and counted. From
published code: the equation is solved as the minimum of a convex function, by Newton's method, which does not mind rows
of different lengths; the residual is reported, and a solve that stops above `GOOD` has the status `not-converged`.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.linalg.min_norm import STATIONARY_COSINE, Status
from dqnfed_flwr.methods._base import GramMethod, left_out
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import FREE_LENGTH, Profile
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

GOOD = 1e-6
"""Largest relative residual of a solve that counts."""
MOST_STEPS = 200
"""Steps of Newton's method."""
LARGEST = 1e12
"""Largest weight, times the length of its row to the power 2 alpha / (1 + alpha), of a solve that goes on."""
ROUNDING = 1e-14
"""Falls of the objective below this share of it are rounding."""


class FairGradSettings(Group):
    """FairGrad."""

    alpha: float = own(1.0, "fairness: small is the sum of descents, 1 proportional, large max-min", gt=0, le=10)


class FairGrad(GramMethod):
    """step = eta sum w_k g_k, with g_k . (sum_j w_j g_j) = w_k^(-1/alpha) for every client k.

    It maximises sum_k (g_k . d)^(1 - alpha) / (1 - alpha) over directions d of bounded length. Every product is
    positive, so every loss falls along it. Where the rows have no common descent direction, the weights grow without
    bound and the step vanishes: it is 0, with the status `stationary`.
    """

    def weights(self, batch: RoundBatch) -> Combination:
        """eta w_k, 0 for clients without a gradient."""
        moving = np.diag(batch.gram) > 0
        excluded = left_out(batch, moving)
        weights = np.zeros(len(batch.clients))
        if not moving.any():
            return Combination(weights, status=Status.STATIONARY, excluded=excluded)
        gram = batch.gram[np.ix_(moving, moving)]
        found, residual = alpha_fair_weights(gram, self._run.group_of(FairGradSettings).alpha)
        if np.sqrt(max(float(found @ gram @ found), 0.0)) <= STATIONARY_COSINE * float(found @ np.sqrt(np.diag(gram))):
            return Combination(weights, residual=residual, status=Status.STATIONARY, excluded=excluded)
        weights[moving] = self._row_lr * found
        status = Status.CONVERGED if residual <= GOOD else Status.NOT_CONVERGED
        return Combination(weights, residual=residual, status=status, excluded=excluded)


def alpha_fair_weights(gram: Float64Array, alpha: float) -> tuple[Float64Array, float]:
    """The w > 0 [K] with gram @ w = w^(-1/alpha), and the largest |gram @ w - w^(-1/alpha)| over w^(-1/alpha).

    `gram` is a Gramian with a positive diagonal [K, K], `alpha` above 0.
    """
    power, scale = -1 / alpha, float(np.median(np.diag(gram)))
    gram = gram / scale  # w scales by a power of it
    w = np.diag(gram) ** (-alpha / (1 + alpha))  # the solution for orthogonal rows
    lengths, rounding = 1 / w, ROUNDING * np.eye(len(w))
    for _ in range(MOST_STEPS):
        slope = gram @ w - w**power
        bend = gram - np.diag(power * w ** (power - 1))
        scales = 1 / np.sqrt(np.diag(bend))
        step = scales * np.linalg.solve(bend * np.outer(scales, scales) + rounding, scales * slope)
        fall = float(slope @ step)
        length, now = min(1.0, 0.9 / max(float((step / w).max()), 0.9)), _utility(gram, w, power)
        small = ROUNDING * max(1.0, abs(now))
        while _utility(gram, w - length * step, power) > now - 0.25 * length * fall + small:
            length /= 2
        w = w - length * step
        if fall <= small or not float((w * lengths).max()) < LARGEST:
            break
    residual = float((np.abs(gram @ w - w**power) / w**power).max())
    return w * scale ** (-alpha / (1 + alpha)), residual


def _utility(gram: Float64Array, w: Float64Array, power: float) -> float:
    """What is convex in w and smallest at the solution: half w . gram w less the utility of w."""
    utility = np.log(w) if power == -1 else w ** (1 + power) / (1 + power)
    return 0.5 * float(w @ gram @ w) - float(utility.sum())


METHODS = (Profile(name="fairgrad", title="FairGrad", settings=FairGradSettings, build=FairGrad, rule=FREE_LENGTH),)
