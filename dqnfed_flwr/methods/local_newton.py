"""LocalNewton and GIANT: the mean of the clients' own Newton steps.

Wang, Roosta, Xu and Mahoney, "GIANT: Globally Improved Approximate Newton Method for Distributed Optimization",
NeurIPS 2018, equation (4); Gupta, Ghosh, Derezinski, Khanna, Ramchandran and Mahoney, "LocalNewton: Reducing
Communication Bottleneck for Distributed Learning", 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dqnfed_flwr.config.methods import LocalNewtonSettings
from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch


class LocalNewton(GramMethod):
    """step = sum p_k H_k^-1 g_k, the rows being the clients' Newton steps.

    Deviations: each client solves with its own gradient, as LocalNewton does; GIANT spends a second exchange a round
    on the mean gradient. Means are by sample shares. Neither paper's line search is here: the step rule sets the
    length, eta = 1 by default. A client without positive curvature falls back to a gradient step and is counted in
    the notes, where published code returns what its solver left.

    Parameters
    ----------
    settings : LocalNewtonSettings
        The solver decides which figures clients report.
    """

    def __init__(self, settings: LocalNewtonSettings) -> None:
        self._figures = ("pairs",) if settings.solver == "lbfgs" else ("iterations", "negative", "residual")

    def extras(self, dim: int) -> Extras:
        """Figures of the clients' solves."""
        del dim
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
