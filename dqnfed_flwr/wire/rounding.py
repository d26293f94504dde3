"""Vectors in fewer bits a value: as they are, as bfloat16, or in blocks with a scale each.

All but the first round at random, so that the mean stays right: a value between two levels goes to one of them with the
probability that makes its expectation the value (stochastic rounding, as in QSGD, Alistarh et al., NeurIPS 2017). A
block of `BLOCK` values x is sent as whole numbers q from -L to L, L = 2^(bits - 1) - 1, and one scale s, the largest
|x| over L: q is x / s rounded down or up. Scales are bfloat16, rounded up, so that no q is above L.

Work is done in sweeps of a size that a core's cache holds, on the bits of floats, and in arrays that are made once, for
fresh memory costs more than what is done in it. 2^bits + L + x / s, as a float32, is a whole number of 2^(bits - 23),
by rounding off by half of one at most: 2^-22 of the block's largest |x|. From there on the mean is right to the bit:
`_add` draws as many bits as are cut off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.linalg.sweeps import squared_norm
from dqnfed_flwr.masked.secrets import KEY, Stream
from dqnfed_flwr.types import FloatArray

FLOATS = ("float32", "float64")
BLOCK = 256
"""Values that share a scale."""
SWEEP = 256
"""Blocks that are worked on at a time; codes of one sweep are put together, so it is part of what is sent."""
SMALLEST = np.float32(2.0**-126)
"""Scales below it, whose inverse float32 does not hold, stand for blocks of zeros."""
FRACTION = 23
"""Bits of a float32 behind the point."""
SIZE, LARGEST, INFINITE, NAN = 0x7FFF_FFFF, 0x7F7F_0000, 0x7F80_0000, 0x7FC0_0000
"""Bits of a float32: all but the sign; the largest of bfloat16; infinity; a NaN. They are in the order of sizes."""
UPPER, LOWER = np.array([[6], [4], [2]], np.uint32), np.array([[3], [12], [48]], np.uint32) * np.uint32(0x01010101)
"""Of the fourth code in three bytes: where its bits lie in each, and which they are."""
CODES, SCALES = ".codes", ".scales"
"""End the names of the arrays of a rounded vector."""
Shape = tuple[int, ...]
Parts = Mapping[str, NDArray[np.generic]]
"""The arrays that stand for a vector, by what their names end in."""
Expected = dict[str, tuple[Shape | None, tuple[str, ...]]]
"""Shapes and dtypes of parts, by what their names end in; no shape where the values decide it."""


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
        room, other = np.empty((2, SWEEP * BLOCK), np.uint32)
        stream = Stream(generator.bytes(KEY), 2 * SWEEP * BLOCK)
        for start in range(0, len(vector), SWEEP * BLOCK):
            part = slice(start, min(start + SWEEP * BLOCK, len(vector)))
            bits, spare = room[: part.stop - start], other[: part.stop - start]
            with np.errstate(over="ignore"):
                bits.view(np.float32)[:] = vector[part]
            last = np.flatnonzero(np.bitwise_and(bits, SIZE, out=spare) >= LARGEST)
            ends = [_last(each) for each in bits[last].tolist()]
            _add(bits, 16, stream, spare)
            bits >>= 16
            codes[part] = bits
            codes[part][last] = ends
        return {CODES: codes}

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]."""
        return widened(parts[CODES].astype(np.uint16, copy=False))

    def error(self, parts: Parts, vector: FloatArray) -> float:
        """See `Plain`: one part in 128 at the most, of every value."""
        return math.sqrt(squared_norm(vector)) / 127


