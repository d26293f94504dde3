"""A word about features that models hardly learn from as they are."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 100.0
"""Size of features, in units of standardised ones, beyond which a step that fits some weights is wild for others."""
_TOLD: dict[str, object] = {}


def warn_of_scale(x: NDArray[Any], name: str) -> None:
    """Log a warning where features [N, ...] of the set `name` are large; once a set and process."""
    if not np.issubdtype(x.dtype, np.floating) or not x.size:
        return
    largest = max(abs(float(x.min())), abs(float(x.max())))
    mark = object()
    if largest > LARGEST and _TOLD.setdefault(name, mark) is mark:
        logging.getLogger(__name__).warning(
            "data: %s: features up to %s: scale them (mean 0, deviation 1)", name, f"{largest:,.0f}"
        )
