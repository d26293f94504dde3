"""Sweeps over rows [B, D]: all are read once, in strips of columns, by as many threads as there are cores.

What is found for a row, or for two, has the same bits whatever else is asked for in the same sweep. A block of columns
of a whole number of tiles, `TILE` rows each, is multiplied with that of one row by BLAS (gemv). As a rule it treats all
rows of a tile alike, and does not care which of two factors comes first. So a row may be multiplied in any tile. The
kernels of some processors do otherwise for blocks of few columns: `alike` looks, and such blocks are summed without
BLAS. Blocks are added in their order, then strips in theirs. Products of two matrices would be made twice as fast while
many rows are owed. But their bits depend on shape and place, so the last row would owe those of its whole matrix.

Inner products of float32 rows are float32 inside blocks of columns and float64 between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dqnfed_flwr.types import Float64Array, FloatArray

_T = TypeVar("_T")

BLOCK = 512
"""Columns of which a squared norm is summed in the dtype of the rows, before the sum is carried in float64."""
PAIR_BLOCK = 8 * BLOCK
"""The same of a product of two rows, which BLAS sums in eight parts or more."""
SUM_BLOCK = 2 * PAIR_BLOCK
"""Columns of a weighted sum that are made at once."""
SEGMENT = 256 * BLOCK
"""Columns of a few rows that a thread takes at once."""
NARROW = SEGMENT // 16
"""Columns of which a float64 copy of every row is cheap."""
STRIP = 8 * SUM_BLOCK
"""Columns of many rows that a thread takes at once; of few rows it takes more of them."""
AT_ONCE = 1 << 22
"""Values of a few rows that a thread takes at once, at most."""
TILE = 4
"""Rows that are multiplied with another row as one matrix, or a multiple of them."""
MANY = 8 * TILE
"""Rows of a block that stay in the cache while others pass."""
FEW_COLUMNS = 64
"""Blocks of fewer columns are never left to BLAS."""
TOGETHER = 16
"""Rows that are multiplied with all others while these are in the cache."""
BLOCKS = 96
"""Blocks that NumPy is given at once: between two calls a thread may wait for the interpreter."""


def strip_width(count: int) -> int:
    """Columns of `count` rows that a thread takes at once, the same whatever is asked for, for the sake of the bits."""
    return max(1, AT_ONCE // (count * STRIP)) * STRIP


def products(strip: FloatArray, due: Sequence[int], known: Sequence[int]) -> Float64Array:
    """Inner products [m, B] in a strip of float32 rows [B, width], of each row `due` with those before it and `known`.

    They are 0 for other slots. Values that are not finite raise no warning; their products show it.
    """
    found = np.zeros((len(due), len(strip)))
    for few in slices(len(due), TOGETHER):
        mine, others = due[few], [*known, *due[: few.start]]
        copies = strip[mine[0] : mine[0] + 1] if len(mine) == 1 else strip[_padded(mine)]
        if len(mine) < TILE:
            others += mine
        else:
            found[few, list(mine)] = _among(copies, len(mine))
        if others:
            runs, apart = _tiles(sorted(others))
            slots = [slot for run in runs for slot in range(run.start, run.stop)]
            found[few, slots + apart] = _cross(strip, copies[: len(mine)], runs, apart)
    return found


def _tiles(slots: Sequence[int]) -> tuple[list[slice], list[int]]:
    """Runs of consecutive `slots`, which rise, in whole tiles, of which the last may begin early; and shorter runs."""
    runs, apart, start = list[slice](), list[int](), 0
    for stop in range(1, len(slots) + 1):
        if stop < len(slots) and slots[stop] == slots[stop - 1] + 1:
            continue
        first, end = slots[start], slots[stop - 1] + 1
        if end - first < TILE:
            apart += slots[start:stop]
        else:
            runs.append(slice(first, end - (end - first) % TILE))
            runs += [slice(end - TILE, end)] if end > runs[-1].stop else []
        start = stop
    return runs, apart


def _cross(strip: FloatArray, mine: FloatArray, runs: Sequence[slice], apart: Sequence[int]) -> Float64Array:
    """Products of `mine` [m, width] with the rows in `runs` and those `apart`, which are copied; [m, n] in order."""
    groups = [_padded(apart[group]) for group in slices(len(apart), MANY)]
    rows: list[slice | list[int]] = [*runs, *groups]
    places = np.cumsum([0, *(run.stop - run.start for run in runs), *map(len, groups)]).tolist()

    def multiply(part: slice, count: int, into: FloatArray) -> None:
        right, theirs = _blocks(mine[:, part], count), _blocks(strip[:, part], count)
        for those, (start, stop) in zip(rows, pairwise(places), strict=True):
            _multiply(theirs[:, those], right, into[:, :, start:stop])

    return _total(strip.shape[1], (len(mine), places[-1]), multiply)[:, : places[len(runs)] + len(apart)]


def _among(copies: FloatArray, count: int) -> Float64Array:
    """Products of each of the first `count` of `copies`, which are whole tiles, with itself and those before it."""

    def multiply(part: slice, blocks: int, into: FloatArray) -> None:
        rows = _blocks(copies[:, part], blocks)
        for tile in slices(len(copies), TILE):
            later = slice(tile.start, count)
            _multiply(rows[:, tile], rows[:, later], into[:, later, tile])

    return _total(copies.shape[1], (count, len(copies)), multiply)[:, :count]


def _padded(slots: Sequence[int]) -> list[int]:
    """Slots in whole tiles, some of them again."""
    tiles: list[int] = np.resize(slots, -(-len(slots) // TILE) * TILE).tolist()
    return tiles


def _total(width: int, shape: tuple[int, int], multiply: Callable[[slice, int, FloatArray], None]) -> Float64Array:
    """Sums of `shape` over `width` columns; `multiply` makes those of n blocks in a part, into zeros [n, *shape]."""
    parts = list(_parts(width))
    sums = np.zeros((parts[-1][1].stop, *shape), np.float32)
    with _quiet():
        for part, blocks in parts:
            multiply(part, blocks.stop - blocks.start, sums[blocks])
        return np.asarray(sums.sum(axis=0, dtype=np.float64))


def _blocks(rows: FloatArray, count: int) -> FloatArray:
    """Rows [m, count * width] as [count, m, width]."""
    return rows.reshape(len(rows), count, -1).swapaxes(0, 1)


def _parts(width: int) -> Iterator[tuple[slice, slice]]:
    """Columns, and which blocks they are; the last block may be a small one."""
    whole = width // PAIR_BLOCK
    for blocks in slices(whole, BLOCKS):
        yield slice(blocks.start * PAIR_BLOCK, blocks.stop * PAIR_BLOCK), blocks
    if width > whole * PAIR_BLOCK:
        yield slice(whole * PAIR_BLOCK, width), slice(whole, whole + 1)


def _multiply(left: FloatArray, right: FloatArray, into: FloatArray) -> None:
    """Put products of blocks of rows `left` [n, r, width] and `right` [n, m, width] into sums [n, m, r]."""
    width = left.shape[2]
    if width < FEW_COLUMNS or not alike(width):
        _multiply_plainly(left, right, into)
    else:
        _multiply_tiles(left, right, into)


def _multiply_tiles(left: FloatArray, right: FloatArray, into: FloatArray) -> None:
    (n, r, width), m = left.shape, right.shape[1]
    size = TILE if m == 1 else MANY
    whole = r // size * size
    for rows, of in ((slice(0, whole), size), (slice(whole, r), r - whole)):
        if rows.start < rows.stop:
            tiles = left[:, rows].reshape(n, -1, of, width).swapaxes(0, 1)
            np.matvec(tiles[:, :, None], right, out=into[:, :, rows].reshape(n, m, -1, of).transpose(2, 0, 1, 3))


def _multiply_plainly(left: FloatArray, right: FloatArray, into: FloatArray) -> None:
    """`_multiply` by sums of NumPy, each of two rows by itself."""
    for r in range(left.shape[1]):
        for m in range(right.shape[1]):
            into[:, m, r] = (left[:, r] * right[:, m]).sum(axis=1)


@cache
def alike(width: int) -> bool:
    """Whether BLAS of this machine gives two rows of `width` columns one product, in every tile and in either order."""
    rows = np.random.default_rng(width).standard_normal((2 * MANY, width), np.float32)
    apart = np.zeros((len(rows), width + 1), np.float32)[:, :width]  # rows that do not follow each other in memory
    apart[:] = rows
    products = np.stack([np.matvec(np.stack([row] * TILE), rows)[:, 0] for row in rows])
    return np.array_equal(products, products.T) and all(
        np.array_equal(np.matvec(held[start : start + of], rows), products[:, start : start + of])
        for held in (rows, apart)
        for of in range(TILE, MANY + 1, TILE)
        for start in (0, len(rows) - of)
    )


def wide_products(segment: FloatArray, pairs: Sequence[tuple[slice, slice]]) -> Float64Array:
    """Inner products made in float64, [B, B], of the rows in the first slots of each pair with those in the second.

    They are those of a segment [B, width], and 0 for other slots. Bits depend on how many slots there are in each.
    """
    total = np.zeros((len(segment), len(segment)))
    with _quiet():
        for part in slices(segment.shape[1], NARROW):
            narrow = segment[:, part].astype(np.float64)
            for one, other in pairs:
                right = narrow[other].copy()  # the product of a matrix with itself would be of other bits
                total[one, other] += narrow[one] @ right.T
    return total


def weighted_sum(weights: FloatArray, strip: FloatArray, into: FloatArray) -> None:
    """Put weights [B] @ strip [B, width] into [width]; all have one dtype."""
    whole = len(into) // SUM_BLOCK * SUM_BLOCK
    blocks = strip[:, :whole].reshape(len(strip), -1, SUM_BLOCK).swapaxes(0, 1)
    with _quiet():
        np.matmul(weights[None], blocks, out=into[:whole].reshape(-1, 1, SUM_BLOCK))
        np.matmul(weights, strip[:, whole:], out=into[whole:])


def wide_weighted_sum(weights: Float64Array, segment: FloatArray, into: FloatArray) -> None:
    """The same, made in float64 and rounded to the dtype of `into`."""
    with np.errstate(over="ignore"):  # an infinite entry is seen by the norm of the sum
        for narrow in slices(len(into), NARROW):
            into[narrow] = weights @ segment[:, narrow].astype(np.float64)


def wide_against(segment: FloatArray, vector: FloatArray) -> Float64Array:
    """segment [B, width] @ vector [width], made in float64 [B]."""
    total = np.zeros(len(segment))
    with _quiet():
        for narrow in slices(len(vector), NARROW):
            total += segment[:, narrow].astype(np.float64) @ vector[narrow].astype(np.float64)
    return total


def squared_norm(row: FloatArray) -> float:
    """|row|^2 of one row [D], to the precision of its blocks; infinite or NaN where the row is not fit."""
    return float(sum(_squares(row[part]) for part in slices(len(row), SEGMENT)))


def copy_and_measure(row: NDArray[np.floating], into: FloatArray) -> float:
    """Copy `row` [D] to `into` [D], cast to its dtype; `squared_norm` of the copy, taken while it is in the cache."""

    def copied(part: slice) -> float:
        with _quiet():
            into[part] = row[part]
        return _squares(into[part])

    return float(sum(copied(part) for part in slices(len(into), SEGMENT)))  # added as in `squared_norm`


def _squares(part: FloatArray) -> float:
    whole = len(part) // BLOCK * BLOCK
    with _quiet():
        blocks, tail = part[:whole].reshape(-1, BLOCK), part[whole:].astype(np.float64)
        return float(np.vecdot(blocks, blocks).sum(dtype=np.float64) + tail @ tail)


def slices(dim: int, width: int) -> list[slice]:
    """All of `dim` columns in slices of `width`."""
    return [slice(start, min(start + width, dim)) for start in range(0, dim, width)]


def in_threads(work: Callable[[slice], _T], parts: Sequence[slice]) -> Iterator[_T]:
    """`work` of every part, in their order; BLAS has no threads of its own meanwhile."""
    done: list[_T | None] = [None] * len(parts)
    turns = iter(range(len(parts)))

    def some() -> None:
        for turn in turns:
            done[turn] = work(parts[turn])

    with one_blas_thread():
        helpers = [_pool().submit(some) for _ in range(min(_cores(), len(parts)) - 1)]
        try:
            some()
        finally:
            wait(helpers)
    for helper in helpers:
        helper.result()
    return iter(cast("list[_T]", done))


def _quiet() -> np.errstate:
    """No warnings of NaN and overflow: rows may hold anything, and their products show it."""
    return np.errstate(over="ignore", invalid="ignore")


def _cores() -> int:
    return min(8, os.cpu_count() or 1)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_cores(), thread_name_prefix="gram")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold OpenBLAS to one thread within; other libraries and the setting afterwards are untouched.

    K x K problems gain nothing from threads, and OpenBLAS's spin for a while after each call: torch's then wait for the
    cores. On two cores a step of K = 100, D = 650,000 took 160 ms with both pools awake, 17 ms with one thread.
    """
    with _openblas().limit(limits=1):
        yield


@cache
def _openblas() -> ThreadpoolController:
    return ThreadpoolController().select(internal_api="openblas")
