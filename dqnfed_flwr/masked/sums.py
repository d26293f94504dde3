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

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.masked import MOST
from dqnfed_flwr.masked.secrets import stream
from dqnfed_flwr.types import Float64Array, FloatArray

HALF = 2**31
NEARLY = 1 - 1e-9
"""Of a number of samples, by which rounding may miss it."""
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


def effective(sizes: Sequence[float], samples: Sequence[int]) -> float:
    """(sum_k c_k)^2 / sum_k (c_k^2 / n_k), the weights c_k being `sizes` >= 0, of rows that are means of n_k samples.

    Each sample of client k has the weight w = c_k / n_k, and b samples alike have (sum w)^2 / sum w^2 = b (Kish 1965).
    """
    total = math.fsum(sizes)
    if not total:
        return 0.0
    return 1 / math.fsum((size / total) ** 2 / count for size, count in zip(sizes, samples, strict=True))


def most(samples: Sequence[int]) -> float:
    """The largest `effective` that any weights give: c_k = n_k, but none above `MOST` of their sum."""
    largest = max(samples)
    others = sum(samples) - largest
    share = min(largest / (largest + others), MOST)
    return 1 / (share**2 / largest + (1 - share) ** 2 / others)


def too_few(found: float, floor: int) -> str:
    """Why a sum of `found` samples is none to be given, empty where it is one; clients and server say it alike."""
    if found >= floor * NEARLY:
        return ""
    return (
        f"a sum that is one of {math.floor(found / NEARLY)} samples; {floor} are needed (privacy.min-samples, or "
        "min-samples in a node's config), as samples of few can be rebuilt: let clients with more samples, or more "
        "clients, take part, or take weights nearer to their numbers of samples"
    )
