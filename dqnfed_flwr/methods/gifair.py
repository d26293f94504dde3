"""GiFair: FedAvg with weights shifted by the rank of a client's loss.

Yue, Nouiehed and Al Kontar, "GIFAIR-FL: A Framework for Group and Individual Fairness in Federated Learning",
INFORMS Journal on Data Science 2023 (arXiv 2021): the individual form, every client a group of its own.

Deviations from the paper: clients of equal loss share the mean of their ranks, so that they are treated alike; lambda
is given as a share of its bound, which moves with the clients present.
"""

from __future__ import annotations

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.types import Combination, RoundBatch, Sees


class GiFairSettings(Group):
    """GiFair."""

    strength: float = own(1.0, "lambda over its bound min p_k / (K - 1)", ge=0, le=1)


class GiFair(GramMethod):
    """step = eta sum (p_k + lambda r_k) g_k, with r_k in -(K-1), -(K-3), ..., K-1 by rising loss.

    The weights sum to 1 and none is negative, because lambda = strength * min p_k / (K - 1).
    """

    sees = Sees.NORMS

    def weights(self, batch: RoundBatch) -> Combination:
        """eta (p_k + lambda r_k)."""
        from scipy.stats import rankdata

        count = len(batch.clients)
        scores = 2 * rankdata(batch.losses) - count - 1
        rate = self._run.group_of(GiFairSettings).strength * float(batch.shares.min()) / max(count - 1, 1)
        return Combination(self._row_lr * (batch.shares + rate * scores), notes={"lambda": rate})


METHODS = (Profile(name="gifair", title="GiFair", settings=GiFairSettings, build=GiFair),)
