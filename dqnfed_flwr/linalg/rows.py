"""The rows of a round behind one door: put, weighed, measured, scaled, kept, and read as columns.

Where they lie, and what reads all of them at once, is a form of `row_store`: memory, a file or a device.

Inner products have the same bits in whatever order rows arrive. Those of float32 rows are made pair by pair
(`sweeps`), so that it does not matter which rows are multiplied together: as rows arrive, `WAITING` of them at a time,
which reads all others once for so many. When one row is missing, the products of all others are computed, so that the
last reply owes those of one row.

Those in float64, of small arrays, of float64 rows and after `refine`, are products of two matrices of fixed shapes, the
rows of two groups of `GROUP` slots; they are computed when a group is complete. Whatever is missing when products are
asked for is computed then. The caller waits for them: computed in the background they would all be owed when the last
of many replies that come at once has been taken in, and it is the time from there to the step that counts.

Where the precision of float32 blocks is not enough, and only there, the work is done again in float64: `refine` for an
ill-conditioned Gramian, `combine` where the weighted rows cancel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg import sweeps
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.types import Float64Array, FloatArray, on_host

GROUP = sweeps.TOGETHER
"""Slots whose float64 products are computed together."""
WAITING = sweeps.TOGETHER
"""Rows whose products are computed together as rows arrive."""
SMALL = 1 << 21
"""Arrays of fewer values than this are cheap enough to be treated in float64 throughout."""
TRUSTED_CONDITION = 1e3
"""Largest condition number of the unit-diagonal Gramian for which float32 blocks determine a solution to 1e-5."""
TRUSTED_CANCELLATION = 8.0
"""Largest sqrt(sum |w_k g_k|^2) / |sum w_k g_k| for which a float32 weighted sum is good to 1e-6."""
LONGEST_ROW = math.sqrt(torch.finfo(torch.float32).max)
"""Norm of a row, some 1.8e19, up to which sums of rows are finite in float32, and products of products in float64."""
IN_MEMORY = RowMemory()


class RowSet:
    """K client rows and a few reference rows [B, D], with their inner products.

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
    products : bool
        Whether products of different rows are read. Those of all but references are then computed as rows arrive; else
        nobody computes any but by `gram`.
    memory : RowMemory
        Where the rows lie. Products of rows in a file or on a device are computed when they are asked for, in one
        sweep.

    Attributes
    ----------
    capacity, dim, products
        As they were given.
    exact : bool
        Whether the Gramian has float64 precision already.

    Raises
    ------
    ShapeError
        If capacity or dim is not positive or the dtype is another.
    OSError
        If there is no room for a file of rows.
    """

    def __init__(
        self,
        capacity: int,
        dim: int,
        dtype: torch.dtype = torch.float32,
        *,
        references: int = 0,
        products: bool = True,
        memory: RowMemory = IN_MEMORY,
    ) -> None:
        if capacity < 1 or dim < 1 or dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"rows of {capacity} x {dim} {dtype}; need positive sizes, float32 or float64")
        self.capacity, self.dim, self.products = capacity, dim, products
        self._dtype, self._memory = dtype, memory
        self._rows = memory.rows(capacity, dim, np.dtype(np.float32 if dtype == torch.float32 else np.float64))
        self._norms: dict[int, float] = {}
        self._products = np.zeros((capacity, capacity))
        self._filled = np.zeros(capacity, dtype=bool)
        self._always_exact = dtype == torch.float64 or capacity * dim < SMALL
        self.exact = self._always_exact
        first = capacity - references
        self._groups = sweeps.slices(first, GROUP)
        self._groups += [slice(first + group.start, first + group.stop) for group in sweeps.slices(references, GROUP)]
        self._clients = slice(0, first)
        self._owed = np.zeros(capacity, dtype=bool)  # rows whose products are out of date

    def alike(self, capacity: int, references: int) -> RowSet:
        """Room for further rows of this size, which lie as these do; their products are computed by `gram` alone."""
        return RowSet(capacity, self.dim, self._dtype, references=references, products=False, memory=self._memory)

    @property
    def filled(self) -> tuple[int, ...]:
        """Slots that hold a row, rising."""
        return tuple(int(slot) for slot in np.flatnonzero(self._filled))

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> None:
        """Copy `row` [D] into `slot`; products are computed for several rows at once.

        A row with values that are not finite, or too long for the dtype, is taken in too: `squared_norm` shows it.

        Raises
        ------
        ShapeError
            If the row has not D values, or there is no such slot.
        """
        if tuple(row.shape) != (self.dim,):
            raise ShapeError(f"a row of shape {tuple(row.shape)}; these are rows of ({self.dim},)")
        if not 0 <= slot < self.capacity:
            raise ShapeError(f"slot {slot}; there are slots 0 to {self.capacity - 1}")
        self._norms[slot] = self._rows.put(slot, row)
        self._filled[slot] = self._owed[slot] = True
        if self.products and not self._rows.at_once and slot < self._clients.stop:
            self._pay(self._due())

    def admit(self, slot: int, row: NDArray[np.floating] | Tensor) -> bool:
        """`put` a row that comes from elsewhere; False, and nothing is kept, where it is not finite or too long."""
        self.put(slot, row)
        if fit := self.squared_norm(slot) <= LONGEST_ROW**2:
            return fit
        self.drop(slot)
        return False

    def clear(self) -> None:
        """Forget all rows; the array is kept for the next round, without values that would turn every sum into NaN."""
        for slot in self.filled:
            if not math.isfinite(self.squared_norm(slot)):
                self._rows.erase(slot)
        self.exact = self._always_exact
        self._filled[:] = self._owed[:] = False
        self._products[:] = 0
        self._norms.clear()

    def drop(self, slot: int) -> None:
        """Forget the row in `slot`."""
        self._norms.pop(slot, None)
        self._rows.erase(slot)
        self._filled[slot] = self._owed[slot] = False
        self._products[slot] = self._products[:, slot] = 0

    def squared_norm(self, slot: int) -> float:
        """|row|^2 of the row in `slot`, 0 where there is none; infinite or NaN where the row is not fit."""
        return self._norms.get(slot, 0.0)

    def scale(self, slot: int, factor: float) -> None:
        """Multiply the row in `slot` by `factor`, and its products with it.

        Those that are owed are computed before: what came first, and where rows lie, must not decide which are.
        """
        if self.products:
            self._pay(self._filled)
        self._norms[slot] = self._rows.scale(slot, factor)
        self._products[slot] *= factor
        self._products[:, slot] *= factor

    def cut_long(self, slots: Mapping[int, int], medians: float) -> dict[int, float]:
        """Scale rows longer than so many `medians` of all to that length; by what, for those that were.

        `slots` and the factors returned are by client. Rows of zeros do not count in the median.
        """
        norms = {client: math.sqrt(self.squared_norm(slot)) for client, slot in slots.items()}
        moving = [norm for norm in norms.values() if norm > 0]
        if not moving:
            return {}
        longest = medians * float(np.median(moving))
        cuts = {client: longest / norm for client, norm in norms.items() if norm > longest}
        for client, by in cuts.items():
            self.scale(slots[client], by)
        return cuts

    def gram(self, slots: Iterable[int]) -> Float64Array:
        """Inner products of the rows in `slots`, float64; 0 where there is no row."""
        index = np.fromiter(slots, dtype=np.intp)
        asked = np.zeros(self.capacity, dtype=bool)
        asked[index] = True
        self._pay(asked)
        return self._products[np.ix_(index, index)]

    def read_products(self, slots: Collection[int]) -> Float64Array:
        """`gram` where `products` are read, else no more than its diagonal."""
        return self.gram(slots) if self.products else self.diagonal(slots)

    def diagonal(self, slots: Iterable[int]) -> Float64Array:
        """Squared norms of the rows in `slots`, as a matrix without any other product."""
        return np.diag([self.squared_norm(slot) for slot in slots])

    def refine(self) -> bool:
        """Have the Gramian computed anew with float64 products; False where it has them, or nobody reads any."""
        if self.exact or not self.products:
            return False
        self.exact = True
        self._owed[:] = self._filled
        return True

    def along(self, weights: Float64Array, total: Tensor, slots: Sequence[int]) -> tuple[float, Float64Array]:
        """|total|^2 of the sum by B `weights`, and its products with the rows in `slots`, 0 without `products`."""
        if not self.products:
            return self._rows.square(total), np.zeros(len(slots))
        filled = self.filled
        used = weights[list(filled)]
        with np.errstate(over="ignore", invalid="ignore"):  # who asks looks at them
            found = self.gram(filled) @ used
            square = float(used @ found)
        return square, found[[filled.index(slot) for slot in slots]]

    def against(self, vector: Tensor, slots: Sequence[int]) -> tuple[float, Float64Array]:
        """As `along`, of a vector [D] that is no sum of the rows."""
        slopes = self._rows.against(vector)[list(slots)] if self.products else np.zeros(len(slots))
        return self._rows.square(vector), slopes

    def copies(self, slots: Iterable[int]) -> list[FloatArray]:
        """The rows in `slots`, each [D], to be kept."""
        return [on_host(self._rows.vector(slot)) for slot in slots]

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, copied to float64 [len(slots), width]."""
        return self._rows.columns(slots, part)

    def assemble(self, parts: Iterable[tuple[slice, Float64Array]]) -> Tensor:
        """A vector [D] like a row, of some columns and their values; 0 elsewhere."""
        return self._rows.assemble(parts)

    def column_blocks(self) -> list[slice]:
        """All columns, in blocks of which a float64 copy of every row is cheap."""
        return sweeps.slices(self.dim, sweeps.NARROW)

    def combine(self, weights: Float64Array) -> Tensor:
        """weights @ rows, [D] in the dtype of the rows; `weights` [B] are 0 for empty slots."""
        (used,) = np.nonzero(weights)
        if used.size == 1 and weights[used[0]] == 1:
            return self._rows.vector(int(used[0]))
        if self._always_exact or (self.products and self._cancels(weights)):
            return self._rows.wide_sum(weights)
        total = self._rows.sum(weights)
        return self._rows.wide_sum(weights) if not self.products and self._cancelled(weights, total) else total

    def _due(self) -> NDArray[np.bool_]:
        """Slots whose products are to be computed now that one more is filled, if they are owed [B]."""
        due = np.zeros(self.capacity, dtype=bool)
        if self.exact:
            for group in self._groups:
                due[group] = group.stop <= self._clients.stop and self._filled[group].all()
            return due
        missing = np.count_nonzero(~self._filled[self._clients])
        due[self._clients] = missing <= 1 or np.count_nonzero(self._owed[self._clients]) >= WAITING
        return due

    def _pay(self, slots: NDArray[np.bool_]) -> None:
        """Compute the products of rows in `slots` [B] that are owed, with one another and with all that owe none."""
        due = self._owed & self._filled & slots
        if not due.any():
            return
        if self.exact:
            due = self._multiply_groups(due)
        else:
            self._multiply(np.flatnonzero(due), np.flatnonzero(self._filled & ~self._owed))
        self._owed &= ~due

    def _multiply(self, due: NDArray[np.intp], known: NDArray[np.intp]) -> None:
        found = self._rows.products(due.tolist(), known.tolist())
        self._products[due] = found
        self._products[:, due] = found.T

    def _multiply_groups(self, due: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Multiply the groups in which rows are `due` [B] with all that owe nothing then; all rows in them [B]."""
        mine = [slots for slots in self._groups if due[slots].any()]
        for slots in mine:
            due[slots] = self._filled[slots]
        known = self._filled & (due | ~self._owed)
        others = [slots for slots in self._groups if known[slots].any()]
        pairs = [pair for pair in combinations_with_replacement(others, 2) if pair[0] in mine or pair[1] in mine]
        found = self._rows.wide_products(pairs)
        for one, other in pairs:
            products = found[one, other]
            if one == other:
                products = np.triu(products) + np.triu(products, 1).T
            there = np.outer(self._filled[one], self._filled[other])
            self._products[one, other] = np.where(there, products, 0.0)
            self._products[other, one] = self._products[one, other].T
        return due

    def _cancels(self, weights: Float64Array) -> bool:
        (used,) = np.nonzero(weights)
        gram = self.gram(used)
        parts = float(weights[used] ** 2 @ np.diag(gram))
        whole = float(weights[used] @ gram @ weights[used])
        return parts > TRUSTED_CANCELLATION**2 * max(whole, 0.0)

    def _cancelled(self, weights: Float64Array, total: Tensor) -> bool:
        """As `_cancels`, seen on the sum, where the products are not at hand."""
        (used,) = np.nonzero(weights)
        parts = sum(float(weights[slot]) ** 2 * self.squared_norm(slot) for slot in used.tolist())
        return parts > TRUSTED_CANCELLATION**2 * self._rows.square(total)
