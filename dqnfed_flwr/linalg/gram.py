"""Rows in one preallocated array, with their Gramian (see `products`) and their weighted sums.

Where the precision of float32 blocks is not enough, and only there, the work is done again in float64: `refine` for an
ill-conditioned Gramian, `combine` where the weighted rows cancel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg.products import (
    NARROW,
    SEGMENT,
    GroupProducts,
    columns,
    copy_and_measure,
    in_threads,
    squared_norm,
)
from dqnfed_flwr.types import Float64Array

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

    Raises
    ------
    ShapeError
        If capacity or dim is not positive or the dtype is another.
    """

    def __init__(self, capacity: int, dim: int, dtype: torch.dtype = torch.float32, *, references: int = 0) -> None:
        if capacity < 1 or dim < 1 or dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"a basis of {capacity} x {dim} {dtype}; need positive sizes, float32 or float64")
        self._rows = np.zeros((capacity, dim), np.float32 if dtype == torch.float32 else np.float64)
        self._norms: dict[int, float] = {}
        self._always_exact = dtype == torch.float64 or self._rows.size < SMALL
        self._products = GroupProducts(self._rows, references, exact=self._always_exact)

    @property
    def exact(self) -> bool:
        """Whether the Gramian has float64 precision already."""
        return self._products.exact

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
        return self._products.filled

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> None:
        """Copy `row` [D] into `slot`; products are computed by groups.

        A row with values that are not finite, or too long for the dtype, is taken in too: `squared_norm` tells.

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
        self._norms[slot] = copy_and_measure(values, self._rows[slot])
        self._products.arrived(slot)

    def clear(self) -> None:
        """Forget all rows; the array is kept for the next round, without values that would turn every sum into NaN."""
        for slot in self.filled:
            if not math.isfinite(self.squared_norm(slot)):
                self._rows[slot] = 0
        self._products.clear(exact=self._always_exact)
        self._norms.clear()

    def drop(self, slot: int) -> None:
        """Forget the row in `slot`."""
        self._norms.pop(slot, None)
        self._rows[slot] = 0
        self._products.drop(slot)

    def squared_norm(self, slot: int) -> float:
        """|row|^2 of the row in `slot`, without any other product; infinite or NaN where the row is not fit."""
        if slot not in self._norms:
            self._norms[slot] = squared_norm(self._rows[slot])
        return self._norms[slot]

    def scale(self, slot: int, factor: float) -> None:
        """Multiply the row in `slot` by `factor`, and its products with it."""
        self._rows[slot] *= self._rows.dtype.type(factor)
        self._products.scale(slot, factor)
        self._norms.pop(slot, None)

    def gram(self, slots: Iterable[int]) -> Float64Array:
        """Inner products of the rows in `slots`, float64; 0 where there is no row."""
        return self._products.among(slots)

    def row(self, slot: int) -> NDArray[np.floating]:
        """The row in `slot` [D], a view that lasts until another row is put there."""
        return np.asarray(self._rows[slot])

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, copied to float64 [len(slots), width]."""
        return np.asarray(self._rows[list(slots), part], dtype=np.float64)

    def column_blocks(self) -> list[slice]:
        """All columns, in blocks of which a float64 copy of every row is cheap."""
        return columns(self.dim, NARROW)

    def refine(self) -> None:
        """Have the Gramian computed anew with float64 products."""
        self._products.refine()

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
        (used,) = np.nonzero(weights)
        gram = self.gram(used)
        parts = float(weights[used] ** 2 @ np.diag(gram))
        whole = float(weights[used] @ gram @ weights[used])
        return parts > TRUSTED_CANCELLATION**2 * max(whole, 0.0)

    def _combine_wide(self, weights: Float64Array) -> Tensor:
        out = np.empty(self.dim, self._rows.dtype)

        def segment(part: slice) -> None:
            for narrow in columns(part.stop - part.start, NARROW):
                at = slice(part.start + narrow.start, part.start + narrow.stop)
                out[at] = weights @ self._rows[:, at].astype(np.float64)

        in_threads(segment, columns(self.dim, SEGMENT))
        return torch.from_numpy(out)
