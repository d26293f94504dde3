"""Rates that the server works with: which clients take part in the solve, and how far their rates may spread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array, RoundBatch

ZERO_GRADIENT = "zero-gradient"
BAD_RATE = "bad-rate"
MAX_INVERSE_CURVATURE = 1e12
"""Largest d_k / |g_k|^2 that is believed where rates are not held near their median."""


def fit_clients(batch: RoundBatch, spread: float) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Clients that can be held to a rate.

    Parameters
    ----------
    batch : RoundBatch
        Of the round.
    spread : float
        As in `limit_spread`; where rates are held near their median, none is too large.

    Returns
    -------
    mask : NDArray[bool]
        [K], True for clients with a gradient and a positive, believable rate.
    excluded : dict[int, str]
        The others, with the reason.
    """
    norms = np.diag(batch.gram)
    gradient = norms > 0
    rate = np.isfinite(batch.rates) & (batch.rates > 0)
    if not spread:
        rate &= batch.rates <= MAX_INVERSE_CURVATURE * norms
    excluded = {
        client: BAD_RATE if has_gradient else ZERO_GRADIENT
        for client, has_gradient, has_rate in zip(batch.clients, gradient, rate, strict=True)
        if not (has_gradient and has_rate)
    }
    return gradient & rate, excluded


def limit_spread(rates: Float64Array, squared_norms: Float64Array, spread: float) -> Float64Array:
    """Hold d_k / |g_k|^2, a client's mean inverse curvature, within a factor of the median over clients.

    One secant pair tells little; its rates differ by up to 70-fold between clients, and the step then leans so far
    towards a few that the others allow hardly any length.

    Parameters
    ----------
    rates, squared_norms : Float64Array
        d~_k and |g_k|^2, both positive [K].
    spread : float
        The factor, at least 1; 0 leaves the rates as they are.

    Returns
    -------
    Float64Array
        [K].
    """
    if not spread:
        return rates
    inverse = rates / squared_norms
    median = float(np.median(inverse))
    return np.asarray(np.clip(inverse, median / spread, median * spread) * squared_norms)
