"""The least-distance problem behind the one-sided steps: min |x| subject to unit rows @ x >= demand, in float64.

Non-negative least squares solve it (Lawson and Hanson, Solving Least Squares Problems, chapter 23): with A the unit
rows as columns, c the demand, y >= 0 minimising |A y|^2 + (c.y - 1)^2 and rho that minimum, rho = 1 / (1 + |x|^2). So
rho = 0 is the certificate that no x exists, and otherwise y / rho are the multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.scaling import ScaledGram
from dqnfed_flwr.types import Float64Array

STATIONARY_COSINE = 1e-5
"""Rows have no common descent direction when the best one makes a smaller cosine with the neediest row."""
KKT_TOLERANCE = 1e-6
"""Largest relative residual of the optimality conditions with which a solution counts as converged."""
ROUNDING = 1e-14
"""A difference or a sum of vectors below this share of its parts is rounding: a demand that small is met, a
combination of rows that short is zero."""


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
class Shortest:
    """Multipliers v [A] >= 0 of the unit rows; when stationary, the combination that proves it."""

    multipliers: Float64Array
    residual: float
    status: Status


def shortest_above(scaled: ScaledGram, demand: Float64Array) -> Shortest:
    """Solve min |x| subject to unit rows @ x >= demand [A]; x = v @ unit rows."""
    peak = float(demand.max(initial=0.0))
    if peak <= 0:
        return Shortest(np.zeros_like(demand), 0.0, Status.CONVERGED)
    # No x that is short enough to count can fall below the bound, so rows that ask for less never bind.
    asked = np.maximum(demand / peak, -1 / STATIONARY_COSINE)
    y, status = _non_negative(scaled.factor, asked)
    length, pull = float(np.linalg.norm(scaled.factor @ y)), float(asked @ y)
    rho = length**2 + (pull - 1) ** 2
    if rho <= STATIONARY_COSINE**2 or length <= ROUNDING * float(y.sum()):
        return Shortest(y, length / pull, Status.STATIONARY)
    found = [y / rho, *_polished(scaled.cosines, asked, y > 0)]
    residuals = [_kkt_residual(scaled.cosines, asked, v) for v in found]
    best = int(np.argmin(residuals))
    if residuals[best] > KKT_TOLERANCE:
        status = Status.NOT_CONVERGED
    return Shortest(found[best] * peak, residuals[best], status)


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
