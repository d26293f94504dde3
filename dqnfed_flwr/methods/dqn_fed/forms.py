"""The forms of DQN-Fed that start from no other step, two-sided and one-sided, and which rates a client is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights, two_sided_weights
from dqnfed_flwr.methods._base import GramMethod, State, answer, left_out
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

Solve = Callable[[Float64Array, Float64Array], GramSolution]
"""From a Gramian [K, K] and demands [K] to weights."""
MAX_INVERSE_CURVATURE = 1e12
"""Largest d_k / |g_k|^2 that is believed where rates are not held near their median."""


class TwoSided(GramMethod):
    """The paper's form: the rates as given, met exactly."""

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        settings = run.group_of(DqnFedSettings)
        self._spread = settings.rate_spread
        self._solve = partial(two_sided_weights, ridge=settings.ridge, cutoff=settings.cutoff)

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        return weigh(batch, self._spread, self._solve)


class OneSided(GramMethod):
    """grads @ step >= rates, where a client below its entitlement asks only not to rise above it.

    Where no such step exists, or no length of it suits all clients, the step with equal cosines is tried: along the
    shortest point of the convex hull of the unit gradients of those above their entitlement.
    """

    guaranteed = True

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self._spread, self._fallbacks = run.group_of(DqnFedSettings).rate_spread, 0

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        if not self._fallbacks:
            found = weigh(batch, self._spread, one_sided_weights)
            if found.status != "stationary":
                return found
        return equal_cosines(batch, self._spread)

    def step_taken(self, step: object, factor: float) -> None:
        """The next round begins with the rates again."""
        self._fallbacks = 0

    def fall_back(self) -> bool:
        """Fall back to equal cosines, once a round."""
        self._fallbacks += 1
        return self._fallbacks == 1

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """How often it has fallen back in this round."""
        return {"fallback": np.array(self._fallbacks)}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._fallbacks = int(state.get("fallback", 0))


def weigh(batch: RoundBatch, spread: float, solve: Solve) -> Combination:
    """Weights of the rows that can be held to a rate, with the rates held within `spread` of their median."""
    fit, excluded = fit_clients(batch, spread)
    rates = limit_spread(batch.rates[fit], np.diag(batch.gram)[fit], spread)
    served = batch.served[fit]
    if served.any() and not served.all() and solve is one_sided_weights:  # where all are, all may as well fall
        rates = np.where(served, -batch.slack[fit], rates)
    return _solved(batch, fit, rates, solve, excluded)


def equal_cosines(batch: RoundBatch, spread: float) -> Combination:
    """The shortest step with the same product with every unit gradient of those above their entitlement.

    It is the shortest point of the convex hull of these unit gradients, brought to a length: the direction of all whose
    smallest cosine with them is largest (MGDA on unit rows; Desideri 2012). Where all are below, of all clients.
    """
    fit, excluded = fit_clients(batch, spread)
    asking = fit & ~batch.served if (fit & ~batch.served).any() else fit
    norms = np.sqrt(np.diag(batch.gram)[asking])
    typical = float(np.median(batch.rates[asking] / norms)) if norms.size else 0.0
    found = _solved(batch, asking, typical * norms, one_sided_weights, excluded)
    return replace(found, notes={"equal_cosines": 1.0}) if norms.size else found


def _solved(
    batch: RoundBatch, asking: NDArray[np.bool_], demands: Float64Array, solve: Solve, excluded: dict[int, str]
) -> Combination:
    """The step that the `demands` [n] of the n clients in `asking` [K] ask for; none where there is no such client."""
    weights = np.zeros(len(batch.clients))
    if not asking.any():
        return Combination(weights, status="stationary", excluded=excluded)
    gram = batch.gram[np.ix_(asking, asking)]
    solution = solve(gram, demands)
    weights[asking] = solution.weights
    return answer(weights, solution, excluded, length=float(solution.weights @ gram @ solution.weights))


def fit_clients(batch: RoundBatch, spread: float) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Clients with a gradient and a positive, believable rate, as a mask [K]; the others, with the reason.

    Where rates are held near their median by a `spread`, none is too large.
    """
    squared_norms = np.diag(batch.gram)
    fit = (squared_norms > 0) & np.isfinite(batch.rates) & (batch.rates > 0)
    if not spread:
        fit &= batch.rates <= MAX_INVERSE_CURVATURE * squared_norms
    return fit, left_out(batch, fit)


def limit_spread(rates: Float64Array, squared_norms: Float64Array, spread: float) -> Float64Array:
    """Hold d_k / |g_k|^2, a client's mean inverse curvature, within the factor `spread` of the median over clients.

    `rates` are d~_k and `squared_norms` |g_k|^2, both positive [K]; a spread of 0 leaves the rates as they are. One
    secant pair tells little: its rates differ by up to 70-fold between clients, and the step then leans so far towards
    a few that the others allow hardly any length.
    """
    if not spread or not rates.size:
        return rates
    inverse = rates / squared_norms
    median = float(np.median(inverse))
    return np.asarray(np.clip(inverse, median / spread, median * spread) * squared_norms)
