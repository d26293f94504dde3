"""Vectors in a few bits a value: blocks with a scale each, rounded at random so that the mean stays right.

A block of `BLOCK` values x is sent as whole numbers q from -L to L, L = 2^(bits - 1) - 1, and one scale s, the largest
|x| over L. q is x / s rounded down or up with the probability that makes E[q s] = x (stochastic rounding, as in QSGD,
Alistarh et al., NeurIPS 2017). Scales are bfloat16, rounded up, so that no q is above L.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import FloatArray, Packed

BLOCK = 256
"""Values that share a scale."""
BITS = (2, 4, 8)
"""Widths that divide a byte."""


def packed_sizes(dim: int, bits: int) -> tuple[int, int]:
    """Bytes of the codes, and number of scales, of a vector of `dim` values."""
    blocks = math.ceil(dim / BLOCK)
    return blocks * BLOCK * bits // 8, blocks


def pack(vector: FloatArray, bits: int, generator: np.random.Generator) -> Packed:
    """Round `vector` [D], of float32 or float64, to `bits`, 2, 4 or 8 a value.

    A block with a value that is not finite gets a scale that is not finite either: `unpack` shows it.

    Raises
    ------
    ShapeError
        For other `bits`, or an array of another shape.
    """
    if bits not in BITS or vector.ndim != 1:
        raise ShapeError(f"{vector.shape} values in {bits} bits; need [D], and {', '.join(map(str, BITS))} bits")
    largest = 2 ** (bits - 1) - 1
    _, blocks = packed_sizes(len(vector), bits)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[: len(vector)] = vector
    values = padded.reshape(blocks, BLOCK)
    with np.errstate(invalid="ignore", over="ignore"):
        scales = _rounded_up(np.abs(values).max(axis=1, initial=0.0) / np.float32(largest))
        inverse = np.divide(1, _widened(scales), out=np.zeros(blocks, np.float32), where=scales > 0)
        values *= inverse[:, None]
        values += generator.random(values.shape, np.float32)
        codes = np.nan_to_num(np.clip(np.floor(values, out=values), -largest, largest)) + np.float32(largest)
    whole = codes.astype(np.uint8).reshape(-1, 8 // bits)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return Packed(np.bitwise_or.reduce(whole << shifts, axis=1), scales, bits, len(vector))


def unpack(packed: Packed) -> FloatArray:
    """The values, float32 [D].

    Raises
    ------
    ShapeError
        If the sizes do not fit together, or a code is none that `pack` writes.
    """
    bits, dim = packed.bits, packed.dim
    if (packed.codes.shape, packed.scales.shape) != tuple((size,) for size in packed_sizes(dim, bits)):
        raise ShapeError(f"{packed.codes.shape} codes and {packed.scales.shape} scales; {dim} values need others")
    largest = 2 ** (bits - 1) - 1
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((packed.codes[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1, BLOCK)
    if codes.max(initial=0) > 2 * largest:
        raise ShapeError(f"a code of {codes.max()}; {bits} bits have codes from 0 to {2 * largest}")
    values = codes.astype(np.float32)
    values -= np.float32(largest)
    with np.errstate(invalid="ignore", over="ignore"):
        values *= _widened(packed.scales)[:, None]
    return np.asarray(values.reshape(-1)[:dim])


def _rounded_up(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the next bfloat16 that is not below a positive float32."""
    return np.asarray((values.view(np.uint32).astype(np.uint64) + 0xFFFF) >> 16, np.uint16)


def _widened(scales: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (scales.astype(np.uint32) << 16).view(np.float32)
