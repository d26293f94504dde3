"""The three minimum-norm problems on the Gramian of K rows, in float64.

| function | step = weights @ grads is the shortest with | used for |
|---|---|---|
| `two_sided_weights` | grads @ step = rates | DQN-Fed as printed: (7), (8), (12), (17) in one solve |
| `one_sided_weights` | grads @ step >= rates - offset | its one-sided and anchored forms |
| `hull_weights` | step in the convex hull of the rows | MGDA |

All are solved on unit rows (`scaling`), so that the lengths of the rows do not matter to the accuracy. The second and
the third are one problem (`least_distance`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.least_distance import ROUNDING, Status, shortest_above
from dqnfed_flwr.linalg.scaling import ScaledGram, checked_vector
from dqnfed_flwr.types import Float64Array

CUTOFF = 1e-7
"""Eigenvalues of the unit-diagonal Gramian below this share of the largest count as zero."""


@dataclass(frozen=True, slots=True)
class GramSolution:
    """Weights of the rows, and how well they do what they should.

    Attributes
    ----------
    weights : Float64Array
        [K], for the rows as given (not scaled); 0 for rows of norm zero.
    rank : int
        Numerical rank of the unit-diagonal Gramian: eigenvalues above `cutoff` times the largest.
    condition : float
        Its condition number over these eigenvalues; NaN when every row is zero.
    residual : float
        Relative residual; see the function.
    status : Status
        See there.
    """

    weights: Float64Array
    rank: int
    condition: float
    residual: float
    status: Status


def two_sided_weights(
    gram: Float64Array, rates: Float64Array, *, ridge: float = 0.0, cutoff: float = CUTOFF
) -> GramSolution:
    """Weights of the shortest step with grads @ step = rates: the step (17) times the direction (12).

    Dependent rows are solved in the least-squares sense over the eigenvalues kept, measured in rate over gradient
    norm. The status is always `converged`: how far dependent rows, a zero row or the ridge keep the step from its
    rates is told by the residual.

    Parameters
    ----------
    gram : Float64Array
        [K, K].
    rates : Float64Array
        [K], of any sign.
    ridge : float
        Added to the diagonal of the unit-diagonal Gramian.
    cutoff : float
        Relative bound below which an eigenvalue counts as zero, in (0, 1).

    Returns
    -------
    GramSolution
        `residual` is |grads @ step - rates| / |rates|, 0 when all rates are 0.

    Raises
    ------
    ShapeError
        If an array has another shape or is not finite.
    ConfigError
        If `ridge` or `cutoff` is out of range.
    """
    if not 0 <= ridge < float("inf"):
        raise ConfigError(f"ridge: must be finite and not negative, found {ridge!r}")
    scaled = _scaled(gram, cutoff)
    wanted = checked_vector("rates", rates, scaled.active.size)
    kept = scaled.kept(cutoff)
    basis = scaled.vectors[:, kept]
    target = wanted[scaled.active] / scaled.norms
    multipliers = basis @ ((basis.T @ target) / (scaled.values[kept] + ridge))
    reached = np.zeros_like(wanted)
    reached[scaled.active] = scaled.norms * (scaled.cosines @ multipliers)
    size = float(np.linalg.norm(wanted))
    residual = float(np.linalg.norm(reached - wanted)) / size if size else 0.0
    return _solution(scaled, scaled.unscale(multipliers), cutoff, residual, Status.CONVERGED)


def one_sided_weights(
    gram: Float64Array, rates: Float64Array, *, offset: Float64Array | None = None, cutoff: float = CUTOFF
) -> GramSolution:
    """Weights w >= 0 of the shortest correction u = w @ grads with grads @ u >= rates - offset.

    With offset = grads @ reference the step reference + u meets the rates and lies as close to the reference as the
    rates allow. A zero row asks for nothing. `cutoff` bears on `rank` and `condition` alone.

    Parameters
    ----------
    gram : Float64Array
        [K, K].
    rates : Float64Array
        [K], of any sign.
    offset : Float64Array | None
        grads @ reference [K]; None for no reference.
    cutoff : float
        As in `two_sided_weights`.

    Returns
    -------
    GramSolution
        Status `stationary` has weights 0: no u meets the demands, or none with a cosine above `STATIONARY_COSINE`.
        With c_k = (rates_k - offset_k) / |g_k| over the largest of them, and v_k = w_k |g_k| in the same units,
        `residual` is the larger of max_k (c_k - (C v)_k) and |v.(C v - c)| / (v.C v), C the unit-diagonal Gramian:
        demand missed, relative to the neediest row's, and complementarity. When stationary it is |A y| / c.y, the
        length of the combination of unit rows that proves it, 0 for an exact proof.

    Raises
    ------
    ShapeError
        If an array has another shape or is not finite.
    ConfigError
        If `cutoff` is out of range.
    """
    scaled = _scaled(gram, cutoff)
    wanted = checked_vector("rates", rates, scaled.active.size)
    given = np.zeros_like(wanted) if offset is None else checked_vector("offset", offset, scaled.active.size)
    demand = wanted - given
    demand[np.abs(demand) <= ROUNDING * (np.abs(wanted) + np.abs(given))] = 0.0
    shortest = shortest_above(scaled, demand[scaled.active] / scaled.norms)
    if shortest.status is Status.STATIONARY:
        return _solution(scaled, np.zeros_like(wanted), cutoff, shortest.residual, shortest.status)
    return _solution(scaled, scaled.unscale(shortest.multipliers), cutoff, shortest.residual, shortest.status)


def hull_weights(gram: Float64Array, *, cutoff: float = CUTOFF) -> GramSolution:
    """Weights on the simplex of the shortest vector p in the convex hull of the rows that are not zero.

    p / |p|^2 is the shortest x with grads @ x >= 1, so this is the one-sided problem with unit rates, normalised.
    A long row beside a short one costs no accuracy.

    Parameters
    ----------
    gram : Float64Array
        [K, K].
    cutoff : float
        As in `two_sided_weights`; bears on `rank` and `condition` alone.

    Returns
    -------
    GramSolution
        Status `stationary` when |p| <= `STATIONARY_COSINE` * min_k |g_k|; the weights are then those of that p,
        and `residual` is |p| / min_k |g_k|. Otherwise `residual` is that of the one-sided problem: the larger of
        max_k (1 - p.g_k / |p|^2) min_j |g_j| / |g_k| and the complementarity. If every row is zero: weights 0,
        stationary.

    Raises
    ------
    ShapeError
        If `gram` has another shape or is not finite.
    ConfigError
        If `cutoff` is out of range.
    """
    scaled = _scaled(gram, cutoff)
    if not scaled.norms.size:
        return _solution(scaled, np.zeros(scaled.active.size), cutoff, 0.0, Status.STATIONARY)
    shortest = shortest_above(scaled, scaled.norms.min() / scaled.norms)
    weights = scaled.unscale(shortest.multipliers)
    return _solution(scaled, weights / weights.sum(), cutoff, shortest.residual, shortest.status)


def _scaled(gram: Float64Array, cutoff: float) -> ScaledGram:
    if not 0 < cutoff < 1:
        raise ConfigError(f"cutoff: must lie between 0 and 1, found {cutoff!r}")
    return ScaledGram.of(gram)


def _solution(
    scaled: ScaledGram, weights: Float64Array, cutoff: float, residual: float, status: Status
) -> GramSolution:
    return GramSolution(weights, scaled.rank(cutoff), scaled.condition(cutoff), residual, status)
