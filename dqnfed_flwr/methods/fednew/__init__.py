"""FedNew: Newton's step by one pass of ADMM a round, without sending a Hessian.

Elgabli, Ben Issaid, Bedi, Rajawat, Bennis and Aggarwal, "FedNew: A Communication-Efficient and Privacy-Preserving
Newton-Type Method for Federated Learning", ICML 2022, Algorithm 1 (FedNew) and 2 (Q-FedNew).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from dqnfed_flwr.methods._base import GramMethod, RoundRows
from dqnfed_flwr.methods.absent import Taken
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.schema.work import SOFTMAX, CurvatureMatrix, WorkProfile, cg_title
from dqnfed_flwr.types import Combination, Extras, RoundBatch, Sees


def _by_cg(run: RunPlan) -> bool:
    return run.group_of(FedNewSettings).form == "cg"


def _exact(run: RunPlan) -> bool:
    return not _by_cg(run)


class FedNewSettings(Group):
    """FedNew."""

    form: Literal["exact", "cg"] = expert("cg", "dense Hessians, or conjugate gradients on products")
    alpha: float = expert(0.1, "ridge on the Hessian", ge=0)
    rho: float = expert(0.1, "penalty of the disagreement", gt=0)
    refresh: int = expert(1, "rounds between Hessians; 0 keeps the first (exact)", read=_exact, ge=0)
    bits: int = expert(0, "quantisation of the message (Q-FedNew); 0 for none", ge=0, le=16)
    matrix: CurvatureMatrix = expert("gauss-newton", "what H_k is (cg); networks need gauss-newton", read=_by_cg)


class FedNew(GramMethod):
    """step = y = sum p_k y_k, the rows being the clients' y_k = (H_k + (alpha + rho) I)^-1 (g_k - u_k + rho y).

    Deviations from the paper: means are by sample share; conjugate gradients in place of the inverse (`cg`); with
    sampling, which the paper does not treat, y is the mean over the clients present. The duals' mean is 0 only as long
    as all whose replies made a step receive it; where one of them is absent from the next round, all duals begin anew
    at 0, and this is counted (`duals_anew`). Deviations from published code: the ridge of the loss counts once a
    client, not once more in the sum of the clients' matrices, and the Hessian is that of the loss; a matrix that is not
    positive definite is repaired and counted, not pseudo-inverted.
    """

    sees, _remembered = Sees.NORMS, ("last",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._taken = Taken()
        self._memories = (self._taken,)
        self._last: tuple[int, ...] = ()  # whose replies counted last
        self._anew = False

    def extras(self, dim: int) -> Extras:
        """Figures of the clients' solves.

        Raises
        ------
        ConfigError
            If the exact form would need too large a matrix.
        """
        if _exact(self._run):
            from dqnfed_flwr.linalg.hessian_blocks import check_dense

            check_dense(dim)
        return Extras(figures=("iterations", "repaired"))

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """Which reply of the client counted last."""
        return self._taken.directives(client)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """These clients' y_k go into the step. Their duals go on if those of the step before are all among them."""
        self._anew = not set(self._last) <= set(batch.clients)
        if self._anew:
            self._taken.forget()
        else:
            self._taken.note(batch.clients, batch.round)
        self._last = batch.clients

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        notes = {"duals_anew": float(self._anew)}
        if "repaired" in batch.figures:
            notes["cg_iterations"] = float(batch.figures["iterations"].max())
            notes["not_positive"] = float(np.count_nonzero(batch.figures["repaired"]))
        return Combination(batch.shares.copy(), notes=notes)


class _FedNew(Profile):
    def title_of(self, run: RunPlan) -> str:
        own_settings = run.group_of(FedNewSettings)
        form = "Q-FedNew" if own_settings.bits else "FedNew"
        return f"{form} ({cg_title(own_settings.matrix)})" if own_settings.form == "cg" else form

    def classes_only(self, run: RunPlan) -> str:
        settings = run.group_of(FedNewSettings)
        if settings.form == "exact":
            return "makes dense Hessians of cross-entropies; use fednew.form cg with fednew.matrix hessian"
        return SOFTMAX.format(key="fednew.matrix") if settings.matrix == "gauss-newton" else ""


_WORK = WorkProfile("fednew", "dqnfed_flwr.methods.fednew.client:FedNewWork", twice=True, wants_step=True)
METHODS = (_FedNew(name="fednew", title="FedNew", settings=FedNewSettings, build=FedNew, works=(_WORK,)),)
