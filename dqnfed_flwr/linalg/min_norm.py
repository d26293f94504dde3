"""The three minimum-norm problems on the Gramian of K rows, in float64.

| function | step = weights @ grads is the shortest with | used for |
|---|---|---|
| `two_sided_weights` | grads @ step = rates | DQN-Fed as printed: (7), (8), (12), (17) in one solve |
| `one_sided_weights` | grads @ step >= rates - offset | its one-sided and anchored forms |
| `hull_weights` | step in the convex hull of the rows | MGDA |

All are solved on unit rows (`ScaledGram`): inner products become cosines, so that rows of any length, 1e-8 and 1e8,
weigh alike in the conditioning. Rows of norm zero are set aside, and their weight is 0. The second and the third are
one least-distance problem: min |x| subject to unit rows @ x >= demand. Non-negative least squares solve it (Lawson and
Hanson, Solving Least Squares Problems, chapter 23): with A the unit rows as columns, c the demand and y >= 0 minimising
|A y|^2 + (c.y - 1)^2, the minimum m is 1 / (1 + |x|^2). So m = 0 is the certificate that no x exists, and otherwise y /
m are the multipliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.types import Float64Array

NOISE = 1e-14
"""Relative size below which an eigenvalue of a float64 Gramian is rounding, whatever the rows."""
CUTOFF = 1e-7
"""Eigenvalues of the unit-diagonal Gramian below this share of the largest count as zero."""
STATIONARY_COSINE = 1e-5
"""Rows have no common descent direction when the best one makes a smaller cosine with the neediest row."""
KKT_TOLERANCE = 1e-6
"""Largest relative residual of the optimality conditions with which a solution counts as converged."""
ROUNDING = 1e-14
"""A difference or a sum of vectors below this share of its parts is rounding: a demand that small is met, a
combination of rows that short is zero."""


@dataclass(frozen=True, slots=True)
class ScaledGram:
    """Cosines of the A rows that are not zero, with their spectrum.

    Attributes
    ----------
    active : NDArray[np.bool_]
        Rows with a positive norm [K].
    norms : Float64Array
        Their norms [A].
    cosines : Float64Array
        S G S over them [A, A], unit diagonal.
    values : Float64Array
        Its eigenvalues, rising; those below `NOISE` times the largest are rounding and set to 0 [A].
    vectors : Float64Array
        Its eigenvectors, one a column [A, A].
    """

    active: NDArray[np.bool_]
    norms: Float64Array
    cosines: Float64Array
    values: Float64Array
    vectors: Float64Array

    @classmethod
    def of(cls, gram: Float64Array) -> ScaledGram:
        """Scale the inner products `gram` [K, K], which must be square and finite, with a diagonal >= 0."""
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ShapeError(f"a Gramian of shape {gram.shape}; it holds the inner products of K rows, (K, K)")
        if not np.isfinite(gram).all():
            raise ShapeError("the Gramian has entries that are not finite; leave those rows out first")
        if (gram.diagonal() < 0).any():
            raise ShapeError(f"the Gramian has the squared norm {gram.diagonal().min():g}; it must not be negative")
        squares = gram.diagonal()
        active = squares > 0
        norms = np.sqrt(squares[active])
        cosines = gram[np.ix_(active, active)] / norms / norms[:, None]
        cosines = (cosines + cosines.T) / 2
        np.fill_diagonal(cosines, 1.0)
        values, vectors = np.linalg.eigh(cosines)
        values[values <= NOISE * values.max(initial=0.0)] = 0.0
        return cls(active, norms, cosines, values, vectors)

    @property
    def factor(self) -> Float64Array:
        """Matrix [A, A] whose columns have the cosines as inner products."""
        return np.sqrt(self.values)[:, None] * self.vectors.T

    def kept(self, cutoff: float) -> NDArray[np.bool_]:
        """Eigenvalues above `cutoff` times the largest [A]."""
        return np.asarray(self.values > cutoff * self.values.max(initial=0.0))

    def rank(self, cutoff: float) -> int:
        """Count the eigenvalues kept."""
        return int(self.kept(cutoff).sum())

    def condition(self, cutoff: float) -> float:
        """Divide the largest by the smallest eigenvalue kept; NaN when no row is active."""
        kept = self.values[self.kept(cutoff)]
        return float(kept[-1] / kept[0]) if kept.size else float("nan")

    def unscale(self, multipliers: Float64Array) -> Float64Array:
        """Weights [K] of the rows as given, from weights [A] of their unit vectors; 0 for zero rows."""
        weights = np.zeros(self.active.size)
        weights[self.active] = multipliers / self.norms
        return weights


def checked_vector(name: str, values: Sequence[float] | NDArray[np.floating], size: int) -> Float64Array:
    """`values` as float64 of shape (size,); `ShapeError` if there are not so many, or one is not finite."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (size,):
        raise ShapeError(f"{name} of shape {vector.shape}; need one value for each of the {size} rows, ({size},)")
    if not np.isfinite(vector).all():
        raise ShapeError(f"{name} must be finite; entry {int(np.flatnonzero(~np.isfinite(vector))[0])} is not")
    return vector


