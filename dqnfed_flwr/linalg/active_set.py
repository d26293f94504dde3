"""Minimising a convex quadratic function over a simplex with a box: projected gradients, then active sets.

Accelerated projected gradients with restarts (O'Donoghue and Candes, Foundations of Computational Mathematics, 2015)
guess which weights lie at a bound, and a primal active-set method (Nocedal and Wright, Numerical Optimization, section
16.5) goes on from there to the rounding of float64. `quadratic` holds the problem and judges the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array

GUESSES = 30
"""Projected gradient steps before the active-set method."""
ROUNDING = 1e-13
"""A slope below this share of the sum of its parts' sizes is rounding."""
SINGULAR = 1e-12
"""Singular values below this share of the largest count as zero."""
FAR = 10.0
"""A change of a weight by more than this leads beyond the bounds, which are at most 1."""


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


def guess(program: BoxProgram) -> Float64Array:
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


def active_set(program: BoxProgram, weights: Float64Array) -> Float64Array:
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
