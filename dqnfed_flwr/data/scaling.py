"""Features of one scale: mean 0 and standard deviation 1 over a client's own training part.

Each client uses statistics of its own, which nobody else learns: equal values of two clients may differ afterwards.
Its validation and test parts are scaled by those of its training part. Moments are computed in float64, and divide by
the number of samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.dataset import Array, sample_kind
from dqnfed_flwr.errors import DataError


def check_scale(settings: Settings, x: Array) -> None:
    """Raise DataError where `data-scale` asks for what samples `x` cannot have."""
    if settings.data_scale != "none" and (kind := sample_kind(x)) != "features":
        raise DataError(
            f"data-scale: found {settings.data_scale!r}, but {settings.data} holds {kind} of dtype {x.dtype}; only "
            "float features can be standardised: set data-scale none"
        )


def standardised(train: NDArray[Any], *others: NDArray[Any]) -> list[NDArray[Any]]:
    """Standardise every feature of several parts by its mean and deviation in the first.

    Parameters
    ----------
    train : NDArray
        Float features [N, ...], N > 0, finite.
    others : NDArray
        Further parts [M, ...] of the same samples; M may be 0.

    Returns
    -------
    list[NDArray]
        The parts, with their shapes and dtypes. A feature that is constant in `train` is 0 in all of them.

    Raises
    ------
    DataError
        If values are too large, or too small, for their variance and their scaled value to be numbers.
    """
    exact = train.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation, constant = exact.mean(axis=0), exact.std(axis=0), train.max(axis=0) == train.min(axis=0)
        inverse = np.where(constant, 0.0, 1.0 / np.where(constant | (deviation == 0), 1.0, deviation))
        scaled = [((part - np.where(constant, 0, mean)) * inverse).astype(train.dtype) for part in (train, *others)]
    unfit = ~constant & ~((deviation > 0) & np.isfinite(deviation))
    if unfit.any() or not all(np.isfinite(part).all() for part in scaled):
        raise DataError(
            "data-scale: features are too large or too small to be standardised; give them another unit, or set none"
        )
    return scaled
