"""Euclidean projection onto the probability simplex, exact, by sorting.

Held, Wolfe and Crowder, "Validation of subgradient optimization", Mathematical Programming 6, 1974.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import Float64Array


def project_simplex(values: Float64Array) -> Float64Array:
    """The point of {x : x >= 0, sum x = 1} nearest to `values`.

    It is max(v + s, 0) with one shift s for all: with u the values falling, s = (1 - u_1 - ... - u_r) / r for the
    largest r with u_r + s > 0.

    Parameters
    ----------
    values : Float64Array
        [K], K >= 1, finite.

    Returns
    -------
    Float64Array
        [K]; sums to 1 up to rounding.

    Raises
    ------
    ShapeError
        If `values` is no vector, is empty, or is not finite.
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
