"""Steps in one to four bits a value: the nearest of a few levels, and codes whose length is by how rare they are.

Rounding to the nearest level is not right on average, as `rounding` is, but about half as far off in as many bits. So
it is for vectors alone whose errors go into what is sent next (error feedback: 1-bit SGD, Seide et al., Interspeech
2014; EF-SignSGD, Karimireddy et al., ICML 2019). How coarse a step may be is for who sends it to say.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.rounding import (
    BLOCK,
    CODES,
    SCALES,
    SMALLEST,
    SWEEP,
    Expected,
    Parts,
    Rounded,
    Shape,
    in_blocks,
    rounded_up,
    sweep,
    widened,
)

MOST = 7
"""The last level on either side of 0: a code has 4 bits, before codes are made shorter."""
DEFLATE = -15
"""Deflate's bytes alone, without a header, and its largest window; minus its logarithm."""


@dataclass(frozen=True, slots=True)
class Levels:
    """A vector [D], each value as the nearest of 15 levels: whole multiples, up to 7, of the scale of its block.

    The scale is `spacing` times the root mean square of the block's values; for `spacing` 0 a seventh of the largest,
    so that no value is beyond the last level. Few values are far from 0: the codes, two a byte, are sent in the code of
    Deflate (RFC 1951), which has fewer bits for bytes that are frequent, and for runs of one.
    """

    spacing: float = 0.0

    def expected(self, shape: Shape) -> Expected:
        """Dtypes of codes, whose number the values decide, and of scales, with the shape of these."""
        return {**in_blocks(shape, 8), CODES: (None, ("uint8",))}

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """Round a vector of float32 or float64; nothing is drawn.

        A block with a value that is not finite gets a scale that is not finite either: `unpack` shows it.
        """
        blocks, deflate = math.ceil(len(vector) / BLOCK), zlib.compressobj(1, zlib.DEFLATED, DEFLATE, 9, zlib.Z_RLE)
        codes, scales = list[bytes](), np.empty(blocks, np.uint16)
        for first in range(0, blocks, SWEEP):
            with np.errstate(invalid="ignore", over="ignore"):
                values = sweep(vector, first)
                found = scales[first : first + SWEEP] = rounded_up(self._scales(values))
                wide = widened(found)
                usable = (wide >= SMALLEST) & np.isfinite(wide)
                levels = np.rint(np.divide(values, wide[:, None], out=np.zeros_like(values), where=usable[:, None]))
            pairs = (np.clip(levels, -MOST, MOST, out=levels) + MOST).astype(np.uint8).reshape(-1).view("<u2")
            codes.append(deflate.compress((pairs | pairs >> 4).astype(np.uint8).data))
        return {CODES: np.frombuffer(b"".join((*codes, deflate.flush())), np.uint8), SCALES: scales}

    def _scales(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Those of blocks of values [N, BLOCK]."""
        if not self.spacing:
            return np.asarray(np.abs(values).max(axis=1) / MOST, np.float32)
        return np.asarray(self.spacing * np.sqrt(np.square(values, dtype=np.float64).mean(axis=1)), np.float32)

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]; `ShapeError` for codes that `pack` does not write for so many."""
        count, inflate = math.ceil(math.prod(shape) / BLOCK) * BLOCK // 2, zlib.decompressobj(DEFLATE)
        try:
            codes = inflate.decompress(parts[CODES].tobytes(), count + 1)
        except zlib.error as error:
            raise ShapeError(f"codes that are not Deflate's: {error}") from None
        if len(codes) != count or not inflate.eof or inflate.unused_data:
            raise ShapeError(f"{parts[CODES].size} bytes do not stand for the {count} bytes of codes that are needed")
        pairs = np.frombuffer(codes, np.uint8).astype("<u2")
        each = ((pairs | pairs << 4) & 0x0F0F).view(np.uint8)
        if (most := each.max(initial=0)) > 2 * MOST:
            raise ShapeError(f"a code of {most}; levels have codes from 0 to {2 * MOST}")
        return Rounded(8).unpack({**parts, CODES: each + np.uint8(127 - MOST)}, shape)