@dataclass(frozen=True, slots=True)
class Rounded:
    """A vector [D] in `bits` a value: 2, 4, 6 or 8."""

    bits: int

    def expected(self, shape: Shape) -> Expected:
        """Shapes and dtypes of codes, several a byte, and of scales."""
        return in_blocks(shape, self.bits)

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """Round a vector of float32 or float64 by draws of the `generator`.

        A block with a value that is not finite gets a scale that is not finite either: `unpack` shows it.
        """
        blocks, width = math.ceil(len(vector) / BLOCK), BLOCK * self.bits // 8
        codes, scales = np.empty((blocks, width), np.uint8), np.empty(blocks, np.uint16)
        room, small = np.empty((2, SWEEP, BLOCK), np.float32), np.empty(SWEEP * BLOCK, np.uint8)
        stream = Stream(generator.bytes(KEY), 2 * SWEEP * BLOCK)
        for first in range(0, blocks, SWEEP):
            with np.errstate(invalid="ignore", over="ignore"):
                values = sweep(vector, first)
                whole, scales[first : first + SWEEP] = self._round(values, room[:, : len(values)], stream)
            _join(whole, self.bits, small[: whole.size], codes[first : first + SWEEP].reshape(-1))
        return {CODES: codes.reshape(-1), SCALES: scales}

    def _round(
        self, values: NDArray[np.float32], room: NDArray[np.float32], stream: Stream
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """Blocks of values [N, BLOCK] as codes [N * BLOCK] in the last bits of words, and their scales [N].

        Codes are made in the `room`, which is twice as large as the values.
        """
        room, other = room
        largest, bits = np.float32(2 ** (self.bits - 1) - 1), room.view(np.uint32)
        sizes = np.bitwise_and(values.view(np.uint32), SIZE, out=bits).max(axis=1).view(np.float32)
        scales = rounded_up(sizes / largest)
        wide = widened(scales)
        inverse = 1 / np.where(usable := (wide >= SMALLEST) & (wide < np.inf), wide, np.inf)
        inverse[sizes * inverse > largest] *= np.float32(1 - 2**-22)  # so much may these operations be off by
        if not usable.all():
            values = np.where(usable[:, None], values, 0)
        np.multiply(values, inverse[:, None], out=room)
        room += 2**self.bits + largest
        flat = bits.reshape(-1)
        _add(flat, FRACTION - self.bits, stream, other.view(np.uint32).reshape(-1))
        flat >>= FRACTION - self.bits
        return flat, scales

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]; `ShapeError` for a code that `pack` does not write."""
        largest, width = 2 ** (self.bits - 1) - 1, BLOCK * self.bits // 8
        packed, scales = parts[CODES].astype(np.uint8, copy=False), parts[SCALES].astype(np.uint16, copy=False)
        found, room = np.empty((len(scales), BLOCK), np.float32), np.empty(SWEEP * BLOCK, np.uint8)
        for first in range(0, len(scales), SWEEP):
            into = found[first : first + SWEEP]
            codes = _part(packed[first * width :][: len(into) * width], self.bits, room[: into.size])
            if (most := codes.max(initial=0)) > 2 * largest:
                raise ShapeError(f"a code of {most}; {self.bits} bits have codes from 0 to {2 * largest}")
            whole = np.subtract(codes, np.uint8(largest), out=room[: into.size]).view(np.int8)
            into[:] = whole.reshape(into.shape)
            with np.errstate(invalid="ignore", over="ignore"):
                into *= widened(scales[first : first + SWEEP])[:, None]
        return np.asarray(found.reshape(-1)[: math.prod(shape)])

    def error(self, parts: Parts, vector: FloatArray) -> float:
        """See `Plain`: half a level, in root mean square, for every value."""
        scales = widened(parts[SCALES].astype(np.uint16, copy=False)).astype(np.float64)
        return math.sqrt(BLOCK * float(scales @ scales)) / 2


def in_blocks(shape: Shape, bits: int) -> Expected:
    """Shapes and dtypes of codes of so many bits, and of scales."""
    blocks = math.ceil(math.prod(shape) / BLOCK)
    return {CODES: ((blocks * BLOCK * bits // 8,), ("uint8",)), SCALES: ((blocks,), ("uint16",))}


def sweep(vector: FloatArray, first: int) -> NDArray[np.float32]:
    """Values [N, BLOCK] of at most `SWEEP` blocks from the `first` on, with zeros behind the last value."""
    values = np.asarray(vector[first * BLOCK : (first + SWEEP) * BLOCK], np.float32)
    if short := -len(values) % BLOCK:
        values = np.pad(values, (0, short))
    return values.reshape(-1, BLOCK)


def _add(to: NDArray[np.uint32], bits: int, stream: Stream, room: NDArray[np.uint32]) -> None:
    """Add to each of the values [N], in place, a number from 0 to 2^bits - 1 that is as likely as any other.

    Two are made of a word of the `stream`, one from either end. Where they overlap, the first bits of one are the last
    of the other: each by itself is as it should be, and what one says of the other is worth 2^(bits - 32) of a level.
    """
    half = (len(to) + 1) // 2
    words, other = stream.words(half), room[:half]
    to[:half] += np.bitwise_and(words, np.uint32((1 << bits) - 1), out=other)
    to[half:] += np.right_shift(words, 32 - bits, out=other)[: len(to) - half]


def _join(codes: NDArray[np.uint32], bits: int, room: NDArray[np.uint8], into: NDArray[np.uint8]) -> None:
    """Put codes [N] of a sweep, the last bits of words, together `into` bytes [N * bits / 8].

    Codes are cut into as many equal parts as a byte has room for. A byte has the codes of one place in each part, the
    first in the lowest bits. Codes of 6 bits are cut into four parts, and bytes into three: each third has the codes of
    a part in the lowest bits, and above them two bits of those of the fourth part, the first third the lowest two.
    """
    if bits == 8:
        np.copyto(into, codes, casting="unsafe")
        return
    np.copyto(room, codes, casting="unsafe")
    words = room.view("<u4").reshape(4 if bits == 6 else 8 // bits, -1)
    words &= _each(2**bits - 1)
    if bits == 6:
        wide = into.view("<u4").reshape(3, -1)
        np.left_shift(words[3], UPPER, out=wide)
        wide &= _each(0xC0)
        wide |= words[:3]
        return
    for place in range(1, len(words)):
        words[place] <<= bits * place
        words[0] |= words[place]
    into.view("<u4")[:] = words[0]


def _part(packed: NDArray[np.uint8], bits: int, room: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Inverse of `_join`: codes, a byte each; they lie in the `room`, as large as they are, or are `packed`."""
    if bits == 8:
        return packed
    wide = packed.view("<u4")
    if bits == 6:
        words, thirds = room.view("<u4").reshape(4, -1), wide.reshape(3, -1)
        np.right_shift(thirds, UPPER, out=words[:3])
        words[:3] &= LOWER
        np.bitwise_or.reduce(words[:3], axis=0, out=words[3])
        np.bitwise_and(thirds, _each(0x3F), out=words[:3])
        return room
    words = room.view("<u4").reshape(8 // bits, -1)
    for place, part in enumerate(words):
        np.right_shift(wide, bits * place, out=part)
    words &= _each(2**bits - 1)
    return room


def _each(byte: int) -> np.uint32:
    """A word of four such bytes."""
    return np.uint32(byte * 0x01010101)


def _last(bits: int) -> int:
    """The bfloat16 of a float32 of at least the size `LARGEST`; both as bits."""
    size = bits & SIZE
    return (bits - size | (NAN if size > INFINITE else INFINITE if size == INFINITE else LARGEST)) >> 16


def rounded_up(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the next bfloat16 that is not below a float32 from 0; of NaN those of one."""
    return np.asarray((np.minimum(values.view(np.uint32), NAN) + 0xFFFF) >> 16, np.uint16)


def widened(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers [D] whose bfloat16 bits these are."""
    found = np.empty(codes.shape, np.float32)
    for start in range(0, len(codes), SWEEP * BLOCK):
        bits = found[start : start + SWEEP * BLOCK].view(np.uint32)
        bits[:] = codes[start : start + SWEEP * BLOCK]
        bits <<= 16
    return found
