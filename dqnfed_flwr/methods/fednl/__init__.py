"""FedNL: Newton's step with Hessians that the server learns from compressed corrections.

Safaryan, Islamov, Qian and Richtarik, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", ICML 2022,
Algorithm 1 (FedNL) and the variant for partial participation (FedNL-PP).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import BLIND, Profile, RunSettings
from dqnfed_flwr.schema.work import WorkProfile


def _diagonal(run: RunSettings) -> bool:
    return run.group_of(FedNlSettings).form == "diagonal"


def _blocks(run: RunSettings) -> bool:
    return not _diagonal(run)


def _last_layer(run: RunSettings) -> bool:
    return run.group_of(FedNlSettings).form == "last-layer"


class FedNlSettings(Group):
    """FedNL."""

    form: Literal["exact", "last-layer", "diagonal"] = own(
        "last-layer", "part of the Hessian that is learned; exact up to 2,000 parameters"
    )
    compressor: Literal["rank", "top"] = own("rank", "Rank-R or Top-K of the correction", read=_blocks)
    size: int = own(1, "R, or K in units of D", read=_blocks, ge=1)
    alpha: float = own(1.0, "rate of the Hessian learning", gt=0, le=1)
    option: Literal["projection", "shift"] = own("shift", "eigenvalues cut at mu, or error added")
    mu: float = own(1e-3, "smallest eigenvalue (projection)", gt=0)
    fresh: bool = own(
        False,
        "step with the Hessians as corrected in the round, not before; always so with sampling",
        read=lambda run: run.sampled >= run.clients,
    )
    probes: int = own(1, "random estimates a round (diagonal)", read=_diagonal, ge=1)
    damping: float = own(0.5, "ridge on the learned Hessian (last-layer)", read=_last_layer, ge=0)


def _build(run: RunSettings) -> Any:
    from dqnfed_flwr.methods.fednl.server import fednl

    return fednl(run)


def _variant(run: RunSettings) -> str:
    form = run.group_of(FedNlSettings).form
    if form == "exact":
        return "FedNL-PP" if run.sampled < run.clients else "FedNL"
    return f"FedNL ({form.replace('-', ' ')})"


def _faults(run: RunSettings) -> Iterator[str]:
    if _diagonal(run) and run.group_of(FedNlSettings).option == "projection":
        yield (
            "fednl.option: the form diagonal leaves the rest of the Hessian to the shift, found 'projection'; use shift"
        )


METHODS = (
    Profile(
        name="fednl",
        title="FedNL",
        settings=FedNlSettings,
        build=_build,
        works=(WorkProfile("fednl", "dqnfed_flwr.methods.fednl.client:FedNlWork", gradient_row=True, twice=True),),
        rules=BLIND,
        variant=_variant,
        classes_only=lambda run: (
            "makes Hessians of cross-entropies; use task classification, or another method, such as fednew with "
            "fednew.matrix hessian"
        ),
        faults=_faults,
    ),
)
