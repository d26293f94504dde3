"""FedEBA+: weights of largest entropy, and an alignment that depends on how unequal the losses are.

Wang, Wang, Shi, Karimireddy and Tang, "FedEBA+: Towards Fair and Effective Federated Learning via Entropy-Based Model",
arXiv 2301.12407: the weights of equation (3), and Algorithm 1 with its model alignment, its gradient alignment, and the
angle that chooses between them.

Deviations from the paper: weights and angle take the losses at the model received. Gradient alignment mixes the fair
gradient sum p_k g_k into every local step, for which the clients need it before they begin, in an exchange of its own.
Here a round has one exchange and that mix is left out: after one local step, as with gradients, the sum is the same
with and without it. The mean of model alignment is that of the rows, hence after whole passes, not after their first
step; with gradients it is the paper's. Without a loss above 0 the weights are alike.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.methods.guidance import ANGLE, angle
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, RoundBatch, Sees


class FedEbaSettings(Group):
    """FedEBA+."""

    tau: float = own(0.5, "temperature; small looks at the highest loss alone", gt=0)
    alpha: float = expert(0.5, "share of the plain mean where losses are nearly equal; 0 is FedEBA", ge=0, le=1)
    angle: float = expert(45.0, "degrees between the losses and equal ones up to which they count as such", ge=0, le=90)


class FedEba(GramMethod):
    """step = eta sum p_k g_k with p_k = exp(F_k / tau) / sum_j exp(F_j / tau) while the losses are unequal.

    While the angle between (F_1, ..., F_K) and (1, ..., 1) is at most `angle`, the step is
    eta sum ((1 - alpha) p_k + alpha / K) g_k.
    """

    sees = Sees.NORMS

    def weights(self, batch: RoundBatch) -> Combination:
        """eta times the weights, which sum to 1."""
        settings, count = self._run.group_of(FedEbaSettings), len(batch.clients)
        fair = np.exp((batch.losses - batch.losses.max()) / settings.tau)
        fair /= fair.sum()
        degrees = angle(batch.losses)
        aligned = degrees <= settings.angle
        weights = (1 - settings.alpha) * fair + settings.alpha / count if aligned else fair
        notes = {"angle": degrees, "model_alignment": float(aligned), "largest_weight": float(weights.max())}
        return Combination(self._row_lr * weights, notes=notes)


class _FedEba(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return ANGLE if run.group_of(FedEbaSettings).alpha else ""


METHODS = (_FedEba(name="fedeba+", title="FedEBA+", settings=FedEbaSettings, build=FedEba, group="fedeba"),)
