"""FedNL: Newton's step with Hessians that the server learns from compressed corrections.

Safaryan, Islamov, Qian and Richtarik, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", ICML 2022,
Algorithm 1 (FedNL) and the variant for partial participation (FedNL-PP).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.schema.work import WorkProfile


def _diagonal(run: RunPlan) -> bool:
    return run.group_of(FedNlSettings).form == "diagonal"


def _blocks(run: RunPlan) -> bool:
    return not _diagonal(run)


class FedNlSettings(Group):
    """FedNL."""

    form: Literal["exact", "last-layer", "diagonal"] = expert(
        "last-layer", "part of the Hessian that is learned; exact up to 2,000 parameters"
    )
    compressor: Literal["rank", "top"] = expert("rank", "Rank-R or Top-K of the correction", read=_blocks)
    size: int = expert(1, "R, or K in units of D", read=_blocks, ge=1)
    alpha: float = expert(1.0, "rate of the Hessian learning", gt=0, le=1)
    option: Literal["projection", "shift"] = expert("shift", "eigenvalues cut at mu, or error added")
    fresh: bool = expert(
        False,
        "step with the Hessians as corrected in the round, not before; always so with sampling",
        read=lambda run: run.settings.sampled >= run.settings.clients,
    )


def _build(run: RunPlan) -> Any:
    from dqnfed_flwr.methods.fednl.server import fednl

    return fednl(run)


class _FedNl(Profile):
    def title_of(self, run: RunPlan) -> str:
        form = run.group_of(FedNlSettings).form
        if form == "exact":
            return "FedNL-PP" if run.settings.sampled < run.settings.clients else "FedNL"
        return f"FedNL ({form.replace('-', ' ')})"

    def classes_only(self, run: RunPlan) -> str:
        return (
            "makes Hessians of cross-entropies; use task classification, or another method, such as fednew with "
            "fednew.matrix hessian"
        )

    def faults(self, run: RunPlan) -> Iterator[str]:
        if _diagonal(run) and run.group_of(FedNlSettings).option == "projection":
            yield (
                "fednl.option: the form diagonal leaves the rest of the Hessian to the shift, found 'projection'; use "
                "shift"
            )


METHODS = (
    _FedNl(
        name="fednl",
        title="FedNL",
        settings=FedNlSettings,
        build=_build,
        works=(WorkProfile("fednl", "dqnfed_flwr.methods.fednl.client:FedNlWork", gradient_row=True, twice=True),),
    ),
)
