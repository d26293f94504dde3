"""What the server sees of a row: its count-sketch, turned by a rotation that only the clients know.

y_k = Q C g_k, where C [m, D] is a count-sketch (Charikar, Chen and Farach-Colton 2002), which everybody knows, and Q is
Haar distributed on the orthogonal group O(m), by a seed that the clients alone share, anew in each exchange. Inner
products of the y_k are those of the C g_k. For any two tuples of rows whose sketches have the same Gramian the messages
have the same law: the Gramian is all that they tell.

Q is a product of Householder reflections of normal vectors (Stewart, "The efficient generation of random orthogonal
matrices", SIAM Journal on Numerical Analysis 17(3), 1980), applied and never formed.

Inner products of sketches are off by about |g_j| |g_k| / sqrt(m), whatever D; a sketch is brought to the length of its
row, so that their lengths are not. A row of no more than m values is its own sketch.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.masked.secrets import stream
from dqnfed_flwr.types import Float64Array, FloatArray

LONGEST = 4096
"""m: numbers of a sketch at most."""
_ONE_AT_A_TIME = threading.Lock()
"""Held while a rotation is drawn: clients of one process that work at the same time want the same one."""


def sketch_size(dim: int) -> int:
    """m for rows of D = `dim` values."""
    return min(dim, LONGEST)


def sketched(row: FloatArray, number: int) -> Float64Array:
    """C row, as long as the row [m]; `number` is that of the exchange, and chooses C."""
    wide = np.asarray(row, np.float64)
    size = sketch_size(len(wide))
    if size == len(wide):
        return wide
    places, signs = count_sketch(len(wide), number)
    found = np.asarray(np.bincount(places, wide * signs, size), np.float64)
    length = float(np.linalg.norm(found))
    return found * (float(np.linalg.norm(wide)) / length) if length else found


def rotated(vector: Float64Array, seed: bytes) -> Float64Array:
    """Q vector [m], for the Q that a secret seed stands for.

    Q_1 is a random sign, and Q_n = H(x) (s 1 + Q_{n-1}), x normal [n]: s and the reflection H(x) bring the first unit
    vector to x / |x|.
    """
    turned = np.array(vector, np.float64)
    with _ONE_AT_A_TIME:
        axes, lengths = _axes(seed, len(turned))
    turned[-1] *= math.copysign(1.0, axes[0])
    start = 1
    for size in range(2, len(turned) + 1):
        axis, length, part = axes[start : start + size], lengths[size - 1], turned[-size:]
        start += size
        first, ahead = math.copysign(1.0, axis[0]), float(part[0])
        part[0] = -first * ahead
        # the reflection by v = x + sign(x_1) |x| e_1, of which v.v = 2 |x| (|x| + |x_1|)
        share = (float(axis @ part) - length * ahead) / (length * (length + abs(float(axis[0]))))
        part -= share * axis
        part[0] -= share * first * length
    return turned


@lru_cache(maxsize=1)
def count_sketch(dim: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Where each value goes, and with which sign; clients of one process share it."""
    draws = np.random.default_rng((dim, number))
    return draws.integers(0, LONGEST, dim), draws.integers(0, 2, dim, np.int8) * np.int8(2) - np.int8(1)


@lru_cache(maxsize=1)
def _axes(seed: bytes, size: int) -> tuple[Float64Array, list[float]]:
    """Normal vectors [1], [2], ..., [size], one behind the other, and their lengths; clients of a process share them.

    By Box and Muller.
    """
    count = size * (size + 1) // 2
    half = -(-count // 2)
    uniform = np.frombuffer(stream(seed, 8 * half), "<u4").astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2**-32)
    np.minimum(uniform, np.float32(1), out=uniform)
    radius, angle = uniform[:half], uniform[half:]
    np.sqrt(np.multiply(np.log(radius, out=radius), np.float32(-2), out=radius), out=radius)
    angle *= np.float32(2 * np.pi)
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].astype(np.float64)
    starts = np.arange(size) * np.arange(1, size + 1) // 2
    return normals, np.sqrt(np.add.reduceat(normals * normals, starts)).tolist()
