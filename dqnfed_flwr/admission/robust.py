"""Robust statistics on logarithms: where the middle of a round lies, and how far from it a value may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NORMAL = 1.4826
"""What makes a standard deviation of a normal sample's median absolute deviation."""


def log_of(value: float) -> float:
    """Its logarithm; minus infinity where there is none."""
    return math.log(value) if value > 0 else -math.inf


def middle_and_limit(logs: Sequence[float], factor: float, spread: float) -> tuple[float, float]:
    """Median of a round's values, and how far above it one may lie.

    The clients' own spread counts: where honest clients differ a hundredfold, as they do late in a training, a fixed
    factor would turn honest ones away. Median and MAD hold as long as more than half of the clients are honest.

    Parameters
    ----------
    logs : Sequence[float]
        Logarithms of the values, not empty, all finite.
    factor : float
        Always allowed.
    spread : float
        Deviations allowed where that is more.

    Returns
    -------
    middle, limit : float
        In logarithms.
    """
    middle = float(np.median(logs))
    deviation = NORMAL * float(np.median(np.abs(np.asarray(logs) - middle)))
    return middle, max(math.log(factor), spread * deviation)
