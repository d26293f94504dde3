"""DQN-Fed on the Gramian alone: the two-sided and the one-sided form.

Hamidi and Ye, "Distributed Quasi-Newton Method for Fair and Fast Federated Learning", TMLR 2025; `dqn_fed` tells the
forms apart and lists the deviations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dqnfed_flwr.config import DqnFedSettings
from dqnfed_flwr.linalg.min_norm import GramSolution
from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.methods.rates import fit_clients, limit_spread
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch


class RateMethod(GramMethod):
    """DQN-Fed on the Gramian alone: the rates as given, met by `solve(gram, rates)`."""

    def __init__(self, settings: DqnFedSettings, solve: Callable[[Float64Array, Float64Array], GramSolution]) -> None:
        self._spread, self._solve = settings.rate_spread, solve

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        fit, excluded = fit_clients(batch)
        index = np.flatnonzero(fit)
        weights = np.zeros(len(batch.clients))
        if not index.size:
            return Combination(weights, status="stationary", excluded=excluded)
        gram = batch.gram[np.ix_(index, index)]
        solution = self._solve(gram, limit_spread(batch.rates[index], np.diag(gram), self._spread))
        weights[index] = solution.weights
        squared_norm = float(solution.weights @ gram @ solution.weights)
        return describe(weights, solution, excluded, length=squared_norm)


def describe(
    weights: Float64Array,
    solution: GramSolution,
    excluded: dict[int, str],
    *,
    length: float,
    notes: dict[str, float] | None = None,
) -> Combination:
    """`weights` with what `solution` says of itself."""
    return Combination(
        weights,
        length=length,
        rank=solution.rank,
        condition=solution.condition,
        residual=solution.residual,
        status=solution.status,
        excluded=excluded,
        notes=notes or {},
    )
