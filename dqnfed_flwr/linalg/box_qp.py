"""Quadratic programs over a simplex with a box, and projections onto it, for K clients, in float64.

    minimise 1/2 w.G w - linear.w   subject to   sum w = total,  lower <= w <= upper

with G positive semidefinite and possibly singular, as it is for two equal clients. Accelerated projected gradients with
restarts (O'Donoghue and Candes, Foundations of Computational Mathematics, 2015) guess which weights lie at a bound. A
primal active-set method (Nocedal and Wright, Numerical Optimization, section 16.5) goes on from there, down to the
rounding of float64. Whether the result is a solution is judged on the optimality conditions, whatever a solver says of
itself.

For the whole simplex and linear = 0 this is the problem of `min_norm.hull_weights`, which is solved on unit rows there
and keeps its accuracy for rows of very different lengths. Here G is scaled as a whole: rows should be of like length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.linalg.min_norm import checked_vector
from dqnfed_flwr.types import Float64Array

KKT_TOLERANCE = 1e-8
"""Largest relative residual of the optimality conditions with which a solution counts as converged."""
FEASIBILITY = 1e-12
"""How far, relative to the bounds, a box may miss the total for rounding."""
GUESSES = 30
"""Projected gradient steps before the active-set method."""
ROUNDING = 1e-13
"""A slope below this share of the sum of its parts' sizes is rounding."""
SINGULAR = 1e-12
"""Singular values below this share of the largest count as zero."""
FAR = 10.0
"""A change of a weight by more than this leads beyond the bounds, which are at most 1."""


class QuadraticStatus(StrEnum):
    """How a solve ended."""

    CONVERGED = "converged"
    SLSQP = "slsqp"
    """The active-set method gave up; SciPy's SLSQP met the conditions in its place."""
    NOT_CONVERGED = "not-converged"
    """The conditions are missed by more than `KKT_TOLERANCE`; the best weights found are returned."""


@dataclass(frozen=True, slots=True)
class QuadraticSolution:
    """Weights [K], within the bounds, with the sum asked for up to rounding, and how well they meet the conditions.

    `residual` is max_k |w - P(w - gradient / max_k G_kk)|_k over the largest bound, P the projection onto the feasible
    set: 0 at a solution and nowhere else.
    """

    weights: Float64Array
    residual: float
    status: QuadraticStatus


@dataclass(frozen=True, slots=True)
class BoxProgram:
    """minimise 1/2 w.G w - linear.w over sum w = total, lower <= w <= upper; G [K, K], the other arrays [K].

    It is given in units in which the largest G_kk and the largest bound are 1.
    """

    gram: Float64Array
    linear: Float64Array
    total: float
    lower: Float64Array
    upper: Float64Array

    def gradient(self, weights: Float64Array) -> Float64Array:
        """G w - linear [K]."""
        return np.asarray(self.gram @ weights - self.linear)

    def rounding(self, weights: Float64Array) -> Float64Array:
        """Size of an error of the gradient that is no more than rounding [K]."""
        return np.asarray(ROUNDING * (np.abs(self.gram) @ np.abs(weights) + np.abs(self.linear)))

    def project(self, point: Float64Array) -> Float64Array:
        """Nearest feasible point [K] to `point` [K]."""
        return project(point, self.total, self.lower, self.upper)

    def residual(self, weights: Float64Array) -> float:
        """How far a gradient step of length 1, projected, leads away from `weights`: 0 at a solution alone."""
        return float(np.abs(weights - self.project(weights - self.gradient(weights))).max())


def box_simplex_weights(
    gram: Float64Array,
    *,
    lower: ArrayLike = 0.0,
    upper: ArrayLike = 1.0,
    linear: ArrayLike = 0.0,
    total: float = 1.0,
) -> QuadraticSolution:
    """Minimise 1/2 w.G w - linear.w over sum w = total, lower <= w <= upper.

    Where G is singular the solution need not be unique; w.G and G w, and so the step, are.

    Parameters
    ----------
    gram : Float64Array
        G [K, K], symmetric and positive semidefinite.
    lower, upper : ArrayLike
        Finite bounds, [K] or one for all. Equal bounds fix a weight.
    linear : ArrayLike
        [K] or one for all.
    total : float
        Sum of the weights.

    Raises
    ------
    ShapeError
        If an array has another shape or is not finite.
    ConfigError
        If no weights lie within the bounds and have that sum.
    """
    program, size = _scaled(gram, lower, upper, linear, total)
    weights = _active_set(program, _guess(program))
    residual, status = program.residual(weights), QuadraticStatus.CONVERGED
    if not residual <= KKT_TOLERANCE:
        other = _slsqp(program, weights)
        if program.residual(other) < residual:
            weights, residual, status = other, program.residual(other), QuadraticStatus.SLSQP
    if not residual <= KKT_TOLERANCE:
        status = QuadraticStatus.NOT_CONVERGED
    return QuadraticSolution(np.clip(weights * size, lower, upper), residual, status)


