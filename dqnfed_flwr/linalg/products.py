"""Inner products of long rows, the same bits whatever else is computed beside them.

Products of float32 rows are float32 inside blocks of `BLOCK` columns and float64 between them. Columns are worked off
in segments, by a few threads, and added in the order of the segments, whoever computed them. A product depends on its
two rows alone as long as the shapes are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array

_T = TypeVar("_T")
Rows = NDArray[np.floating]

BLOCK = 512
"""Columns summed in the dtype of the rows before the sum is carried in float64."""
SEGMENT = 256 * BLOCK
"""Columns handed to a thread at once."""
NARROW = SEGMENT // 16
"""Columns of which a float64 copy of every row is cheap."""


def cross_products(left: Rows, right: Rows, *, wide: bool) -> Float64Array:
    """left @ right.T in float64.

    Parameters
    ----------
    left, right : NDArray
        [m, D] and [n, D], of one dtype. Values that are not finite raise no warning; their products tell.
    wide : bool
        Whether every product is made in float64.
    """
    segment = _wide if wide else _blocked
    parts = columns(left.shape[1], SEGMENT)
    return np.asarray(sum(in_threads(lambda part: segment(left[:, part], right[:, part]), parts)))


def squared_norm(row: Rows) -> float:
    """|row|^2 of one row [D], to the precision of its blocks; infinite or NaN where the row is not fit."""
    parts = columns(len(row), SEGMENT)
    return float(sum(_blocked(row[None, part], row[None, part])[0, 0] for part in parts))


def copy_and_measure(row: Rows, into: Rows) -> float:
    """Copy `row` [D] to `into` [D], cast to its dtype; `squared_norm` of the copy, taken while it is in the cache."""
    total = 0.0
    for part in columns(len(into), SEGMENT):
        with quiet():
            into[part] = row[part]
        total += squared_norm(into[part])
    return total


def columns(dim: int, width: int) -> list[slice]:
    """All of `dim` columns in slices of `width`."""
    return [slice(start, min(start + width, dim)) for start in range(0, dim, width)]


def in_threads(work: Callable[[slice], _T], parts: Sequence[slice]) -> list[_T]:
    """`work` of every part, in their order."""
    return [work(part) for part in parts] if len(parts) == 1 else list(_pool().map(work, parts))


def quiet() -> np.errstate:
    """No warnings of NaN and overflow: rows may hold anything, and their products tell."""
    return np.errstate(over="ignore", invalid="ignore")


def _blocked(left: Rows, right: Rows) -> Float64Array:
    whole = left.shape[1] // BLOCK * BLOCK
    with quiet():
        tail = left[:, whole:].astype(np.float64) @ right[:, whole:].astype(np.float64).T
        return np.asarray(
            (_blocks(left[:, :whole]) @ _blocks(right[:, :whole]).mT).sum(axis=0, dtype=np.float64) + tail
        )


def _blocks(rows: Rows) -> Rows:
    """Rows [m, n * BLOCK] as a view [n, m, BLOCK]."""
    return rows.reshape(len(rows), -1, BLOCK).swapaxes(0, 1)


def _wide(left: Rows, right: Rows) -> Float64Array:
    total = np.zeros((len(left), len(right)))
    with quiet():
        for part in columns(left.shape[1], NARROW):
            total += left[:, part].astype(np.float64) @ right[:, part].astype(np.float64).T
    return total


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="gram")
