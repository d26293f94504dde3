"""DQN-Fed for a server that has no row: the anchored form, made of inner products and one sum.

The step is u = beta u_{t-1} + sum_k c_k g_k. The anchor is momentum, or the mean gradient: beta u_{t-1} + eta sum p_k
g_k. It is no vector here, but part of the sum, so that every c_k is at least eta p_k and the sum is no client's row.
What g_k . u_{t-1} is, each client says.

Inner products come from sketches of m numbers, so each demand has a margin of `MARGIN` |g_k| |eta g| / sqrt(m), g the
mean gradient; it is 0 where a sketch is the row. Where one client would have more of the weights than a sum may give
it, the mean gradient counts for more, and the demands are met around it: a longer step, whose length clients settle.

Not there, for want of a second sum at one model: the one-sided step and that with equal cosines where this one fails,
an anchor that sees the mean gradient by itself, rows of absent clients.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights
from dqnfed_flwr.masked import ALONG, MOST
from dqnfed_flwr.masked.sketch import LONGEST
from dqnfed_flwr.methods._base import Method, RoundRows, answer
from dqnfed_flwr.methods.dqn_fed.anchored import fit_clients, limit_spread
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.methods.server_memory import MomentumSettings
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch, Sees

ANCHORS = ("momentum", "fedsgd")
"""What fits into the one sum."""
MARGIN = 1.0
FLOORS = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
"""By how many times eta times the mean gradient the step is made longer, the first that a sum allows."""
ROOM = 0.98
"""Of what a client's share of the weights may be."""


class MaskedAnchored(Method):
    """min |u - u_a|^2 subject to grads @ u >= rates + margin, by the Gramian alone; the last slot holds u_{t-1}."""

    guaranteed, reference_rows, sees = True, 1, Sees.PRODUCTS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._settings = run.group_of(DqnFedSettings)
        heavy = run.anchor is not None and run.anchor.method.name == "momentum"
        self._beta = run.group_of(MomentumSettings).beta if heavy else 0.0

    def extras(self, dim: int) -> Extras:
        """How each loss falls along the last step."""
        return Extras(figures=(ALONG,)) if self._beta else Extras()

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, and beta."""
        fit, excluded = fit_clients(batch, self._settings.rate_spread)
        weights, last = np.zeros(rows.capacity), rows.capacity - 1
        if not fit.any():
            return Combination(weights, status="stationary", excluded=excluded)
        shares = spread_out(batch.shares)
        mean = self._row_lr * batch.gram @ shares
        along = self._beta * rows.gram((*rows.slots, last))[-1, :-1]
        falls = float(shares @ (mean + along)) > 0
        weights[last] = self._beta if falls and rows.squared_norm(last) else 0.0
        offset = mean + along if falls else mean
        solution, found, notes = self._within_bounds(batch, fit, offset, rows.dim, shares)
        notes["anchor_reset"] = float(not falls)
        if solution.status == "stationary":
            return answer(np.zeros(rows.capacity), solution, excluded, notes=notes)
        weights[list(rows.slots)] = found
        return answer(weights, solution, excluded, notes=notes)

    def _within_bounds(
        self, batch: RoundBatch, fit: NDArray[np.bool_], offset: Float64Array, size: int, shares: Float64Array
    ) -> tuple[GramSolution, Float64Array, dict[str, float]]:
        """Coefficients of which none is more than a sum may give one client; the solution, and notes.

        Where no floor brings them there, the largest of those with the first floor is cut.
        """
        tried = []
        for floor in FLOORS:
            solution = self._solve(batch, fit, offset, floor * self._row_lr * batch.gram @ shares, size)
            found = (1 + floor) * self._row_lr * shares
            found[fit] += solution.weights
            if solution.status == "stationary" or found.max() <= ROOM * MOST * found.sum():
                return solution, found, {"floor": 1 + floor}
            tried.append((solution, found))
        solution, found = tried[0]
        largest = int(found.argmax())
        found[largest] = ROOM * MOST / (1 - ROOM * MOST) * (found.sum() - found[largest])
        return solution, found, {"floor": 1.0, "capped": 1.0}

    def _solve(
        self, batch: RoundBatch, fit: NDArray[np.bool_], offset: Float64Array, more: Float64Array, size: int
    ) -> GramSolution:
        """What is to be added to the anchor, whose products with the rows are `offset` and `more`; [n] of those fit.

        Where no step meets the demands with their margin, they go without it.
        """
        gram, demands = batch.gram[np.ix_(fit, fit)], self._demands(batch, fit, offset)
        for margin in (self._margin(batch, size)[fit], 0.0):
            solution = one_sided_weights(gram, demands + margin, offset=(offset + more)[fit])
            if solution.status != "stationary":
                return solution
        return solution

    def _margin(self, batch: RoundBatch, size: int) -> Float64Array:
        """By how much the product of a row with the step may be off [K], with sketches of so many numbers."""
        length = self._row_lr * math.sqrt(max(float(batch.shares @ batch.gram @ batch.shares), 0.0))
        share = MARGIN / math.sqrt(size) if size == LONGEST else 0.0
        return np.asarray(share * length * np.sqrt(np.diag(batch.gram)))

    def _demands(self, batch: RoundBatch, fit: NDArray[np.bool_], offset: Float64Array) -> Float64Array:
        """What the clients that are `fit` ask for: rates at the scale of the anchor, or no more than a rise."""
        served, gram = batch.served[fit], np.diag(batch.gram)[fit]
        rates = limit_spread(batch.rates[fit], gram, self._settings.rate_spread)
        if not served.all():
            descents = np.maximum(offset[fit], 0)
            descent = float(descents[~served].mean()) or float(descents.mean())
            rates = self._settings.scale * descent * rates / rates[~served].mean()
        return np.where(served, -batch.slack[fit], rates) if served.any() else np.asarray(rates)


def spread_out(shares: Float64Array) -> Float64Array:
    """Shares [K] of which none is more than a sum may give one client: mixed with equal ones where it takes that."""
    most, largest, equal = ROOM * MOST, float(shares.max()), 1 / len(shares)
    if largest <= most or equal >= most:
        return shares
    part = (largest - most) / (largest - equal)
    return np.asarray((1 - part) * shares + part * equal)
