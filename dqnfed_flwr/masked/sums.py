"""A sum of which the server reads the total alone: summands in Z_2^32, under masks that cancel in pairs.

Client k of the clients S of a sum sends

    z_k = round(c_k g_k / unit) + sum_{j in S, j > k} P(s_kj) - sum_{j in S, j < k} P(s_kj)    mod 2^32,

where s_kj is a secret of the pair that serves for this one request, and P a stream of it (Bonawitz and others,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, without its second masks). The sum of
all z_k is that of the rounded summands; without one of them it is noise. Rounding is stochastic, so that its mean is
right, by a secret of each client: who knew the draws could read signs of single values off a sum in coarse units.
|c_k| |g_k| / unit, summed over S, stays below 2^31, so that the sum of any value fits.

In Z_2^16 units that large would cost precision: the vectors are `spread` first, and no value of c_k g_k is then above
reach |c_k| |g_k|. Each client checks that of its own. So reach sum |c_k| |g_k| / unit < 2^15 is enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.masked import MOST
from dqnfed_flwr.masked.secrets import stream
from dqnfed_flwr.masked.spread import Spread
from dqnfed_flwr.types import Float64Array, FloatArray

HALF, SHORT_HALF = 2**31, 2**15
NEARLY = 1 - 1e-9
"""Of a number of samples, by which rounding may miss it."""
SIGMAS = 8
"""Standard deviations by which a sum of many roundings is never off."""
Words = NDArray[np.unsignedinteger[Any]]
"""Of 32 bits, or of 16."""


def unit_for(longest: float, clients: int, spread: Spread | None = None) -> float:
    """What 1 stands for, so that no value of a sum overflows: `longest` is sum |c_k| |g_k| over so many clients."""
    if spread is not None:
        return spread.reach * longest / (SHORT_HALF - 1 - clients) or 1.0
    return longest / (HALF - 1 - clients) or 1.0


def rounding_slack(dim: int, clients: int) -> float:
    """How far rounding in units of a short sum may bring |sum|^2, in units of (sum |c_k| |g_k|)^2.

    With r = unit / sum |c_k| |g_k| it adds an e of D independent values to the sum, of mean 0 and a variance of
    K r^2 / 4 at most: 2 sum.e has a standard deviation of sqrt(K) r at most, |e|^2 a mean of K D r^2 / 4 and a standard
    deviation below K sqrt(D) r^2.
    """
    unit = unit_for(1.0, clients, Spread(dim, clients, b""))
    return SIGMAS * math.sqrt(clients) * unit + clients * unit**2 * (dim / 4 + SIGMAS * math.sqrt(dim))


def in_units(row: FloatArray, weight: float, unit: float, secret: bytes, spread: Spread | None = None) -> Words | None:
    """weight * row in whole units, rounded at random by a secret [D]; None where a value is too large for that."""
    values, half = np.asarray(row, np.float64) * (weight / unit), HALF if spread is None else SHORT_HALF
    if spread is not None:
        most = spread.reach * float(np.linalg.norm(values))
        values = spread.out(values)
        if not np.abs(values).max(initial=0.0) <= most * (1 + 1e-5):
            return None
    values += np.frombuffer(stream(secret, 4 * len(values)), "<u4") * 2.0**-32
    np.floor(values, out=values)
    if not (np.abs(values) < half).all():
        return None
    return values.astype(np.int64).astype(np.uint32 if spread is None else np.uint16)


def masked(words: Words, client: int, secrets: Mapping[int, bytes]) -> Words:
    """The `words` of a client [D] under the masks that it shares with each of the others, by their numbers."""
    total = words.copy()
    for other, secret in secrets.items():
        mask: Words = np.frombuffer(stream(secret, words.nbytes), words.dtype.newbyteorder("<"))
        if other > client:
            total += mask
        else:
            total -= mask
    return total


def opened(summands: Iterable[Words], unit: float, spread: Spread | None = None) -> Float64Array:
    """The sum of what all the clients of a sum sent [D]."""
    if spread is not None:
        short = np.asarray(sum(summands, np.uint16(0)), np.uint16)
        return spread.back(short.view(np.int16) * unit)
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
    if others == 0:
        return 0.0  # of one client alone, whose sum nobody gives
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