class Status(StrEnum):
    """How a solve ended."""

    CONVERGED = "converged"
    STATIONARY = "stationary"
    """No common descent direction: the rows are Pareto-stationary (Definition 3.1)."""
    BVLS = "bvls"
    """Non-negative least squares gave up; bounded-variable least squares met the conditions in its place."""
    NOT_CONVERGED = "not-converged"
    """The optimality conditions are missed by more than `KKT_TOLERANCE`; the best weights found are returned."""


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
    norm. The status is always `converged`: `residual`, |grads @ step - rates| / |rates| or 0 when all rates are 0, says
    how far dependent rows, a zero row or the ridge keep the step from its rates.

    Parameters
    ----------
    gram, rates : Float64Array
        [K, K], and [K] of any sign.
    ridge : float
        Added to the diagonal of the unit-diagonal Gramian.
    cutoff : float
        Relative bound below which an eigenvalue counts as zero, in (0, 1).

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
    gram, rates : Float64Array
        [K, K], and [K] of any sign.
    offset : Float64Array | None
        grads @ reference [K]; None for no reference.

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
    ShapeError, ConfigError
        As `two_sided_weights`.
    """
    scaled = _scaled(gram, cutoff)
    wanted = checked_vector("rates", rates, scaled.active.size)
    given = np.zeros_like(wanted) if offset is None else checked_vector("offset", offset, scaled.active.size)
    demand = wanted - given
    demand[np.abs(demand) <= ROUNDING * (np.abs(wanted) + np.abs(given))] = 0.0
    shortest = _shortest_above(scaled, demand[scaled.active] / scaled.norms)
    stationary = shortest.status is Status.STATIONARY
    weights = np.zeros_like(wanted) if stationary else scaled.unscale(shortest.multipliers)
    return _solution(scaled, weights, cutoff, shortest.residual, shortest.status)


def hull_weights(gram: Float64Array, *, cutoff: float = CUTOFF) -> GramSolution:
    """Weights on the simplex of the shortest vector p in the convex hull of the rows that are not zero.

    p / |p|^2 is the shortest x with grads @ x >= 1, so this is the one-sided problem with unit rates, normalised.
    Rows of very different lengths cost no accuracy. `gram` is [K, K]; `cutoff` bears on `rank` and `condition` alone.

    Returns
    -------
    GramSolution
        Status `stationary` when |p| <= `STATIONARY_COSINE` * min_k |g_k|; the weights are then those of that p,
        and `residual` is |p| / min_k |g_k|. Otherwise `residual` is that of the one-sided problem: the larger of
        max_k (1 - p.g_k / |p|^2) min_j |g_j| / |g_k| and the complementarity. If every row is zero: weights 0,
        stationary.

    Raises
    ------
    ShapeError, ConfigError
        As `two_sided_weights`.
    """
    scaled = _scaled(gram, cutoff)
    if not scaled.norms.size:
        return _solution(scaled, np.zeros(scaled.active.size), cutoff, 0.0, Status.STATIONARY)
    shortest = _shortest_above(scaled, scaled.norms.min() / scaled.norms)
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


@dataclass(frozen=True, slots=True)
class _Shortest:
    """Multipliers v [A] >= 0 of the unit rows; when stationary, the combination that proves it."""

    multipliers: Float64Array
    residual: float
    status: Status


def _shortest_above(scaled: ScaledGram, demand: Float64Array) -> _Shortest:
    """Solve min |x| subject to unit rows @ x >= demand [A]; x = v @ unit rows."""
    peak = float(demand.max(initial=0.0))
    if peak <= 0:
        return _Shortest(np.zeros_like(demand), 0.0, Status.CONVERGED)
    # No x that is short enough to count can fall below the bound, so rows that ask for less never bind.
    asked = np.maximum(demand / peak, -1 / STATIONARY_COSINE)
    y, status = _non_negative(scaled.factor, asked)
    length, pull = float(np.linalg.norm(scaled.factor @ y)), float(asked @ y)
    minimum = length**2 + (pull - 1) ** 2
    if minimum <= STATIONARY_COSINE**2 or length <= ROUNDING * float(y.sum()):
        return _Shortest(y, length / pull, Status.STATIONARY)
    found = [y / minimum, *_polished(scaled.cosines, asked, y > 0)]
    residuals = [_kkt_residual(scaled.cosines, asked, v) for v in found]
    best = int(np.argmin(residuals))
    if residuals[best] > KKT_TOLERANCE:
        status = Status.NOT_CONVERGED
    return _Shortest(found[best] * peak, residuals[best], status)


def _non_negative(factor: Float64Array, asked: Float64Array) -> tuple[Float64Array, Status]:
    """Minimise |factor @ y|^2 + (asked.y - 1)^2 over y >= 0."""
    from scipy.optimize import lsq_linear, nnls

    stacked = np.vstack([factor, asked])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    try:
        return np.asarray(nnls(stacked, target)[0]), Status.CONVERGED
    except RuntimeError:  # its limit of iterations, the one failure it raises
        y = lsq_linear(stacked, target, bounds=(0.0, np.inf), method="bvls", tol=1e-14).x
        return np.maximum(y, 0.0), Status.BVLS


def _polished(cosines: Float64Array, asked: Float64Array, binding: NDArray[np.bool_]) -> list[Float64Array]:
    """Meet the binding demands exactly, unless they are singular or a multiplier would be negative."""
    try:
        solved = np.linalg.solve(cosines[np.ix_(binding, binding)], asked[binding])
    except np.linalg.LinAlgError:
        return []
    if not np.isfinite(solved).all() or (solved < 0).any():
        return []
    v = np.zeros_like(asked)
    v[binding] = solved
    return [v]


def _kkt_residual(cosines: Float64Array, asked: Float64Array, v: Float64Array) -> float:
    reached = cosines @ v
    missed = float((asked - reached).max())
    energy = float(v @ reached)
    gap = abs(energy - float(v @ asked)) / energy if energy > 0 else float("inf")
    return max(missed, gap, 0.0)
