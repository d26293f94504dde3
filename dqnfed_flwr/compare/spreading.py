"""Positions of labels that keep their distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as possible to the wanted ones (least squares), in their order, within [low, high].

    They are at least `gap` apart, or evenly spaced where there is no room for that.
    """
    count = len(wanted)
    if not count:
        return []
    gap = min(gap, (high - low) / max(1, count - 1))
    order = np.argsort(np.asarray(wanted), kind="stable")
    steps = gap * np.arange(count)
    free = isotonic_regression(np.asarray(wanted, dtype=float)[order] - steps).x
    places = np.empty(count)
    places[order] = np.clip(free, low, max(low, high - steps[-1])) + steps
    return [float(value) for value in places]
