"""Rows in one preallocated array, with their Gramian and their weighted sums.

Inner products have the same bits whatever else is computed at the same time. Those of float32 rows are float32 inside
blocks of `BLOCK` columns and float64 between them. Columns are worked off in segments, by a few threads, and added in
the order of the segments. A product depends on its two rows alone as long as the shapes are the same.

The Gramian is kept up to date while rows arrive in any order. Slots lie in groups of `GROUP`. When the last row of a
group has arrived, its products with the groups that are complete are computed, a pair of groups at a time: each is one
product of two matrices of fixed shapes, so that bits do not depend on the order of arrival, and every row is read once
for `GROUP` others. Whatever is missing when products are asked for is computed then. The caller waits for them:
computed in the background they would all be owed when the last of many replies that come at once has been taken in,
and it is the time from there to the step that counts.

Where the precision of float32 blocks is not enough, and only there, the work is done again in float64: `refine` for an
ill-conditioned Gramian, `combine` where the weighted rows cancel.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations_with_replacement
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import Float64Array, FloatArray

_T = TypeVar("_T")

BLOCK = 512
"""Columns summed in the dtype of the rows before the sum is carried in float64."""
SEGMENT = 256 * BLOCK
"""Columns handed to a thread at once."""
NARROW = SEGMENT // 16
"""Columns of which a float64 copy of every row is cheap."""
GROUP = 16
"""Slots whose products are computed together."""
SMALL = 1 << 21
"""Arrays of fewer values than this are cheap enough to be treated in float64 throughout."""
TRUSTED_CONDITION = 1e3
"""Largest condition number of the unit-diagonal Gramian for which float32 blocks determine a solution to 1e-5."""
TRUSTED_CANCELLATION = 8.0
"""Largest sqrt(sum |w_k g_k|^2) / |sum w_k g_k| for which a float32 weighted sum is good to 1e-6."""


class Basis:
    """K client rows and a few reference rows [B, D] on the host, with their inner products.

    Parameters
    ----------
    capacity : int
        B, slots for rows. The array is allocated once, B * D values.
    dim : int
        D.
    dtype : torch.dtype
        float32 or float64.
    references : int
        How many of the last slots are filled after the others; they are in groups of their own.
    eager : bool
        Whether products are computed when the rows of a group are complete, or not before they are asked for.

    Attributes
    ----------
    dtype : torch.dtype
        Of the rows.
    exact : bool
        Whether the Gramian has float64 precision already.
    eager : bool
        As it was given.

    Raises
    ------
    ShapeError
        If capacity or dim is not positive or the dtype is another.
    """

    def __init__(
        self,
        capacity: int,
        dim: int,
        dtype: torch.dtype = torch.float32,
        *,
        references: int = 0,
        eager: bool = True,
    ) -> None:
        if capacity < 1 or dim < 1 or dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"a basis of {capacity} x {dim} {dtype}; need positive sizes, float32 or float64")
        self.dtype, self.eager = dtype, eager
        self._rows = np.zeros((capacity, dim), np.float32 if dtype == torch.float32 else np.float64)
        self._norms: dict[int, float] = {}
        self._products = np.zeros((capacity, capacity))
        self._filled = np.zeros(capacity, dtype=bool)
        self._always_exact = dtype == torch.float64 or self._rows.size < SMALL
        self.exact = self._always_exact
        first = capacity - references
        self._groups = _slices(first, GROUP)
        self._groups += [slice(first + group.start, first + group.stop) for group in _slices(references, GROUP)]
        self._owed = np.zeros((len(self._groups),) * 2, dtype=bool)

    @property
    def capacity(self) -> int:
        """B, slots for rows."""
        return int(self._rows.shape[0])

    @property
    def dim(self) -> int:
        """D."""
        return int(self._rows.shape[1])

    @property
    def filled(self) -> tuple[int, ...]:
        """Slots that hold a row, rising."""
        return tuple(int(slot) for slot in np.flatnonzero(self._filled))

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> None:
        """Copy `row` [D] into `slot`; products are computed by groups.

        A row with values that are not finite, or too long for the dtype, is taken in too: `squared_norm` shows it.

        Raises
        ------
        ShapeError
            If the row has not D values, or there is no such slot.
        """
        values = row.detach().cpu().numpy() if isinstance(row, Tensor) else row
        if values.shape != (self.dim,):
            raise ShapeError(f"a row of shape {values.shape}; this basis holds rows of ({self.dim},)")
        if not 0 <= slot < self.capacity:
            raise ShapeError(f"slot {slot}; this basis has slots 0 to {self.capacity - 1}")
        self._norms[slot] = _copy_and_measure(values, self._rows[slot])
        self._filled[slot] = True
        group = self._group_of(slot)
        self._owe(group)
        if self.eager and self._filled[self._groups[group]].all():
            self._pay([g for g, slots in enumerate(self._groups) if self._filled[slots].all()])

    def clear(self) -> None:
        """Forget all rows; the array is kept for the next round, without values that would turn every sum into NaN."""
        for slot in self.filled:
            if not math.isfinite(self.squared_norm(slot)):
                self._rows[slot] = 0
        self.exact = self._always_exact
        self._filled[:] = self._owed[:] = False
        self._products[:] = 0
        self._norms.clear()

    def drop(self, slot: int) -> None:
        """Forget the row in `slot`."""
        self._norms.pop(slot, None)
        self._rows[slot] = 0
        self._filled[slot] = False
        self._products[slot] = self._products[:, slot] = 0

    def squared_norm(self, slot: int) -> float:
        """|row|^2 of the row in `slot`, without any other product; infinite or NaN where the row is not fit."""
        if slot not in self._norms:
            self._norms[slot] = squared_norm(self._rows[slot])
        return self._norms[slot]

    def scale(self, slot: int, factor: float) -> None:
        """Multiply the row in `slot` by `factor`, and its products with it."""
        self._rows[slot] *= self._rows.dtype.type(factor)
        self._products[slot] *= factor
        self._products[:, slot] *= factor
        self._norms.pop(slot, None)

    def gram(self, slots: Iterable[int]) -> Float64Array:
        """Inner products of the rows in `slots`, float64; 0 where there is no row."""
        index = np.fromiter(slots, dtype=np.intp)
        self._pay(sorted({self._group_of(slot) for slot in index}))
        return self._products[np.ix_(index, index)]

    def refine(self) -> None:
        """Have the Gramian computed anew with float64 products."""
        self.exact = True
        for group, slots in enumerate(self._groups):
            if self._filled[slots].any():
                self._owe(group)

    def row(self, slot: int) -> FloatArray:
        """The row in `slot` [D], a view that lasts until another row is put there."""
        return np.asarray(self._rows[slot])

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, copied to float64 [len(slots), width]."""
        return np.asarray(self._rows[list(slots), part], dtype=np.float64)

    def column_blocks(self) -> list[slice]:
        """All columns, in blocks of which a float64 copy of every row is cheap."""
        return _slices(self.dim, NARROW)

    def combine(self, weights: Float64Array) -> Tensor:
        """weights @ rows, [D] in the dtype of the rows; `weights` [B] are 0 for empty slots."""
        (used,) = np.nonzero(weights)
        if used.size == 1 and weights[used[0]] == 1:
            return torch.from_numpy(self._rows[used[0]].copy())
        if self._always_exact or (self.eager and self._cancels(weights)):
            return self._combine_wide(weights)
        rows = torch.from_numpy(self._rows)
        total = torch.mv(rows.t(), torch.from_numpy(weights).to(rows.dtype))
        if not self.eager and self._cancelled(weights, total.numpy()):
            return self._combine_wide(weights)
        return total

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
        products = _cross_products(self._rows[one], self._rows[other], wide=self.exact)
        if one == other:
            products = np.triu(products) + np.triu(products, 1).T
        there = np.outer(self._filled[one], self._filled[other])
        self._products[one, other] = np.where(there, products, 0.0)
        self._products[other, one] = self._products[one, other].T

    def _cancels(self, weights: Float64Array) -> bool:
        (used,) = np.nonzero(weights)
        gram = self.gram(used)
        parts = float(weights[used] ** 2 @ np.diag(gram))
        whole = float(weights[used] @ gram @ weights[used])
        return parts > TRUSTED_CANCELLATION**2 * max(whole, 0.0)

    def _cancelled(self, weights: Float64Array, total: FloatArray) -> bool:
        """As `_cancels`, seen on the sum, where the products are not at hand."""
        (used,) = np.nonzero(weights)
        parts = sum(float(weights[slot]) ** 2 * self.squared_norm(slot) for slot in used.tolist())
        return parts > TRUSTED_CANCELLATION**2 * squared_norm(total)

    def _combine_wide(self, weights: Float64Array) -> Tensor:
        out = np.empty(self.dim, self._rows.dtype)

        def segment(part: slice) -> None:
            for narrow in _slices(part.stop - part.start, NARROW):
                at = slice(part.start + narrow.start, part.start + narrow.stop)
                out[at] = weights @ self._rows[:, at].astype(np.float64)

        _in_threads(segment, _slices(self.dim, SEGMENT))
        return torch.from_numpy(out)


