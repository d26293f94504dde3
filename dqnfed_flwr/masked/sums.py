"""A sum of which the server reads the total alone: summands in Z_2^32, under masks that cancel in pairs.

Client k of the clients S of a sum sends

    z_k = round(c_k g_k / unit) + sum_{j in S, j > k} P(s_kj) - sum_{j in S, j < k} P(s_kj)    mod 2^32,

where s_kj is a secret of the pair that serves for this one request, and P a stream of it (Bonawitz and others,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, without its second masks). The sum of
all z_k is that of the rounded summands; without one of them it is noise. Rounding is stochastic, so that its mean is
right, by a secret of each client: who knew the draws could read signs of single values off a sum in coarse units.
|c_k| |g_k| / unit, summed over S, stays below 2^31, so that the sum of any value fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.masked.secrets import stream
from dqnfed_flwr.types import Float64Array, FloatArray

HALF = 2**31
Words = NDArray[np.uint32]


def unit_for(longest: float, clients: int) -> float:
    """What 1 stands for, so that no value of a sum overflows: `longest` is sum |c_k| |g_k| over so many clients."""
    return longest / (HALF - 1 - clients) or 1.0


def in_units(row: FloatArray, weight: float, unit: float, secret: bytes) -> Words | None:
    """weight * row in whole units, rounded at random by a secret [D]; None where a value is too large for that."""
    values = np.asarray(row, np.float64) * (weight / unit)
    values += np.frombuffer(stream(secret, 4 * len(values)), "<u4") * 2.0**-32
    np.floor(values, out=values)
    if not (np.abs(values) < HALF).all():
        return None
    return values.astype(np.int64).astype(np.uint32)


def masked(words: Words, client: int, secrets: Mapping[int, bytes]) -> Words:
    """The `words` of a client [D] under the masks that it shares with each of the others, by their numbers."""
    total = words.copy()
    for other, secret in secrets.items():
        mask = np.frombuffer(stream(secret, 4 * len(words)), "<u4")
        if other > client:
            total += mask
        else:
            total -= mask
    return total


def opened(summands: Iterable[Words], unit: float) -> Float64Array:
    """The sum of what all the clients of a sum sent [D]."""
    total = sum(summands, np.uint32(0))
    return np.asarray(np.asarray(total, np.uint32).view(np.int32) * unit, np.float64)
