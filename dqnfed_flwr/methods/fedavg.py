"""FedAvg and FedSGD.

McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.plan import GRADIENTS, Profile
from dqnfed_flwr.schema.work import SGD
from dqnfed_flwr.types import Combination, RoundBatch, Sees


class FedAvg(GramMethod):
    """step = sum p_k (theta - theta_k), the rows being the displacements of E epochs of local SGD.

    Deviations: the shares p_k are those of the clients present, as in the paper's Algorithm 1.
    """

    sees = Sees.NORMS

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        return Combination(batch.shares.copy())


class FedSgd(GramMethod):
    """step = eta * sum p_k g_k, the rows being gradients at the received model. No deviations."""

    sees = Sees.NORMS

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * p_k."""
        return Combination(self._row_lr * batch.shares)


METHODS = (
    Profile(name="fedavg", title="FedAvg", works=(SGD,), build=FedAvg),
    Profile(
        name="fedsgd",
        title="FedSGD",
        works=GRADIENTS,
        one_gradient="one gradient a round is what the method is",
        build=FedSgd,
    ),
)
