"""Vectors in fewer bits a value: as they are, as bfloat16, or in blocks with a scale each.

All but the first round at random, so that the mean stays right: a value between two levels goes to one of them with the
probability that makes its expectation the value (stochastic rounding, as in QSGD, Alistarh et al., NeurIPS 2017). A
block of `BLOCK` values x is sent as whole numbers q from -L to L, L = 2^(bits - 1) - 1, and one scale s, the largest
|x| over L: q is x / s rounded down or up. Scales are bfloat16, rounded up, so that no q is above L.

Work is done in sweeps of a size that a core's cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.linalg.sweeps import squared_norm
from dqnfed_flwr.types import FloatArray

FLOATS = ("float32", "float64")
BLOCK = 256
"""Values that share a scale."""
SWEEP = 64
"""Blocks that are worked on at a time."""
STRIP = 32
"""Values of a block between which maxima are formed first: a processor's registers take them side by side."""
SMALLEST = np.float32(2.0**-126)
"""Scales below it, whose inverse float32 does not hold, stand for blocks of zeros."""
CODES, SCALES = ".codes", ".scales"
"""End the names of the arrays of a rounded vector."""
Shape = tuple[int, ...]
Parts = Mapping[str, NDArray[np.generic]]
"""The arrays that stand for a vector, by what their names end in."""
Expected = dict[str, tuple[Shape, tuple[str, ...]]]


def floats(values: NDArray[np.generic]) -> FloatArray:
    """`values`, which must be floats, with `WireError` if not."""
    if values.dtype.kind != "f":
        raise WireError("bad-dtype", f"dtype {values.dtype}; need a float")
    return cast(FloatArray, values)


class Plain:
    """A vector as it is."""

    def expected(self, shape: Shape) -> Expected:
        """Shapes and dtypes of the parts of a vector of `shape`."""
        return {"": (shape, FLOATS)}

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """The vector."""
        return {"": vector}

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """Inverse of `pack`."""
        return floats(parts[""])

    def error(self, parts: Parts, vector: FloatArray) -> float:
        """How far the `vector` of such parts may be from the one that was packed."""
        return 0.0