def cut_long_rows(basis: Basis, slots: Mapping[int, int], medians: float) -> dict[int, float]:
    """Scale rows longer than so many `medians` of all to that length; by what, for those that were.

    `slots` and the factors returned are by client. Rows of zeros do not count in the median.
    """
    norms = {client: math.sqrt(basis.squared_norm(slot)) for client, slot in slots.items()}
    moving = [norm for norm in norms.values() if norm > 0]
    if not moving:
        return {}
    longest = medians * float(np.median(moving))
    cuts = {client: longest / norm for client, norm in norms.items() if norm > longest}
    for client, by in cuts.items():
        basis.scale(slots[client], by)
    return cuts


def _cross_products(left: FloatArray, right: FloatArray, *, wide: bool) -> Float64Array:
    """left [m, D] @ right.T [D, n] in float64; `wide` has every product made in float64.

    Values that are not finite raise no warning; their products show it.
    """
    segment = _wide if wide else _blocked
    parts = _slices(left.shape[1], SEGMENT)
    return np.asarray(sum(_in_threads(lambda part: segment(left[:, part], right[:, part]), parts)))


def squared_norm(row: FloatArray) -> float:
    """|row|^2 of one row [D], to the precision of its blocks; infinite or NaN where the row is not fit."""
    parts = _slices(len(row), SEGMENT)
    return float(sum(_blocked(row[None, part], row[None, part])[0, 0] for part in parts))


