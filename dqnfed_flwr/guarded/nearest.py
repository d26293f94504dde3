"""The step that a strategy would take, changed as little as the clients of the round demand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import Status, one_sided_weights
from dqnfed_flwr.methods._base import Method, RoundRows, answer
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

CHANGED = "step_changed"
"""Note of a round: 1 where the strategy's step was changed, 0 where it was offered as it was."""
NOTHING = 1e-6
"""A nearest step shorter than this share of the strategy's is none."""


class Nearest(Method):
    """min |u - u_ref|^2 subject to g_k . u >= d_k, u_ref the strategy's own step theta - theta_inner.

    d_k is -(e - f_k) for a client whose loss f_k is below the entitlement e, and else 0: where u_ref meets that for
    everybody it is the step itself. Where it does not, a client at the bound of 0 would not fall at first order, and
    rise at second; so those above their entitlement are then asked to fall, by the share `demand` of the mean rate at
    which u_ref lowers their losses, each in proportion to |g_k|^2. Where no step does that, d_k = 0 stands.

    The reference lies in the last slot. `cuts` says by what rows were made shorter before, by client.
    """

    reference_rows = 1
    sees = Sees.PRODUCTS
    guaranteed = True

    def __init__(self, run: RunPlan, demand: float) -> None:
        super().__init__(run)
        self._demand = demand
        self.cuts: Mapping[int, float] = {}

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, and 1 for the reference."""
        reference = rows.capacity - 1
        gram = rows.gram([*rows.slots, reference])
        own, descents = gram[:-1, :-1], gram[-1, :-1]
        bounds = self._bounds(batch)
        weights = np.zeros(rows.capacity)
        weights[reference] = 1.0
        kept = one_sided_weights(own, np.minimum(bounds, descents), offset=descents)
        if (descents >= bounds).all():
            return answer(weights, kept, {}, notes={CHANGED: 0.0})
        solution = one_sided_weights(own, self._demands(batch, own, descents, bounds), offset=descents)
        if solution.status is Status.STATIONARY:
            solution = one_sided_weights(own, bounds, offset=descents)
        weights[list(rows.slots)] = solution.weights
        square = float(gram[-1, -1] + 2 * solution.weights @ descents + solution.weights @ own @ solution.weights)
        if solution.status is Status.STATIONARY or square <= NOTHING**2 * gram[-1, -1]:
            return answer(np.zeros_like(weights), solution, {}, status=Status.STATIONARY, notes={CHANGED: 1.0})
        return answer(weights, solution, {}, notes={CHANGED: 1.0})

    def _bounds(self, batch: RoundBatch) -> Float64Array:
        """How fast each loss may rise along the step at most, as the least g_k . u [K]."""
        cuts = np.array([self.cuts.get(client, 1.0) for client in batch.clients])
        return -batch.slack * cuts if batch.slack.size else np.zeros(len(batch.clients))

    def _demands(
        self, batch: RoundBatch, gram: Float64Array, descents: Float64Array, bounds: Float64Array
    ) -> Float64Array:
        """The bounds, with what those above their entitlement are asked for [K]."""
        asking: NDArray[np.bool_] = ~batch.served & (np.diag(gram) > 0)
        if not asking.any() or not self._demand:
            return bounds
        squares = np.diag(gram)[asking]
        typical = self._demand * float(np.maximum(descents[asking], 0.0).mean())
        demands = bounds.copy()
        demands[asking] = typical * squares / squares.mean()
        return demands
