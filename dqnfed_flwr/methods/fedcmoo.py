"""FedCMOO: weights that follow the conflict of the clients' gradients, a short way in each round.

Askin, Sharma, Joshi and Joe-Wong, "Federated Communication-Efficient Multi-Objective Optimization", AISTATS 2025,
Algorithm 1 with its subroutine FindWeights; here the loss of each client is an objective of its own.

Deviations from the paper: there every client has all objectives, and one weighted gradient of them goes up. To find the
weights, compressed gradients go up before the local passes. Here a client has one objective, the server has its row
whole, and the Gramian is exact. It is that of the rows that make the step, so that a round takes one exchange;
displacements are divided by local rate and number of steps, which makes them the mean gradient on their way. A rate
above 1 over the Gramian's largest eigenvalue, with which the weights would jump between clients, counts as that (note
`rate`). A client without a gradient is left out and counted, and keeps its weight; should the others have none, they
begin alike. With sampling the weights of the clients present are normalised and moved among themselves. The form with
preferences, FedCMOO-Pref, is not here.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.linalg.box_qp import project_simplex
from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.methods._base import GramMethod, RoundRows, left_out
from dqnfed_flwr.methods.afl import HeldWeights
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

STEPS = 1000
"""Steps of the weights in a round. While beta is small only its product with them counts: `fedcmoo.rate` is enough."""


class FedCmooSettings(Group):
    """FedCMOO."""

    rate: float = own(0.001, "beta, rate of the weights", gt=0)


class FedCmoo(GramMethod):
    """step = eta sum w_k g_k, after some steps w <- Proj(w - beta G w) on the simplex, G the Gramian of the g_k.

    The weights begin alike and go on from round to round. With many steps they come near those of MGDA.
    """

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._settings = run.group_of(FedCmooSettings)
        self._held = HeldWeights()
        self._memories = (self._held,)
        self._present: Float64Array = np.empty(0)
        self._rate = 0.0

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Move the weights of the clients present by this round's Gramian."""
        weights = self._held.take(batch, np.ones(len(batch.clients)))
        moving = np.diag(batch.gram) > 0
        self._present, self._rate = np.zeros(len(weights)), 0.0
        if moving.any():
            units = self._units(batch)[moving]
            gram = batch.gram[np.ix_(moving, moving)] / np.outer(units, units)
            self._rate = min(self._settings.rate, 1 / float(np.linalg.eigvalsh(gram)[-1]))
            mass = float(weights[moving].sum())
            start = weights[moving] / mass if mass > 0 else np.full(len(gram), 1 / len(gram))
            self._present[moving] = find_weights(start, gram, self._rate, STEPS)
            weights[moving] = mass * self._present[moving]
        self._held.put(batch, weights)

    def _units(self, batch: RoundBatch) -> Float64Array:
        """What makes a gradient of each row [K]: 1 where it is one, else local rate times steps."""
        run, local = self._run, self._run.settings.local
        if run.last.work.scaled_row:
            return np.ones(len(batch.clients))
        steps = local.epochs * np.ceil(batch.examples / (local.batch_size or np.inf)).clip(min=1)
        return np.asarray(local.lr * local.decay ** (batch.round - 1) * steps)

    def weights(self, batch: RoundBatch) -> Combination:
        """eta w_k, 0 for clients without a gradient."""
        excluded = left_out(batch, np.diag(batch.gram) > 0)
        status = Status.CONVERGED if self._present.any() else Status.STATIONARY
        notes = {"largest_weight": float(self._present.max()), "rate": self._rate}
        return Combination(self._row_lr * self._present, status=status, excluded=excluded, notes=notes)


def find_weights(weights: Float64Array, gram: Float64Array, rate: float, iterations: int) -> Float64Array:
    """`weights` [K] after so many projected gradient steps on 1/2 w . gram w over the simplex; gram [K, K]."""
    for _ in range(iterations):
        moved = project_simplex(weights - rate * (gram @ weights))
        if np.array_equal(moved, weights):
            break
        weights = moved
    return weights


METHODS = (Profile(name="fedcmoo", title="FedCMOO", settings=FedCmooSettings, build=FedCmoo),)
