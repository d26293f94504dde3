"""VRed and Semi-VRed: the mean loss plus the variance, or the upper semi-variance, of the losses.

Malekmohammadi and Yu, "Semi-Variance Reduction for Fair Federated Learning", 2024.

Deviations from the paper: none known. Deviations from published code: the losses are those before local training,
and the variance is a mean by sample share, not a sum over clients, which would make beta K times as large.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.types import Combination, RoundBatch, Sees


class VRedSettings(Group):
    """VRed."""

    beta: float = own(0.1, "weight of the losses' variance", ge=0)


class SemiVRedSettings(Group):
    """Semi-VRed."""

    beta: float = own(0.1, "weight of the losses' semi-variance", ge=0)


class VRed(GramMethod):
    """step = sum p_k D_k + 2 beta sum p_k e_k (D_k - D), D_k = theta - theta_k, D and F the means by sample share.

    e_k = F_k - F for VRed, its positive part for Semi-VRed. Written as one sum of rows, the weight of D_k is
    p_k (1 + 2 beta (e_k - sum p_j e_j)). The weights sum to 1; with a large beta some are negative.
    """

    sees = Sees.NORMS

    group: type[VRedSettings] | type[SemiVRedSettings] = VRedSettings
    upper = False

    def weights(self, batch: RoundBatch) -> Combination:
        """eta p_k (1 + 2 beta (e_k - mean e)), and how many of them are negative."""
        shares = batch.shares
        excess = batch.losses - float(shares @ batch.losses)
        if self.upper:
            excess = np.maximum(excess, 0.0)
        weights = shares * (1 + 2 * self._run.group_of(self.group).beta * (excess - float(shares @ excess)))
        return Combination(self._row_lr * weights, notes={"negative_weights": float((weights < 0).sum())})


class SemiVRed(VRed):
    """As `VRed`, with the positive part of e_k."""

    group = SemiVRedSettings
    upper = True


METHODS = (
    Profile(name="vred", title="VRed", settings=VRedSettings, build=VRed),
    Profile(name="semi-vred", title="Semi-VRed", settings=SemiVRedSettings, build=SemiVRed),
)
