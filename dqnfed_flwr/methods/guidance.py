"""What FedMDFG and FedLF share: rows of one length, a fairness objective, and the shortest point of their hull.

The fairness objective is the cosine between the losses F of the clients and the all-ones vector. Its gradient is
sum h_k g_k with h proportional to 1 - (1.F / |F|^2) F; it is to rise, so that the row that is to be descended has
h = (1.F / |F|^2) F - 1, here of length 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import Status, hull_weights
from dqnfed_flwr.types import Float64Array

VANISHING = 1e-14
"""A squared length below this share of that of its parts is rounding."""
ANGLE = "takes the angle between the losses and equal ones"
"""What makes no sense of losses below 0."""
EQUAL = 1e-7
"""Sine of the angle between the losses and equal ones below which they count as equal."""


def angle(losses: Float64Array) -> float:
    """Degrees between the losses [K] and the all-ones vector; 0 where all losses are 0."""
    if not losses.any():
        return 0.0
    losses = _near_one(losses)
    along = losses.mean()
    return math.degrees(math.atan2(float(np.linalg.norm(losses - along)), float(along) * math.sqrt(losses.size)))


def fairness_row(losses: Float64Array, live: NDArray[np.bool_]) -> Float64Array | None:
    """h of the clients with a gradient, 0 for the others [K]; None where their losses are equal, or none has one."""
    fairness = np.zeros(len(losses))
    if live.any():
        fairness[live] = fairness_weights(losses[live])
    return fairness if fairness.any() else None


def fairness_weights(losses: Float64Array) -> Float64Array:
    """h [K] of length 1; zero where the losses are equal."""
    losses = _near_one(losses)
    square = float(losses @ losses)
    if math.sin(math.radians(angle(losses))) <= EQUAL:
        return np.zeros_like(losses)
    h = losses.sum() / square * losses - 1
    return np.asarray(h / np.linalg.norm(h))


def _near_one(losses: Float64Array) -> Float64Array:
    """`losses` times a power of two, which rounds nothing: no square of theirs overflows, nor do all underflow."""
    return np.asarray(np.ldexp(losses, -math.frexp(float(np.abs(losses).max(initial=0.0)))[1]))


@dataclass(frozen=True, slots=True)
class Direction:
    """A direction as `weights` over the rows [B], zero where there is none.

    `status` and `residual` are those of the hull problem. `short` is the direction's length over the mean length of the
    present clients' rows. `scales` [B] make each row as long as that mean; they are 0 for zero rows.
    """

    weights: Float64Array
    status: Status
    residual: float
    short: float
    scales: Float64Array


def equalising(gram: Float64Array, present: int) -> Float64Array:
    """Factors [B] that give each row the mean length of the first `present` ones; 0 for zero rows."""
    norms = np.sqrt(np.diag(gram))
    live = norms > 0
    if not live[:present].any():
        return np.zeros_like(norms)
    mean = norms[:present][live[:present]].mean()
    scales: Float64Array = np.divide(mean, norms, out=np.zeros_like(norms), where=live)
    return scales


def common_direction(
    gram: Float64Array, present: int, fairness: Float64Array | None = None, *, fairness_as_long: bool = False
) -> Direction:
    """Shortest point of the convex hull of the rows, made equally long, and of the fairness row.

    `gram` are the inner products [B, B] of the rows of the K = `present` clients, then of absent ones. `fairness` is h
    [K], 0 for clients without a gradient; None, or a combination that cancels, leaves the objective out. With
    `fairness_as_long` its row gets the length of the others.
    """
    scales = equalising(gram, present)
    live = np.flatnonzero(scales)
    if not (scales[:present] > 0).any():
        return Direction(np.zeros(len(gram)), Status.STATIONARY, 0.0, 0.0, scales)
    equal = scales[:, None] * gram * scales
    mean = math.sqrt(float(equal[live[0], live[0]]))
    points = np.eye(len(gram))[live]
    if fairness is not None:
        row = np.zeros(len(gram))
        row[:present] = fairness
        square = float(row @ equal @ row)
        if square > VANISHING * (np.abs(row).sum() * mean) ** 2:
            points = np.vstack([points, row * (mean / math.sqrt(square) if fairness_as_long else 1.0)])
    hull = points @ equal @ points.T
    point = hull_weights((hull + hull.T) / 2)
    along = point.weights @ points
    length = math.sqrt(max(float(along @ equal @ along), 0.0))
    return Direction(along * scales, point.status, point.residual, length / mean, scales)