def _copy_and_measure(row: FloatArray, into: FloatArray) -> float:
    """Copy `row` [D] to `into` [D], cast to its dtype; `squared_norm` of the copy, taken while it is in the cache."""
    total = 0.0
    for part in _slices(len(into), SEGMENT):
        with _quiet():
            into[part] = row[part]
        total += squared_norm(into[part])
    return total


def _slices(dim: int, width: int) -> list[slice]:
    """All of `dim` columns in slices of `width`."""
    return [slice(start, min(start + width, dim)) for start in range(0, dim, width)]


def _in_threads(work: Callable[[slice], _T], parts: Sequence[slice]) -> list[_T]:
    """`work` of every part, in their order."""
    return [work(part) for part in parts] if len(parts) == 1 else list(_pool().map(work, parts))


def _quiet() -> np.errstate:
    """No warnings of NaN and overflow: rows may hold anything, and their products show it."""
    return np.errstate(over="ignore", invalid="ignore")


def _blocked(left: FloatArray, right: FloatArray) -> Float64Array:
    whole = left.shape[1] // BLOCK * BLOCK
    with _quiet():
        tail = left[:, whole:].astype(np.float64) @ right[:, whole:].astype(np.float64).T
        return np.asarray(
            (_blocks(left[:, :whole]) @ _blocks(right[:, :whole]).mT).sum(axis=0, dtype=np.float64) + tail
        )


def _blocks(rows: FloatArray) -> FloatArray:
    """Rows [m, n * BLOCK] as a view [n, m, BLOCK]."""
    return rows.reshape(len(rows), -1, BLOCK).swapaxes(0, 1)


def _wide(left: FloatArray, right: FloatArray) -> Float64Array:
    total = np.zeros((len(left), len(right)))
    with _quiet():
        for part in _slices(left.shape[1], NARROW):
            total += left[:, part].astype(np.float64) @ right[:, part].astype(np.float64).T
    return total


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="gram")
