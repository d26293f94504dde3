"""Rows in one preallocated array, and their Gramian, kept up to date while rows arrive in any order.

A row's products with those already there are computed when it arrives, so after the last arrival the server owes one
pass over the rows for its products and one for the weighted sum. Products of float32 rows are float32 inside blocks
of `BLOCK` columns and float64 between them. Every product is one pairwise dot over the same blocks, which is
symmetric in its two rows: the Gramian has the same bits in whatever order the rows came.

Where that precision is not enough, and only there, the work is done again in float64: `refine` for an
ill-conditioned Gramian, `combine` where the weighted rows cancel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import Float64Array

_T = TypeVar("_T")

BLOCK = 1024
"""Columns summed in the dtype of the rows before the sum is carried in float64."""
SEGMENT = 128 * BLOCK
"""Columns handed to a thread at once; partial sums are added in the order of segments, whoever computed them."""
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

    Raises
    ------
    ShapeError
        If capacity or dim is not positive or the dtype is another.
    """

    def __init__(self, capacity: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        if capacity < 1 or dim < 1 or dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"a basis of {capacity} x {dim} {dtype}; need positive sizes, float32 or float64")
        self._rows = np.zeros((capacity, dim), np.float32 if dtype == torch.float32 else np.float64)
        self._gram = np.zeros((capacity, capacity))
        self._filled = np.zeros(capacity, dtype=bool)
        self._always_exact = dtype == torch.float64 or self._rows.size < SMALL
        self.exact = self._always_exact
        """Whether the Gramian has float64 precision already."""

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
        """Copy `row` [D] into `slot` and compute its products with the rows present.

        A row with values that are not finite, or too long for the dtype, is taken in too: its own product tells.

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
        product = self._wide_products if self.exact else self._block_products
        with _quiet():
            self._rows[slot] = values
        self._filled[slot] = True
        for run in _runs(np.flatnonzero(self._filled)):
            self._gram[slot, run] = self._gram[run, slot] = product(self._rows[run], self._rows[slot])

    def clear(self) -> None:
        """Forget all rows; the array is kept for the next round."""
        self._filled[:] = False
        self._gram[:] = 0
        self.exact = self._always_exact

    def drop(self, slot: int) -> None:
        """Forget the row in `slot`."""
        self._filled[slot] = False
        self._rows[slot] = 0
        self._gram[slot] = self._gram[:, slot] = 0

    def gram(self, slots: Iterable[int]) -> Float64Array:
        """Inner products of the rows in `slots`, float64."""
        index = np.fromiter(slots, dtype=np.intp)
        return self._gram[np.ix_(index, index)]

    def row(self, slot: int) -> NDArray[np.floating]:
        """The row in `slot` [D], a view that lasts until another row is put there."""
        return np.asarray(self._rows[slot])

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, copied to float64 [len(slots), width]."""
        return np.asarray(self._rows[list(slots), part], dtype=np.float64)

    def column_blocks(self) -> list[slice]:
        """All columns, in blocks of which a float64 copy of every row is cheap."""
        return _columns(self.dim, SEGMENT // 16)

    def refine(self) -> None:
        """Compute the Gramian anew with float64 products; one pass over the rows."""
        slots = np.flatnonzero(self._filled)
        gram = np.zeros((slots.size, slots.size))
        for part in _columns(self.dim, SEGMENT // 16):
            wide = self._rows[slots, part].astype(np.float64)
            gram += wide @ wide.T
        self._gram[np.ix_(slots, slots)] = (gram + gram.T) / 2
        self.exact = True

    def combine(self, weights: Float64Array) -> Tensor:
        """weights @ rows.

        Parameters
        ----------
        weights : Float64Array
            [B], 0 for empty slots.

        Returns
        -------
        Tensor
            [D] in the dtype of the rows, on the host.
        """
        (used,) = np.nonzero(weights)
        if used.size == 1 and weights[used[0]] == 1:
            return torch.from_numpy(self._rows[used[0]].copy())
        if self._rows.dtype == np.float64 or self._rows.size < SMALL or self._cancels(weights):
            return self._combine_wide(weights)
        rows = torch.from_numpy(self._rows)
        return torch.mv(rows.t(), torch.from_numpy(weights).to(rows.dtype))

    def _cancels(self, weights: Float64Array) -> bool:
        parts = float(weights**2 @ np.diag(self._gram))
        whole = float(weights @ self._gram @ weights)
        return parts > TRUSTED_CANCELLATION**2 * max(whole, 0.0)

    def _combine_wide(self, weights: Float64Array) -> Tensor:
        out = np.empty(self.dim, self._rows.dtype)

        def segment(part: slice) -> None:
            for narrow in _columns(part.stop - part.start, SEGMENT // 16):
                at = slice(part.start + narrow.start, part.start + narrow.stop)
                out[at] = weights @ self._rows[:, at].astype(np.float64)

        _in_threads(segment, _columns(self.dim, SEGMENT))
        return torch.from_numpy(out)

    def _block_products(self, rows: NDArray[np.floating], row: NDArray[np.floating]) -> Float64Array:
        def segment(part: slice) -> Float64Array:
            whole = (part.stop - part.start) // BLOCK * BLOCK
            head = slice(part.start, part.start + whole)
            tail = slice(head.stop, part.stop)
            with _quiet():
                blocks = np.vecdot(rows[:, head].reshape(len(rows), -1, BLOCK), row[head].reshape(-1, BLOCK))
                return np.asarray(blocks.sum(axis=1, dtype=np.float64) + np.vecdot(rows[:, tail], row[tail]))

        return np.asarray(sum(_in_threads(segment, _columns(self.dim, SEGMENT))))

    def _wide_products(self, rows: NDArray[np.floating], row: NDArray[np.floating]) -> Float64Array:
        total = np.zeros(len(rows))
        with _quiet():
            for part in _columns(self.dim, SEGMENT // 16):
                total += np.vecdot(rows[:, part].astype(np.float64), row[part].astype(np.float64))
        return total


def _quiet() -> np.errstate:
    """No warnings of NaN and overflow: rows may hold anything, and their products tell."""
    return np.errstate(over="ignore", invalid="ignore")


def _columns(dim: int, width: int) -> list[slice]:
    return [slice(start, min(start + width, dim)) for start in range(0, dim, width)]


def _runs(slots: NDArray[np.intp]) -> Iterator[slice]:
    """Consecutive slots as slices, so that rows are read as views."""
    breaks = np.flatnonzero(np.diff(slots) > 1) + 1
    for run in np.split(slots, breaks):
        if run.size:
            yield slice(int(run[0]), int(run[-1]) + 1)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="gram")


def _in_threads(work: Callable[[slice], _T], parts: list[slice]) -> list[_T]:
    return [work(part) for part in parts] if len(parts) == 1 else list(_pool().map(work, parts))
