"""Inner products of long rows, the same bits whatever else is computed at the same time.

Products of float32 rows are float32 inside blocks of `BLOCK` columns and float64 between them. Columns are worked off
in segments, by a few threads, and added in the order of the segments, whoever computed them. A product depends on its
two rows alone as long as the shapes are the same.

`GroupProducts` keeps the products of rows up to date while these arrive in any order. Slots lie in groups of `GROUP`.
When the last row of a group has arrived, its products with the groups that are complete are computed, a pair of groups
at a time: each is one product of two matrices of fixed shapes, so that they have the same bits in whatever order the
rows came, and every row is read once for `GROUP` others. Whatever is missing when they are asked for is computed then.

The caller waits for them. Computed in the background they would all be owed when the last of many replies that come at
once has been taken in, and it is the time from there to the step that counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations_with_replacement
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
GROUP = 16
"""Slots whose products are computed together."""


class GroupProducts:
    """The Gramian of an array's filled rows.

    Parameters
    ----------
    rows : NDArray
        [B, D], float32 or float64; the caller writes them.
    references : int
        How many of the last slots are filled after the others; they are in groups of their own.
    exact : bool
        Whether products are made in float64.
    """

    def __init__(self, rows: Rows, references: int, *, exact: bool) -> None:
        self.exact = exact
        """Whether products are made in float64."""
        self._rows = rows
        self._values = np.zeros((len(rows), len(rows)))
        self._filled = np.zeros(len(rows), dtype=bool)
        first = len(rows) - references
        self._groups = columns(first, GROUP)
        self._groups += [slice(first + group.start, first + group.stop) for group in columns(references, GROUP)]
        self._owed = np.zeros((len(self._groups),) * 2, dtype=bool)

    @property
    def filled(self) -> tuple[int, ...]:
        """Slots that hold a row, rising."""
        return tuple(int(slot) for slot in np.flatnonzero(self._filled))

    def arrived(self, slot: int) -> None:
        """The row in `slot` is there, or is another one."""
        self._filled[slot] = True
        group = self._group_of(slot)
        self._owe(group)
        if self._filled[self._groups[group]].all():
            self._pay([g for g, slots in enumerate(self._groups) if self._filled[slots].all()])

    def drop(self, slot: int) -> None:
        """The row in `slot`, which the caller has set to 0, is no more."""
        self._filled[slot] = False
        self._values[slot] = self._values[:, slot] = 0

    def scale(self, slot: int, factor: float) -> None:
        """The row in `slot` has been multiplied by `factor`."""
        self._values[slot] *= factor
        self._values[:, slot] *= factor

    def clear(self, *, exact: bool) -> None:
        """No row is there any more; later products are made in float64 or not."""
        self.exact = exact
        self._filled[:] = self._owed[:] = False
        self._values[:] = 0

    def refine(self) -> None:
        """Have every product made anew, in float64."""
        self.exact = True
        for group, slots in enumerate(self._groups):
            if self._filled[slots].any():
                self._owe(group)

    def among(self, slots: Iterable[int]) -> Float64Array:
        """Inner products of the rows in `slots`; 0 where there is no row."""
        index = np.fromiter(slots, dtype=np.intp)
        self._pay(sorted({self._group_of(slot) for slot in index}))
        return self._values[np.ix_(index, index)]

    def _group_of(self, slot: int) -> int:
        return next(g for g, slots in enumerate(self._groups) if slot < slots.stop)

    def _owe(self, group: int) -> None:
        """The products of a group are out of date."""
        self._owed[group] = self._owed[:, group] = True

    def _pay(self, groups: Iterable[int]) -> None:
        """Compute the products between these groups, rising, that are out of date."""
        for one, other in combinations_with_replacement(groups, 2):
            if self._owed[one, other]:
                self._multiply(self._groups[one], self._groups[other])
                self._owed[one, other] = self._owed[other, one] = False

    def _multiply(self, one: slice, other: slice) -> None:
        products = cross_products(self._rows[one], self._rows[other], wide=self.exact)
        if one == other:
            products = np.triu(products) + np.triu(products, 1).T
        there = np.outer(self._filled[one], self._filled[other])
        self._values[one, other] = np.where(there, products, 0.0)
        self._values[other, one] = self._values[one, other].T


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
