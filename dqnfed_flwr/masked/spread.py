"""A turn of vectors that everybody knows, after which no value is much larger than the others.

R = H_2 S_2 H_1 S_1: the S are diagonal matrices of random signs, H_1 is the Hadamard transform of the first n values,
over sqrt(n), H_2 that of the last n, and n is the largest power of two that is not above D (as in Ailon and Chazelle,
"The fast Johnson-Lindenstrauss transform", SIAM Journal on Computing 39(1), 2009, for any D). R is orthogonal, so sums
and lengths stay. A value of R x is a sum of signs times numbers whose squares sum to |x|^2 / n at most: by Hoeffding's
inequality it is above t |x| / sqrt(n) with a probability below 2 exp(-t^2 / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.masked.secrets import stream
from dqnfed_flwr.types import Float64Array, FloatArray

RARELY = 1e-9
"""The probability with which one of the values of all clients is above `Spread.reach`, at most."""
_Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Spread:
    """R for vectors of D = `dim` values, by a public `seed` of its signs, for so many `clients`."""

    dim: int
    clients: int
    seed: bytes

    @property
    def reach(self) -> float:
        """The largest value of R x, over |x|, of any client."""
        likely = math.sqrt(2 * math.log(2 * self.dim * self.clients / RARELY) / self._side)
        return min(1.0, likely)

    def out(self, vector: FloatArray) -> Float64Array:
        """R vector [D], computed in float32."""
        first, second = self._signs()
        found = np.array(vector, np.float32)
        for part, signs in ((slice(self._side), first), (slice(self.dim - self._side, None), second)):
            found *= signs
            found[part] = hadamard(found[part])
        return found.astype(np.float64)

    def back(self, vector: FloatArray) -> Float64Array:
        """Inverse of `out`."""
        first, second = self._signs()
        found = np.array(vector, np.float32)
        for part, signs in ((slice(self.dim - self._side, None), second), (slice(self._side), first)):
            found[part] = hadamard(found[part])
            found *= signs
        return found.astype(np.float64)

    @property
    def _side(self) -> int:
        """n."""
        return 1 << (self.dim.bit_length() - 1)

    def _signs(self) -> NDArray[np.int8]:
        drawn = np.frombuffer(stream(self.seed, -(-2 * self.dim // 8)), np.uint8)
        signs = np.unpackbits(drawn, count=2 * self.dim).view(np.int8)
        return (2 * signs - 1).reshape(2, self.dim)


def hadamard(values: _Values) -> _Values:
    """The Hadamard transform of a vector [n], n a power of two, over sqrt(n): its own inverse.

    As a table it is that of the columns and that of the rows; both are taken along memory, by turning the table over.
    """
    rows = 1 << (len(values).bit_length() // 2)
    table = np.ascontiguousarray(_columns(values.reshape(rows, -1)).T)
    found = np.ascontiguousarray(_columns(table).T).reshape(-1)
    found *= np.float32(1 / math.sqrt(len(values)))
    return found


def _columns(table: _Values) -> _Values:
    """The transform of each column of a table [R, C], R a power of two, times sqrt(R); a new table."""
    found, other = table.copy(), np.empty_like(table)
    step = 1
    while step < len(table):
        pairs, into = (each.reshape(-1, 2, step * table.shape[1]) for each in (found, other))
        np.add(pairs[:, 0], pairs[:, 1], out=into[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=into[:, 1])
        found, other, step = other, found, 2 * step
    return found
