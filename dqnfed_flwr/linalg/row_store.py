"""Where rows [B, D] lie: in memory, or above a bound in a file.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.sweeps import copy_and_measure, squared_norm
from dqnfed_flwr.types import FloatArray

DType = np.dtype[np.floating]
Write = Callable[[Path, Callable[[], None]], None]
AHEAD = 2
"""Strips that are read ahead of one that is asked for."""


class Rows:
    """Rows in memory, zeros at first.

    Attributes
    ----------
    shape : tuple[int, int]
        B, D.
    dtype : np.dtype
        float32 or float64.
    spilled : bool
        Whether they are in a file, so that each sweep over them reads a disk.
    """

    spilled = False

    def __init__(self, capacity: int, dim: int, dtype: DType) -> None:
        self.shape, self.dtype = (capacity, dim), dtype
        self._array = self._held()

    def _held(self) -> FloatArray:
        return np.zeros(self.shape, self.dtype)

    def put(self, slot: int, row: NDArray[np.floating]) -> float:
        """Copy `row` [D], cast to the dtype, into `slot`; its squared norm."""
        return copy_and_measure(row, self._array[slot])

    def row(self, slot: int) -> FloatArray:
        """The row in `slot` [D], to be read until another is put there."""
        return np.asarray(self._array[slot])

    def strip(self, part: slice) -> FloatArray:
        """Columns of all rows, to be read only [B, width]."""
        return self._array[:, part]


class FileRows(Rows):
    """Rows in a file without a name in `folder`; OSError where the disk has no room for it."""

    spilled = True

    def __init__(self, capacity: int, dim: int, dtype: DType, folder: Path) -> None:
        self._stride = -(-dim * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE  # a row begins with a page
        self._file = tempfile.TemporaryFile(dir=folder, prefix="rows-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        os.posix_fallocate(self._file.fileno(), 0, capacity * self._stride)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # `strip` knows better what comes next
        super().__init__(capacity, dim, dtype)

    def _held(self) -> FloatArray:
        return np.zeros((0, 0), self.dtype)

    def put(self, slot: int, row: NDArray[np.floating]) -> float:
        """Write `row` [D], cast to the dtype, into `slot`; its squared norm."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.ascontiguousarray(row, self.dtype)
        start, left = slot * self._stride, values.view(np.uint8).data
        while left:
            left = left[os.pwrite(self._file.fileno(), left, start + values.nbytes - len(left)) :]
        os.posix_fadvise(self._file.fileno(), start, self._stride, os.POSIX_FADV_DONTNEED)  # begins to write to disk
        return squared_norm(values)

    def row(self, slot: int) -> FloatArray:
        """A copy of the row in `slot` [D]."""
        found = np.empty(self.shape[1], self.dtype)
        self._read(slot, 0, found)
        return found

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

    def _read(self, slot: int, offset: int, into: FloatArray) -> None:
        start, left = slot * self._stride + offset, into.view(np.uint8).data
        while left:
            count = os.preadv(self._file.fileno(), [left], start + into.nbytes - len(left))
            if not count:
                raise OSError("the file of rows is shorter than it was made")
            left = left[count:]


def _do(path: Path, action: Callable[[], None]) -> None:
    del path
    action()


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
    """

    bound: int | None = None
    folder: str = ""
    write: Write = _do

    def rows(self, capacity: int, dim: int, dtype: DType) -> Rows:
        """Rows of zeros, B = `capacity` and D = `dim`.

        Raises
        ------
        OSError
            If the file cannot be made.
        """
        if self.bound is None or capacity * dim * dtype.itemsize <= self.bound:
            return Rows(capacity, dim, dtype)
        folder = Path(self.folder or tempfile.gettempdir())
        made: list[Rows] = []
        self.write(folder, lambda: made.append(FileRows(capacity, dim, dtype, folder)))
        return made[0]