def _scaled(
    gram: Float64Array, lower: ArrayLike, upper: ArrayLike, linear: ArrayLike, total: float
) -> tuple[BoxProgram, float]:
    """The problem in its own units, and the unit of the weights."""
    gram = np.asarray(gram, dtype=np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not gram.size or not np.isfinite(gram).all():
        raise ShapeError(f"a matrix of shape {gram.shape}; need a finite one of shape (K, K) with K > 0")
    low, high, slope = (
        checked_vector(name, np.broadcast_to(np.asarray(value, np.float64), gram.shape[:1]), len(gram))
        for name, value in (("lower", lower), ("upper", upper), ("linear", linear))
    )
    size = float(max(np.abs(low).max(), np.abs(high).max())) or 1.0
    slack = FEASIBILITY * size * len(gram)
    if (low > high).any() or not low.sum() - slack <= total <= high.sum() + slack:
        raise ConfigError(
            f"no weights have the sum {total:g} within their bounds, which allow {low.sum():g} to {high.sum():g}; "
            "widen the bounds, each lower one at most its upper one"
        )
    unit = float(np.diag(gram).max()) or float(np.abs(slope).max()) / size or 1.0
    return BoxProgram((gram + gram.T) / (2 * unit), slope / (unit * size), total / size, low / size, high / size), size


def _slsqp(program: BoxProgram, weights: Float64Array) -> Float64Array:
    """The same by sequential least squares, from `weights` on."""
    from scipy.optimize import Bounds, LinearConstraint, minimize

    def objective(w: Float64Array) -> float:
        return float(0.5 * w @ program.gram @ w - program.linear @ w)

    found = minimize(
        objective,
        weights.tolist(),
        jac=program.gradient,
        method="SLSQP",
        bounds=Bounds(program.lower, program.upper),
        constraints=LinearConstraint(np.ones((1, weights.size)), program.total, program.total),
        options={"maxiter": 1000, "ftol": 1e-18},
    )
    return program.project(found.x if np.isfinite(found.x).all() else weights)


def project_simplex(values: Float64Array) -> Float64Array:
    """The point of {x : x >= 0, sum x = 1} nearest to `values` (Held, Wolfe, Crowder, Math. Programming, 1974).

    It is max(v + s, 0) with one shift s for all: with u the values falling, s = (1 - u_1 - ... - u_r) / r for the
    largest r with u_r + s > 0. `values` are [K], K >= 1, finite, else `ShapeError`; the result [K] sums to 1 up to
    rounding.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ShapeError(f"values of shape {values.shape}; only a vector of at least one value can be projected, (K,)")
    if not np.isfinite(values).all():
        raise ShapeError("values that are not finite cannot be projected onto the simplex; leave them out first")
    values = values - values.max()  # the projection does not see a common shift
    falling = np.sort(values)[::-1]
    shifts = (1 - np.cumsum(falling)) / np.arange(1, values.size + 1)
    last = int(np.flatnonzero(falling + shifts > 0)[-1])
    return np.asarray(np.maximum(values + shifts[last], 0.0))


def project(point: Float64Array, total: float, lower: Float64Array, upper: Float64Array) -> Float64Array:
    """Nearest point [K] to `point` [K] with sum `total` and within the bounds [K]: clip(point - mu) for the right mu.

    The sum falls with mu along straight lines between the values of mu at which a weight reaches a bound; its slope
    is minus the number of weights that lie between theirs.
    """
    breaks = np.concatenate([point - upper, point - lower])
    order = np.argsort(breaks, kind="stable")
    between = np.cumsum(np.where(order < point.size, 1.0, -1.0))
    fallen = np.concatenate([[0.0], np.cumsum(between[:-1] * np.diff(breaks[order]))])
    return np.asarray(np.clip(point - np.interp(upper.sum() - total, fallen, breaks[order]), lower, upper))


def _guess(program: BoxProgram) -> Float64Array:
    """A feasible point [K] near a solution, with most of the right weights at their bounds."""
    lipschitz = float(np.abs(program.gram).sum(axis=1).max()) or 1.0
    weights = ahead = program.project(program.lower)
    momentum = 1.0
    for _ in range(GUESSES):
        new = program.project(ahead - program.gradient(ahead) / lipschitz)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if (ahead - new) @ (new - weights) > 0:
            ahead, following = new, 1.0
        else:
            ahead = new + (momentum - 1) / following * (new - weights)
        weights, momentum = new, following
    return weights


def _active_set(program: BoxProgram, weights: Float64Array) -> Float64Array:
    """From a feasible point to a solution: minimise with some weights held at bounds, hold or release one, and again.

    The objective never rises. Gives up after 10 K + 20 changes.
    """
    low = weights <= program.lower
    high = (weights >= program.upper) & ~low
    for _ in range(10 * weights.size + 20):
        if (low | high).all():
            multiplier = None
        else:
            target, multiplier = _solved_on(program, weights, low, high)
            share, hit = _first_bound(program, weights, target)
            if share < 1:
                low, high = low | (hit & (target < weights)), high | (hit & (target > weights))
                moved = weights + share * (target - weights)
                weights = np.where(low, program.lower, np.where(high, program.upper, moved))
                continue
            weights = target
        released = _to_release(program, weights, low, high, multiplier)
        if not released:
            break
        low[released] = high[released] = False
    return program.project(weights)


def _first_bound(program: BoxProgram, weights: Float64Array, target: Float64Array) -> tuple[float, NDArray[np.bool_]]:
    """How much of the way to `target` is feasible, at most 1, and the weights [K] that are at a bound there."""
    change = target - weights
    room = np.where(change < 0, program.lower - weights, program.upper - weights)
    shares = np.full_like(weights, np.inf)
    np.divide(room, change, out=shares, where=change != 0)
    share = max(float(shares.min()), 0.0)
    return share, shares <= share * (1 + ROUNDING)


def _to_release(
    program: BoxProgram,
    weights: Float64Array,
    low: NDArray[np.bool_],
    high: NDArray[np.bool_],
    multiplier: float | None,
) -> list[int]:
    """The weight, or without a multiplier the two, that should leave a bound first; none at a solution."""
    gradient, noise = program.gradient(weights), program.rounding(weights)
    held = program.lower < program.upper
    if multiplier is None:
        down = int(np.argmin(np.where(low & held, gradient + noise, np.inf)))
        up = int(np.argmax(np.where(high & held, gradient - noise, -np.inf)))
        better = (low & held).any() and (high & held).any() and (gradient + noise)[down] < (gradient - noise)[up]
        return [down, up] if better else []
    free = ~(low | high)
    gain = np.where(low, multiplier - gradient, np.where(high, gradient - multiplier, 0.0)) * held
    worst = int(np.argmax(gain - noise))
    return [worst] if gain[worst] > noise[worst] + noise[free].min() else []


def _solved_on(
    program: BoxProgram, near: Float64Array, low: NDArray[np.bool_], high: NDArray[np.bool_]
) -> tuple[Float64Array, float]:
    """The minimum with the weights in `low` and `high` at their bounds, and the multiplier of the sum.

    Of several minima it is one that lies close to `near`. Where the function falls without end it is a point in that
    direction beyond the bounds.
    """
    weights = np.where(low, program.lower, np.where(high, program.upper, near))
    free = ~(low | high)
    count = int(free.sum())
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = program.gram[np.ix_(free, free)]
    system[:count, count], system[count, :count] = -1.0, 1.0
    wanted = np.append(-program.gradient(weights)[free], program.total - weights.sum())
    change = _linear_solve(system, wanted)
    left = wanted - system @ change
    steepest = float(np.abs(left).max())
    if steepest > 1e3 * SINGULAR * float(np.abs(wanted).max()):  # then G left = 0, and the function falls along it
        change += left * (FAR / steepest)
    weights[free] += change[:count]
    return weights, float(change[count])


def _linear_solve(system: Float64Array, wanted: Float64Array) -> Float64Array:
    """Solve exactly where that makes sense, else in the least-squares sense with the shortest solution."""
    try:
        solved = np.linalg.solve(system, wanted)
    except np.linalg.LinAlgError:
        solved = np.full_like(wanted, np.inf)
    if np.isfinite(solved).all() and np.abs(solved).max() <= FAR:
        return np.asarray(solved, dtype=np.float64)
    return np.asarray(np.linalg.lstsq(system, wanted, rcond=SINGULAR)[0])