class Brief:
    """A vector [D] in bfloat16: float32 without the last 16 bits."""

    def expected(self, shape: Shape) -> Expected:
        """Shape and dtype of the upper halves."""
        return {CODES: (shape, ("uint16",))}

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """Round a vector of float32 or float64 by draws of the `generator`; what is not finite stays so.

        The largest number of bfloat16 stands for those beyond it, as far as float32 has them.
        """
        codes = np.empty(vector.shape, np.uint16)
        for part in _sweeps(len(vector)):
            with np.errstate(over="ignore"):
                bits = np.array(vector[part], np.float32).view(np.uint32)
            sign, size = bits & np.uint32(0x8000_0000), bits & np.uint32(0x7FFF_FFFF)
            drawn = size + generator.integers(0, 1 << 16, size.shape, np.uint16)
            rounded = np.minimum(drawn, np.uint32(0x7F7F_FFFF))
            odd = np.where(size > 0x7F80_0000, np.uint32(0x7FC0_0000), size)  # NaN, of any payload, or infinity
            codes[part] = (sign | np.where(size >= 0x7F80_0000, odd, rounded)) >> 16
        return {CODES: codes}

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]."""
        return widened(parts[CODES].astype(np.uint16, copy=False))

    def error(self, parts: Parts, vector: FloatArray) -> float:
        """See `Plain`: one part in 128 at the most, of every value."""
        return math.sqrt(squared_norm(vector)) / 127


@dataclass(frozen=True, slots=True)
class Rounded:
    """A vector [D] in `bits` a value, which divide a byte."""

    bits: int

    def expected(self, shape: Shape) -> Expected:
        """Shapes and dtypes of codes, several a byte, and of scales."""
        blocks = math.ceil(math.prod(shape) / BLOCK)
        return {CODES: ((blocks * BLOCK * self.bits // 8,), ("uint8",)), SCALES: ((blocks,), ("uint16",))}

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """Round a vector of float32 or float64 by draws of the `generator`.

        A block with a value that is not finite gets a scale that is not finite either: `unpack` shows it.
        """
        per, blocks = 8 // self.bits, math.ceil(len(vector) / BLOCK)
        codes, scales = np.empty((blocks * BLOCK // per,), np.uint8), np.empty(blocks, np.uint16)
        room = np.empty((2, SWEEP, BLOCK), np.float32)
        for part in _sweeps(len(vector)):
            first, count = part.start // BLOCK, math.ceil((part.stop - part.start) / BLOCK)
            values, other = room[0, :count], room[1, :count]
            with np.errstate(invalid="ignore", over="ignore"):
                values.reshape(-1)[: part.stop - part.start] = vector[part]
                values.reshape(-1)[part.stop - part.start :] = 0
                scales[first : first + count] = self._round(values, other, generator)
            whole = values.astype(np.uint8).reshape(-1, per)
            into = codes[part.start // per :][: len(whole)]
            into[:] = whole[:, 0]
            for place in range(1, per):
                into |= whole[:, place] << np.uint8(place * self.bits)
        return {CODES: codes, SCALES: scales}

    def _round(
        self, values: NDArray[np.float32], other: NDArray[np.float32], generator: np.random.Generator
    ) -> NDArray[np.uint16]:
        """Turn blocks of values into their codes, in place; their scales. `other` is room of the same size."""
        largest = np.float32(2 ** (self.bits - 1) - 1)
        strips = np.abs(values, out=other).reshape(len(values), -1, STRIP).max(axis=1)
        scales = _rounded_up(strips.max(axis=1) / largest)
        wide = widened(scales)
        inverse = np.divide(1, wide, out=np.zeros(len(scales), np.float32), where=wide >= SMALLEST)
        values *= inverse[:, None]
        values += generator.random(dtype=np.float32, out=other)
        np.floor(values, out=values)
        np.minimum(np.maximum(values, -largest, out=values), largest, out=values)
        if not np.isfinite(wide).all():
            np.nan_to_num(values, copy=False)
        values += largest
        return scales

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]; `ShapeError` for a code that `pack` does not write."""
        largest, mask, per = 2 ** (self.bits - 1) - 1, np.uint8(2**self.bits - 1), 8 // self.bits
        packed, scales = parts[CODES].astype(np.uint8, copy=False), parts[SCALES].astype(np.uint16, copy=False)
        found = np.empty((len(scales), BLOCK // per, per), np.float32)
        codes = np.empty((min(SWEEP, len(scales)) * BLOCK // per, per), np.uint8)
        for first in range(0, len(scales), SWEEP):
            into = found[first : first + SWEEP]
            bytes_ = packed[first * BLOCK // per :][: into.size // per]
            few = bytes_[:, None] if per == 1 else codes[: len(bytes_)]
            for place in range(per) if per > 1 else ():
                np.bitwise_and(bytes_ >> np.uint8(place * self.bits), mask, out=few[:, place])
            if few.max(initial=0) > 2 * largest:
                raise ShapeError(f"a code of {few.max()}; {self.bits} bits have codes from 0 to {2 * largest}")
            np.subtract(few.reshape(into.shape), np.float32(largest), out=into)
            with np.errstate(invalid="ignore", over="ignore"):
                into *= widened(scales[first : first + SWEEP])[:, None, None]
        return np.asarray(found.reshape(-1)[: math.prod(shape)])

    def error(self, parts: Parts, vector: FloatArray) -> float:
        """See `Plain`: half a level, in root mean square, for every value."""
        scales = widened(parts[SCALES].astype(np.uint16, copy=False)).astype(np.float64)
        return math.sqrt(BLOCK * float(scales @ scales)) / 2


Codec = Plain | Brief | Rounded


def _sweeps(dim: int) -> Iterator[slice]:
    """Parts of a vector [D]."""
    width = SWEEP * BLOCK
    return (slice(start, min(start + width, dim)) for start in range(0, dim, width))


def _rounded_up(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the next bfloat16 that is not below a positive float32."""
    return np.asarray((values.view(np.uint32).astype(np.uint64) + 0xFFFF) >> 16, np.uint16)


def widened(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers whose bfloat16 bits these are."""
    return (codes.astype(np.uint32) << 16).view(np.float32)
