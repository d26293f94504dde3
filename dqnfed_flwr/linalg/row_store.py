"""Forms of rows [B, D]: where they lie, in memory, above a bound in a file, or on a device, and what reads all of them.

The file has no name: it is gone with the process, however that ends. Its room is taken before the first row comes, so
that a full disk shows at once. It is read and written by calls, not mapped: a row that replaces one of the round before
would first be read, page by page. Writing to the disk begins with each row; what the kernel keeps of the file in its
cache it gives back where memory is needed. Linux only.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.linalg import sweeps
from dqnfed_flwr.types import Float64Array, FloatArray, on_host

DType = np.dtype[np.floating]
Write = Callable[[Path, Callable[[], None]], None]
AHEAD = 2
"""Strips that are read ahead of one that is asked for."""
COLUMNS = 1 << 13
"""Columns of which a device sums a product in the dtype of the rows, before the sum is carried in float64."""
TILE = 32
"""Slots of a device that are multiplied with all others as one matrix."""


class HostRows:
    """Rows in memory, zeros at first, and what `RowSet` asks of any form of them.

    Attributes
    ----------
    shape : tuple[int, int]
        B, D.
    dtype : np.dtype
        float32 or float64.
    at_once : bool
        Whether products are best made of all rows in one sweep, when they are asked for, and not as rows arrive.
    """

    at_once = False

    def __init__(self, capacity: int, dim: int, dtype: DType) -> None:
        self.shape, self.dtype = (capacity, dim), dtype
        self._array = np.zeros(self.shape, dtype)

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> float:
        """Copy `row` [D], cast to the dtype, into `slot`; its squared norm."""
        return sweeps.copy_and_measure(on_host(row), self._array[slot])

    def erase(self, slot: int) -> None:
        """Zeros into `slot`."""
        self.put(slot, np.zeros(self.shape[1], self.dtype))

    def scale(self, slot: int, factor: float) -> float:
        """Multiply the row in `slot`; its squared norm then."""
        return self.put(slot, self._row(slot) * self.dtype.type(factor))

    def square(self, vector: Tensor) -> float:
        """Squared norm of a vector [D] like a row."""
        return sweeps.squared_norm(vector.numpy())

    def against(self, vector: Tensor) -> Float64Array:
        """Inner products of all rows with a vector [D], made in float64 [B]."""
        values, parts = vector.numpy(), sweeps.slices(self.shape[1], sweeps.SEGMENT)
        found = sweeps.in_threads(lambda part: sweeps.wide_against(self.strip(part), values[part]), parts)
        return np.asarray(sum(found))

    def vector(self, slot: int) -> Tensor:
        """A copy of the row in `slot` [D]."""
        return torch.from_numpy(self._row(slot).copy())

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, in float64 [len(slots), width]."""
        return np.asarray(self.strip(part)[list(slots)], dtype=np.float64)

    def assemble(self, parts: Iterable[tuple[slice, Float64Array]]) -> Tensor:
        """A vector [D] like a row, of some columns and their values; 0 elsewhere."""
        out = np.zeros(self.shape[1], self.dtype)
        for part, values in parts:
            out[part] = values
        return torch.from_numpy(out)

    def strip(self, part: slice) -> FloatArray:
        """Columns of all rows, to be read only [B, width]."""
        return self._array[:, part]

    def products(self, due: Sequence[int], known: Sequence[int]) -> Float64Array:
        """Inner products of the float32 rows in slots `due` [m] with one another and with those `known`, [m, B]."""
        parts = sweeps.slices(self.shape[1], sweeps.strip_width(self.shape[0]))
        found = np.asarray(sum(sweeps.in_threads(lambda part: sweeps.products(self.strip(part), due, known), parts)))
        among = np.tril(found[:, due])
        found[:, due] = among + np.tril(among, -1).T
        return found

    def wide_products(self, pairs: Sequence[tuple[slice, slice]]) -> Float64Array:
        """Inner products made in float64, [B, B], of the rows in the slots of each pair."""
        parts = sweeps.slices(self.shape[1], sweeps.SEGMENT)
        return np.asarray(sum(sweeps.in_threads(lambda part: sweeps.wide_products(self.strip(part), pairs), parts)))

    def sum(self, weights: Float64Array) -> Tensor:
        """weights [B] @ rows, [D], in the dtype of the rows."""
        factors = weights.astype(self.dtype)
        return self._summed(partial(sweeps.weighted_sum, factors), sweeps.strip_width(self.shape[0]))

    def wide_sum(self, weights: Float64Array) -> Tensor:
        """The same, made in float64 and rounded to the dtype of the rows."""
        return self._summed(partial(sweeps.wide_weighted_sum, weights), sweeps.SEGMENT)

    def _summed(self, put: Callable[[FloatArray, FloatArray], None], width: int) -> Tensor:
        out = np.empty(self.shape[1], self.dtype)
        sweeps.in_threads(lambda part: put(self.strip(part), out[part]), sweeps.slices(len(out), width))
        return torch.from_numpy(out)

    def _row(self, slot: int) -> FloatArray:
        """The row in `slot` [D], to be read until another is put there."""
        return np.asarray(self._array[slot])


