"""DQN-Fed on the Gramian alone: the two-sided and the one-sided form.

Hamidi and Ye, "Distributed Quasi-Newton Method for Fair and Fast Federated Learning", TMLR 2025; `dqn_fed` tells the
forms apart and lists the deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import DqnFedSettings
from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights
from dqnfed_flwr.methods._base import GramMethod, State
from dqnfed_flwr.methods.rates import fit_clients, limit_spread
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

Solve = Callable[[Float64Array, Float64Array], GramSolution]
"""From a Gramian [K, K] and demands [K] to weights."""
FALLBACKS = ("rates", "equal-cosines")
"""Steps of the one-sided form: at least the rates, then the same cosine with every gradient."""


class TwoSided(GramMethod):
    """The paper's form: the rates as given, met exactly by `solve(gram, rates)`."""

    def __init__(self, settings: DqnFedSettings, solve: Solve) -> None:
        self._spread, self._solve = settings.rate_spread, solve

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        return weigh(batch, self._spread, self._solve)


class OneSided(GramMethod):
    """grads @ step >= rates, where a client below its entitlement asks only not to rise above it.

    Where no such step exists, or no length of it suits everybody, the step with equal cosines is tried: along the
    shortest point of the convex hull of the unit gradients of those above their entitlement.
    """

    guaranteed = True

    def __init__(self, settings: DqnFedSettings) -> None:
        self._spread, self._first = settings.rate_spread, 0

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        found = self._step(batch, self._first)
        for fallback in range(self._first + 1, len(FALLBACKS)):
            if found.status != "stationary":
                break
            found = self._step(batch, fallback)
        return found

    def _step(self, batch: RoundBatch, number: int) -> Combination:
        """That of `FALLBACKS`; the last one where there is none of this number."""
        if number:
            return equal_cosines(batch, self._spread)
        return weigh(batch, self._spread, one_sided_weights)

    def settle(self, step: object, factor: float) -> None:
        """A retreat ends with its round."""
        del step, factor
        self._first = 0

    def retreat(self) -> bool:
        """Fall back to equal cosines, once a round."""
        self._first += 1
        return self._first < len(FALLBACKS)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """How far it has fallen back in this round."""
        return {"fallback": np.array(self._first)}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._first = int(state.get("fallback", 0))


def weigh(batch: RoundBatch, spread: float, solve: Solve) -> Combination:
    """Weights of the rows that can be held to a rate, with the rates held within `spread` of their median."""
    fit, excluded = fit_clients(batch, spread)
    index = np.flatnonzero(fit)
    weights = np.zeros(len(batch.clients))
    if not index.size:
        return Combination(weights, status="stationary", excluded=excluded)
    gram = batch.gram[np.ix_(index, index)]
    rates = limit_spread(batch.rates[index], np.diag(gram), spread)
    served = batch.served[index]
    if served.any() and not served.all() and solve is one_sided_weights:  # where all are, all may as well fall
        rates = np.where(served, -batch.slack[index], rates)
    solution = solve(gram, rates)
    weights[index] = solution.weights
    squared_norm = float(solution.weights @ gram @ solution.weights)
    return describe(weights, solution, excluded, length=squared_norm)


def equal_cosines(batch: RoundBatch, spread: float) -> Combination:
    """The shortest step with the same product with every unit gradient of those above their entitlement.

    It is the shortest point of the convex hull of these unit gradients, brought to a length: the direction of all whose
    smallest cosine with them is largest (MGDA on unit rows; Desideri 2012). Where all are below, of all clients.
    """
    fit, excluded = fit_clients(batch, spread)
    index = np.flatnonzero(fit & ~batch.served) if (fit & ~batch.served).any() else np.flatnonzero(fit)
    weights = np.zeros(len(batch.clients))
    if not index.size:
        return Combination(weights, status="stationary", excluded=excluded)
    gram = batch.gram[np.ix_(index, index)]
    norms = np.sqrt(np.diag(gram))
    typical = float(np.median(batch.rates[index] / norms))
    solution = one_sided_weights(gram, typical * norms)
    weights[index] = solution.weights
    found = describe(weights, solution, excluded, length=float(solution.weights @ gram @ solution.weights))
    return replace(found, notes={"equal_cosines": 1.0})


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
