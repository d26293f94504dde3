"""FedNew: Newton's step by one pass of ADMM a round, without sending a Hessian.

Elgabli, Ben Issaid, Bedi, Rajawat, Bennis and Aggarwal, "FedNew: A Communication-Efficient and Privacy-Preserving
Newton-Type Method for Federated Learning", ICML 2022, Algorithm 1 (FedNew) and 2 (Q-FedNew).
"""

from __future__ import annotations

from typing import Any, Literal

from dqnfed_flwr.methods._base import CurvatureMatrix, cg_title
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import BLIND, Profile, RunSettings
from dqnfed_flwr.schema.work import LocalWork


def _by_cg(run: RunSettings) -> bool:
    return run.group_of(FedNewSettings).form == "cg"


class FedNewSettings(Group):
    """FedNew."""

    form: Literal["exact", "cg"] = own("cg", "dense Hessians, or conjugate gradients on products")
    alpha: float = own(0.1, "ridge on the Hessian", ge=0)
    rho: float = own(0.1, "penalty of the disagreement", gt=0)
    refresh: int = own(
        1,
        "rounds between Hessians; 0 keeps the first (exact)",
        read=lambda run: run.group_of(FedNewSettings).form == "exact",
        ge=0,
    )
    bits: int = own(0, "quantisation of the message (Q-FedNew); 0 for none", ge=0, le=16)
    iterations: int = own(20, "most of conjugate gradients (cg)", read=_by_cg, ge=1)
    tolerance: float = own(0.01, "relative residual at which they end (cg); 0 for rounding", read=_by_cg, ge=0, lt=1)
    matrix: CurvatureMatrix = own("gauss-newton", "that H_k stands for (cg); networks need gauss-newton", read=_by_cg)


def _build(run: RunSettings) -> Any:
    from dqnfed_flwr.methods.fednew.server import FedNew

    return FedNew(run)


def _variant(run: RunSettings) -> str:
    own_settings = run.group_of(FedNewSettings)
    form = "Q-FedNew" if own_settings.bits else "FedNew"
    return f"{form} ({cg_title(own_settings.matrix)})" if own_settings.form == "cg" else form


METHODS = (
    Profile(
        name="fednew",
        title="FedNew",
        settings=FedNewSettings,
        build=_build,
        works=(LocalWork("fednew", "dqnfed_flwr.methods.fednew.client:FedNewWork", twice=True),),
        rules=BLIND,
        variant=_variant,
        wants_step=True,
    ),
)
