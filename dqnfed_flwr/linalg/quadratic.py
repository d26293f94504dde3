"""Quadratic programs over a simplex with a box, on the Gramian of K rows, in float64.

    minimise 1/2 w.G w - linear.w   subject to   sum w = total,  lower <= w <= upper

with G positive semidefinite and possibly singular, as it is for two equal clients. `active_set` solves it; whether the
result is a solution is judged here, on the optimality conditions, whatever a solver says of itself.

For the whole simplex and linear = 0 this is the problem of `min_norm.hull_weights`, which is solved on unit rows there
and keeps its accuracy for rows of very different lengths. Here G is scaled as a whole: rows should be of like length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.linalg.active_set import BoxProgram, active_set, guess
from dqnfed_flwr.linalg.scaling import checked_vector
from dqnfed_flwr.types import Float64Array

KKT_TOLERANCE = 1e-8
"""Largest relative residual of the optimality conditions with which a solution counts as converged."""
FEASIBILITY = 1e-12
"""How far, relative to the bounds, a box may miss the total for rounding."""


class QuadraticStatus(StrEnum):
    """How a solve ended."""

    CONVERGED = "converged"
    SLSQP = "slsqp"
    """The active-set method gave up; SciPy's SLSQP met the conditions in its place."""
    NOT_CONVERGED = "not-converged"
    """The conditions are missed by more than `KKT_TOLERANCE`; the best weights found are returned."""


@dataclass(frozen=True, slots=True)
class QuadraticSolution:
    """Weights, and how well they meet the optimality conditions.

    Attributes
    ----------
    weights : Float64Array
        [K]; within the bounds, with the sum asked for up to rounding.
    residual : float
        max_k |w - P(w - gradient / max_k G_kk)|_k over the largest bound, P the projection onto the feasible set: 0
        at a solution and nowhere else.
    status : QuadraticStatus
        See there.
    """

    weights: Float64Array
    residual: float
    status: QuadraticStatus


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

    Returns
    -------
    QuadraticSolution
        See there.

    Raises
    ------
    ShapeError
        If an array has another shape or is not finite.
    ConfigError
        If no weights lie within the bounds and have that sum.
    """
    program, size = _scaled(gram, lower, upper, linear, total)
    weights = active_set(program, guess(program))
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
