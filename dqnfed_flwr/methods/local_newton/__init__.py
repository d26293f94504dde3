"""LocalNewton and GIANT: the mean of the clients' own Newton steps.

Wang, Roosta, Xu and Mahoney, "GIANT: Globally Improved Approximate Newton Method for Distributed Optimization",
NeurIPS 2018, equation (4); Gupta, Ghosh, Derezinski, Khanna, Ramchandran and Mahoney, "LocalNewton: Reducing
Communication Bottleneck for Distributed Learning", 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.schema.work import SOFTMAX, CurvatureMatrix, WorkProfile, cg_title
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch, Sees


def _by_cg(run: RunPlan) -> bool:
    return run.group_of(LocalNewtonSettings).solver == "cg"


class LocalNewtonSettings(Group):
    """LocalNewton, GIANT."""

    solver: Literal["cg", "lbfgs"] = expert("cg", "how H_k^-1 g_k is had: conjugate gradients, or L-BFGS")
    damping: float = expert(0.1, "ridge on the Hessian (cg)", read=_by_cg, ge=0)
    matrix: CurvatureMatrix = expert("gauss-newton", "what H_k is (cg); networks need gauss-newton", read=_by_cg)


class LocalNewton(GramMethod):
    """step = sum p_k H_k^-1 g_k, the rows being the clients' Newton steps.

    Deviations: each client solves with its own gradient, as LocalNewton does; GIANT spends a second exchange a round
    on the mean gradient. Means are by sample shares. Neither paper's line search is here: the step rule sets the
    length, eta = 1 by default. A client without positive curvature falls back to a gradient step and is counted in
    the notes, where published code returns what its solver left.
    """

    sees = Sees.NORMS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        by_history = run.group_of(LocalNewtonSettings).solver == "lbfgs"
        self._figures = ("pairs",) if by_history else ("iterations", "negative", "residual")

    def extras(self, dim: int) -> Extras:
        """Figures of the clients' solves."""
        return Extras(figures=self._figures)

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        return Combination(batch.shares.copy(), notes=_notes(batch.figures))


def _notes(figures: Mapping[str, Float64Array]) -> dict[str, float]:
    """Clients that met negative curvature, most iterations, worst residual, fewest pairs."""
    notes: dict[str, float] = {}
    if "iterations" in figures:
        notes["cg_iterations"] = float(figures["iterations"].max())
        notes["negative_curvature"] = float(np.count_nonzero(figures["negative"]))
        notes["cg_residual"] = float(figures["residual"].max())
    if "pairs" in figures:
        notes["fewest_pairs"] = float(figures["pairs"].min())
    return notes


class _LocalNewton(Profile):
    def title_of(self, run: RunPlan) -> str:
        own_settings = run.group_of(LocalNewtonSettings)
        return f"LocalNewton ({'L-BFGS' if own_settings.solver == 'lbfgs' else cg_title(own_settings.matrix)})"

    def classes_only(self, run: RunPlan) -> str:
        softmax = _by_cg(run) and run.group_of(LocalNewtonSettings).matrix == "gauss-newton"
        return SOFTMAX.format(key="local-newton.matrix") if softmax else ""

    def faults(self, run: RunPlan) -> Iterator[str]:
        if _by_cg(run):
            return
        if run.settings.curvature.kind == "none":
            yield "curvature.kind: local-newton.solver lbfgs needs curvature pairs, found 'none'; use secant or hvp"
        if (epochs := run.settings.local.epochs) > 1:
            yield f"local.epochs: local-newton.solver lbfgs takes one step a round, found {epochs}; use 1, or solver cg"

    def reads_curvature(self, run: RunPlan) -> bool:
        return not _by_cg(run)


METHODS = (
    _LocalNewton(
        name="local-newton",
        title="LocalNewton",
        settings=LocalNewtonSettings,
        build=LocalNewton,
        works=(WorkProfile("newton", "dqnfed_flwr.methods.local_newton.client:NewtonWork", epochs=True, twice=True),),
    ),
)
