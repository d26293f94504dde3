"""FedMuon: local steps along orthogonalised momentum, a momentum that all share, and a pull along the last step.

Liu, Shang, Zhou, Liu, Liu and Liu, "FedMuon: Accelerating Federated Learning with Matrix Orthogonalization",
arXiv 2510.27403, 2025. Another method of the same year has the same name (arXiv 2509.26337).

Deviations from the paper: means are by sample share. The orthogonal factor of a momentum is found by five steps of
Newton and Schulz with Muon's coefficients, as in the published code, not by a singular value decomposition. As in that
code, kernels of convolutions count as matrices of one row a channel, and biases and other vectors take Adam's steps.
A mean momentum whose square is no number any more is left out and counted (note `overflow`). From published code: no
weight decay, no clipping of gradients, no Nesterov momentum and no factor for tall matrices, which the paper's rule has
not; clients go through `local.epochs` epochs, not through a fixed number of mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dqnfed_flwr.methods._base import GramMethod, RoundRows
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.schema.work import WorkProfile
from dqnfed_flwr.types import Combination, Extras, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor

MOMENTUM = "momentum"


class FedMuonSettings(Group):
    """FedMuon."""

    matrix_rate: float = expert(0.1, "rate of matrices, times local.lr; vectors take a tenth of it", gt=0)
    alignment: float = expert(0.5, "alpha, share of the last step of all in a local step", ge=0, lt=1)


class FedMuon(GramMethod):
    """step = sum p_k (theta - theta_k); the mean of the clients' last momenta begins the local work of the next round.

    What a client does is in `client.FedMuonWork`.
    """

    sees, _remembered = Sees.NORMS, (MOMENTUM,)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._momentum: Tensor | None = None
        self._overflow = False

    def extras(self, dim: int) -> Extras:
        """The momentum after the local work."""
        return Extras({MOMENTUM: (dim,)})

    def sends(self, round_number: int) -> Mapping[str, Tensor]:
        """The mean momentum, once there is one."""
        return {} if self._momentum is None else {MOMENTUM: self._momentum}

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """Whether a momentum comes along."""
        return {MOMENTUM: float(self._momentum is not None)}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean of the clients' momenta."""
        mean = rows.mean_vector(MOMENTUM, batch.shares)
        self._overflow = not math.isfinite(float(mean @ mean))
        if not self._overflow:
            self._momentum = mean

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        return Combination(batch.shares.copy(), notes={"overflow": float(self._overflow)})


class _FedMuon(Profile):
    def faults(self, run: RunPlan) -> Iterator[str]:
        if run.settings.local.momentum:
            yield f"local.momentum: fedmuon has its own, found {run.settings.local.momentum}; use 0"


_WORK = WorkProfile("fedmuon", "dqnfed_flwr.methods.fedmuon.client:FedMuonWork", passes=True, wants_step=True)
METHODS = (_FedMuon(name="fedmuon", title="FedMuon", settings=FedMuonSettings, build=FedMuon, works=(_WORK,)),)
