"""DQN-Fed: one step along which every client's loss falls, in proportion to its own Newton step.

Hamidi and Ye, "Distributed Quasi-Newton Method for Fair and Fast Federated Learning", TMLR 2025: target (5), (6),
direction (7), (8), (12), length (17).

The three forms differ in how the rates d~_k bind:

- `two-sided`, the paper's: grads @ step = rates. (7), (8), (12), (17) together are its minimum-norm solution
  step = grads^T gram^-1 rates, with eta^t = |step|^2.
- `one-sided`: grads @ step >= rates. A client may fall faster than its rate, never slower.
- `anchored`: the step nearest to a reference step that meets grads @ step >= rates, where the rates keep their
  proportions and take their scale from the reference's own mean descent.

Deviations from the paper: rates are held within a factor of their median relative to |g_k|^2 (`rate-spread`, 0 for
the paper's); linearly dependent gradients are allowed; a client with a zero gradient or a rate that is not positive is
left out of the round and counted; the length is left to the step rule (`newton` gives (17)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config import DqnFedSettings
from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights, two_sided_weights
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, State
from dqnfed_flwr.methods.anchors import Anchor, GradientAnchor, LbfgsAnchor, MomentumAnchor, UpdateAnchor
from dqnfed_flwr.methods.rates import fit_clients, limit_spread
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch


def dqn_fed(settings: DqnFedSettings, reference: str) -> Method:
    """The form that `settings` name, around the anchor `reference`."""
    if settings.form == "two-sided":
        return RateMethod(settings, lambda g, d: two_sided_weights(g, d, ridge=settings.ridge, cutoff=settings.cutoff))
    if settings.form == "one-sided" or reference == "none":
        return RateMethod(settings, one_sided_weights)
    return AnchoredMethod(settings, _anchor(settings, reference))


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
        return _combination(weights, solution, excluded, length=squared_norm)


class AnchoredMethod(Method):
    """DQN-Fed around a reference step: min |u - u_ref|^2 subject to grads @ u >= rates.

    Its dual is the one-sided problem with rates lowered by what the reference already gives,
    u = u_ref + weights @ grads.

    Where no length of that step lowers every loss (a noisy reference does that to clients near their optimum), the
    method retreats for one round: the anchor starts anew and the step is the one-sided one.
    """

    reference_rows = 1

    def __init__(self, settings: DqnFedSettings, anchor: Anchor) -> None:
        self._settings = settings
        self._anchor = anchor
        self._fallback = GradientAnchor(settings.lr)
        self._one_sided = RateMethod(settings, one_sided_weights)
        self._retreated = False

    def extras(self, dim: int) -> Extras:
        """What the anchor needs."""
        return self._anchor.extras(dim)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows and, last, of the reference."""
        if self._retreated:
            return replace(self._one_sided.combine(batch, rows), notes={"retreat": 1.0})
        fit, excluded = fit_clients(batch)
        index = np.flatnonzero(fit)
        weights = np.zeros(rows.basis.capacity)
        if not index.size:
            return Combination(weights, status="stationary", excluded=excluded)
        mean_gradient = rows.combine(batch.shares)
        slots = [rows.slots[k] for k in index]
        descent, reset = self._place_reference(mean_gradient, batch.shares, rows)
        gram = batch.gram[np.ix_(index, index)]
        proportions = limit_spread(batch.rates[index], np.diag(gram), self._settings.rate_spread)
        scale = self._settings.scale * float(np.maximum(descent[index], 0).mean())
        solution = one_sided_weights(gram, scale * proportions / proportions.mean(), offset=descent[index])
        weights[slots] = solution.weights
        weights[-1] = 1.0
        if solution.status == "stationary":
            weights[:] = 0
        return _combination(weights, solution, excluded, length=1.0, notes={"anchor_reset": float(reset)})

    def _place_reference(
        self, mean_gradient: Tensor, shares: Float64Array, rows: RoundRows
    ) -> tuple[Float64Array, bool]:
        """Put the reference into the last slot; its products with the clients' rows, and whether it was reset."""
        last = rows.basis.capacity - 1
        reset = False
        for anchor in (self._anchor, self._fallback):
            rows.basis.put(last, anchor.propose(mean_gradient, rows, shares))
            descent = rows.basis.gram((*rows.slots, last))[-1, :-1]
            if np.isfinite(descent).all() and float(shares @ descent) > 0:
                break
            rows.basis.drop(last)
            self._anchor.forget()
            reset = True
        return descent, reset

    def settle(self, step: Tensor, factor: float) -> None:
        """Hand the step on to the anchor's memory; a step that was taken ends a retreat."""
        self._anchor.settle(step, factor)
        if factor > 0:
            self._retreated = False

    def retreat(self) -> bool:
        """Fall back to the one-sided step, once."""
        if self._retreated:
            return False
        self._anchor.forget()
        self._retreated = True
        return True

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The anchor's memory, and whether it retreated."""
        return {"retreated": np.array(self._retreated), **self._anchor.export_state()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._retreated = bool(state["retreated"])
        self._anchor.restore_state(state)


def _anchor(settings: DqnFedSettings, reference: str) -> Anchor:
    if reference == "momentum":
        return MomentumAnchor(settings.lr, settings.beta)
    if reference == "lbfgs":
        return LbfgsAnchor(settings.lr, settings.memory)
    if reference == "update":
        return UpdateAnchor()
    return GradientAnchor(settings.lr)


def _combination(
    weights: Float64Array,
    solution: GramSolution,
    excluded: dict[int, str],
    *,
    length: float,
    notes: dict[str, float] | None = None,
) -> Combination:
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
