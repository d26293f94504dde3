"""AdaFed: a common descent direction along which a larger loss falls faster.

Hamidi and Yang, "AdaFed: Fair Federated Learning via Adaptive Common Descent Direction", TMLR 2024: orthogonal
vectors (5), (6) with the rates |F_k|^gamma, and their convex combination of least norm. It is DQN-Fed's direction
with other rates.

Deviations from the paper: solved on the Gramian at once, so that the order of the clients does not matter. Gradients
are normalised first. A client with a zero gradient, or a rate below `SMALLEST_RATE` of the largest, is left out and
counted. Where the gradients are dependent and no direction has the rates, the nearest in least squares is taken, and
none (`stationary`) if some loss does not fall along it.
Deviations from published code: no constant in place of a zero denominator.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.linalg.min_norm import STATIONARY_COSINE, two_sided_weights
from dqnfed_flwr.methods._base import GramMethod, answer, left_out
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import FREE_LENGTH, Profile, RunPlan
from dqnfed_flwr.types import Combination, RoundBatch

SMALLEST_RATE = 1e-9
"""A rate below this share of the largest is lost in the rounding of the solve."""


class AdaFedSettings(Group):
    """AdaFed."""

    gamma: float = own(1.0, "power of the loss in a client's rate", ge=0)


class AdaFed(GramMethod):
    """step = eta d, with d the shortest vector of the affine hull of the u_k / |F_k|^gamma, u_k = g_k / |g_k|.

    With x the shortest solution of u_k . x = |F_k|^gamma, d = x / |x|^2; so u_k . d is the same multiple of
    |F_k|^gamma for every client.
    """

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the rows as they are, not normalised."""
        squares = np.diag(batch.gram)
        rates = np.abs(batch.losses) ** self._run.group_of(AdaFedSettings).gamma
        moving = squares > 0
        fit = moving & (rates > SMALLEST_RATE * rates.max(initial=0.0, where=moving))
        excluded = left_out(batch, fit)
        weights = np.zeros(len(batch.clients))
        if not fit.any():
            return Combination(weights, status="stationary", excluded=excluded)
        norms = np.sqrt(squares[fit])
        cosines = batch.gram[np.ix_(fit, fit)] / np.outer(norms, norms)
        solution = two_sided_weights(cosines, rates[fit])
        slopes = cosines @ solution.weights
        descends = bool((slopes > STATIONARY_COSINE * rates[fit]).all())
        if descends:
            weights[fit] = self._row_lr * solution.weights / norms / float(solution.weights @ slopes)
        status = solution.status if descends else "stationary"
        return answer(weights, solution, excluded, status=status)


class _AdaFed(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return "takes powers of losses" if run.group_of(AdaFedSettings).gamma else ""


METHODS = (_AdaFed(name="adafed", title="AdaFed", settings=AdaFedSettings, build=AdaFed, rule=FREE_LENGTH),)