class SpilledRows(HostRows):
    """Rows in a file without a name in `folder`; OSError where the disk has no room for it."""

    at_once = True

    def __init__(self, capacity: int, dim: int, dtype: DType, folder: Path) -> None:
        self._stride = -(-dim * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE  # a row begins with a page
        self._file = tempfile.TemporaryFile(dir=folder, prefix="rows-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        os.posix_fallocate(self._file.fileno(), 0, capacity * self._stride)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # `strip` knows better what comes next
        self.shape, self.dtype = (capacity, dim), dtype

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> float:
        """Write `row` [D], cast to the dtype, into `slot`; its squared norm."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.ascontiguousarray(on_host(row), self.dtype)
        start, left = slot * self._stride, values.view(np.uint8).data
        while left:
            left = left[os.pwrite(self._file.fileno(), left, start + values.nbytes - len(left)) :]
        os.posix_fadvise(self._file.fileno(), start, self._stride, os.POSIX_FADV_DONTNEED)  # begins to write to disk
        return sweeps.squared_norm(values)

    def strip(self, part: slice) -> FloatArray:
        """A copy of columns of all rows [B, width]; those that come next are read in the background."""
        found = np.empty((self.shape[0], part.stop - part.start), self.dtype)
        offset, length = part.start * found.itemsize, found[0].nbytes
        ahead = offset + AHEAD * length
        for slot, row in enumerate(found):
            if ahead < self._stride:
                start = slot * self._stride + ahead
                os.posix_fadvise(self._file.fileno(), start, length, os.POSIX_FADV_WILLNEED)
            self._read(slot, offset, row)
        return found

    def _row(self, slot: int) -> FloatArray:
        """A copy of the row in `slot` [D]."""
        found = np.empty(self.shape[1], self.dtype)
        self._read(slot, 0, found)
        return found

    def _read(self, slot: int, offset: int, into: FloatArray) -> None:
        start, left = slot * self._stride + offset, into.view(np.uint8).data
        while left:
            count = os.preadv(self._file.fileno(), [left], start + into.nbytes - len(left))
            if not count:
                raise OSError("the file of rows is shorter than it was made")
            left = left[count:]


class DeviceRows(HostRows):
    """Rows on torch's `device`, where they are made: no row goes through the host's memory, K-sized figures do.

    A product of two rows is summed in blocks of `COLUMNS`, in the dtype of the rows inside them and in float64 between.
    The blocks of a tile of slots are multiplied with those of all slots, filled or not, as a batch of matrices of one
    shape, and the product of two slots is read from the tile of the later one. So its bits depend on the two rows and
    their slots: not on the order in which rows come, nor on what else is asked for. Columns are padded with zeros to
    whole blocks.
    """

    at_once = True

    def __init__(self, capacity: int, dim: int, dtype: DType, device: torch.device) -> None:
        self.shape, self.dtype = (capacity, dim), dtype
        of_torch = torch.float32 if dtype == np.float32 else torch.float64
        self._padded = torch.zeros(capacity, -(-dim // COLUMNS), COLUMNS, dtype=of_torch, device=device)
        self._rows = self._padded.view(capacity, -1)[:, :dim]

    def put(self, slot: int, row: NDArray[np.floating] | Tensor) -> float:
        """Copy `row` [D], cast to the dtype, into `slot`; its squared norm."""
        values = row.detach() if isinstance(row, Tensor) else torch.tensor(row)
        return self.square(self._rows[slot].copy_(values))

    def erase(self, slot: int) -> None:
        """Zeros into `slot`."""
        self._rows[slot].zero_()

    def scale(self, slot: int, factor: float) -> float:
        """Multiply the row in `slot`; its squared norm then."""
        return self.square(self._rows[slot].mul_(factor))

    def square(self, vector: Tensor) -> float:
        """Squared norm of a vector [D] like a row."""
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64).square())

    def vector(self, slot: int) -> Tensor:
        """A copy of the row in `slot` [D]."""
        return self._rows[slot].clone()

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Some columns of the rows in `slots`, in float64 [len(slots), width]."""
        return np.asarray(self._rows[list(slots), part].cpu().numpy(), dtype=np.float64)

    def assemble(self, parts: Iterable[tuple[slice, Float64Array]]) -> Tensor:
        """A vector [D] like a row, of some columns and their values; 0 elsewhere."""
        out = torch.zeros_like(self._rows[0])
        for part, values in parts:
            out[part].copy_(torch.tensor(values))
        return out

    def products(self, due: Sequence[int], known: Sequence[int]) -> Float64Array:
        """Inner products of the float32 rows in slots `due` [m] with one another and with those `known`, [m, B]."""
        blocks, found = self._padded.transpose(0, 1), np.zeros((self.shape[0], self.shape[0]))
        wanted = [*due, *known]
        for tile in sweeps.slices(self.shape[0], TILE):
            if max(wanted) < tile.start or tile.stop <= min(due):
                continue
            sums = blocks[:, tile] @ blocks.mT
            found[tile] = sums.sum(dim=0, dtype=torch.float64).cpu().numpy()
        found = np.tril(found) + np.tril(found, -1).T
        others = np.setdiff1d(np.arange(self.shape[0]), wanted)
        found[:, others] = 0
        return found[list(due)]

    def wide_products(self, pairs: Sequence[tuple[slice, slice]]) -> Float64Array:
        """Inner products made in float64, [B, B], of the rows in the slots of each pair."""
        total = self._rows.new_zeros((self.shape[0], self.shape[0]), dtype=torch.float64)
        for part in sweeps.slices(self._padded.shape[1], sweeps.SEGMENT // COLUMNS):
            wide = self._padded[:, part].transpose(0, 1).double()
            for one, other in pairs:
                total[one, other] += (wide[:, one] @ wide[:, other].mT).sum(dim=0)
        return np.asarray(total.cpu().numpy())

    def sum(self, weights: Float64Array) -> Tensor:
        """weights [B] @ rows, [D], in the dtype of the rows."""
        return self._rows.new_tensor(weights) @ self._rows

    def wide_sum(self, weights: Float64Array) -> Tensor:
        """The same, made in float64 and rounded to the dtype of the rows."""
        wide, out = self._rows.new_tensor(weights, dtype=torch.float64), torch.empty_like(self._rows[0])
        for part in sweeps.slices(self.shape[1], sweeps.SEGMENT):
            out[part].copy_(wide @ self._rows[:, part].double())
        return out


@dataclass(frozen=True, slots=True)
class RowMemory:
    """How much memory an array of rows may take, and where a larger one lies.

    Parameters
    ----------
    bound : int | None
        Bytes above which rows lie in a file; None keeps all in memory.
    folder : str
        Of the file; empty for the folder of temporary files.
    write : Callable
        Does what takes room in a folder, given both; it may wait until there is some.
    device : torch.device | None
        Where rows lie whatever their size; None leaves them to the host.
    """

    bound: int | None = None
    folder: str = ""
    write: Write = lambda folder, action: action()
    device: torch.device | None = None

    def rows(self, capacity: int, dim: int, dtype: DType) -> HostRows:
        """Rows of zeros, B = `capacity` and D = `dim`; OSError if the file cannot be made."""
        if self.device is not None:
            return DeviceRows(capacity, dim, dtype, self.device)
        if self.bound is None or capacity * dim * dtype.itemsize <= self.bound:
            return HostRows(capacity, dim, dtype)
        folder = Path(self.folder or tempfile.gettempdir())
        made: list[HostRows] = []
        self.write(folder, lambda: made.append(SpilledRows(capacity, dim, dtype, folder)))
        return made[0]
