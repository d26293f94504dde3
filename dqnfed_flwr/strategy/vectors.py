"""Long vectors of a checkpoint: one file beside it, of places that are written over again and again.

A checkpoint of a large model holds dozens of vectors of its size, and a round brings few new ones. Here a vector that
the checkpoint before holds already is not written again, and a new one goes where nothing of that checkpoint lies: it
stays whole until the new one has replaced it. Blocks that exist are written several times as fast as new ones.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LONG = 1 << 12
"""Bytes from which an array is kept here, and not in the archive."""
_PAGE = 1 << 12
Arrays = dict[str, NDArray[np.generic]]
Mark = tuple[int, int, int, int]
_Key = tuple[int, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a vector lies in the file, in bytes, with the CRC-32 of its bytes, its dtype and its shape."""

    offset: int
    length: int
    checksum: int
    dtype: str
    shape: tuple[int, ...]

    def as_list(self) -> list[int | str | list[int]]:
        """For JSON."""
        return [self.offset, self.length, self.checksum, self.dtype, list(self.shape)]

    @classmethod
    def of(cls, values: Iterable[object]) -> Place:
        """Inverse of `as_list`.

        Raises
        ------
        ValueError, TypeError
            If `values` is no such list.
        """
        offset, length, checksum, dtype, shape = values
        match offset, length, checksum, dtype, shape:
            case int(), int(), int(), str(), list():
                return cls(offset, length, checksum, dtype, tuple(map(int, shape)))
        raise TypeError(f"no place of a vector: {values}")


class VectorFile:
    """The long vectors of one run's checkpoints.

    A vector is known by where it lies in memory. So what was put must not be written to later, only replaced; and the
    vectors of the last checkpoint are held until the next, so that no other takes their place.

    Parameters
    ----------
    path : Path
        The file; its directory exists.
    taken : Iterable[Place]
        Places of the checkpoint on disk, from an earlier process.
    """

    def __init__(self, path: Path, taken: Iterable[Place] = ()) -> None:
        self._path = path
        self._taken = list(taken)
        self._durable: dict[_Key, tuple[Place, NDArray[np.generic]]] = {}
        self._mark: Mark | None = None
        self._next: dict[_Key, tuple[Place, NDArray[np.generic]]] = {}

    def put(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Place]:
        """Write what the last checkpoint does not hold, synced; the places of all, by name.

        Nothing of that checkpoint is touched before `settle`. What fails can be done again, with the same places. Where
        the file is gone, or somebody else wrote to it, all is written.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        if self._mark != mark_of(self._path):
            self._durable = {}
        solid = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        keys = {name: _key(values) for name, values in solid.items()}
        new = {key: solid[name] for name, key in keys.items() if key not in self._durable}
        offsets = _free(self._taken, [values.nbytes for values in new.values()])
        fresh = {
            key: (Place(offset, values.nbytes, zlib.crc32(_bytes(values)), values.dtype.str, values.shape), values)
            for (key, values), offset in zip(new.items(), offsets, strict=True)
        }
        if fresh:
            self._write(fresh.values())
        self._next = {key: fresh[key] if key in fresh else self._durable[key] for key in keys.values()}
        return {name: self._next[key][0] for name, key in keys.items()}

    def settle(self) -> None:
        """The checkpoint that names the places of the last `put` has replaced the one before."""
        self._durable = self._next
        self._taken = [place for place, _ in self._durable.values()]

    def _write(self, vectors: Iterable[tuple[Place, NDArray[np.generic]]]) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)  # never cut: an archive may name it
        try:
            with os.fdopen(descriptor, "wb") as file:
                for place, values in vectors:
                    file.seek(place.offset)
                    file.write(_bytes(values))
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._mark = mark_of(self._path)  # also where it failed: what is there was written here, not by another


def mark_of(path: Path) -> Mark | None:
    """What tells a file from itself once it was written to, and from another of its name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_vectors(path: Path, places: Mapping[str, Place]) -> Arrays:
    """Read the vectors at `places`.

    Raises
    ------
    OSError
        If there is no such file.
    ValueError
        If one of them is not what was written.
    """
    if not places:
        return {}
    arrays: Arrays = {}
    with path.open("rb") as file:
        for name, place in places.items():
            file.seek(place.offset)
            values = np.frombuffer(bytearray(file.read(place.length)), place.dtype).reshape(place.shape)
            if zlib.crc32(_bytes(values)) != place.checksum:
                raise ValueError(f"the checksum of {name!r} in {path.name} is another")
            arrays[name] = values
    return arrays


def _key(values: NDArray[np.generic]) -> _Key:
    return values.ctypes.data, values.dtype.str, values.shape


def _bytes(values: NDArray[np.generic]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _free(taken: Iterable[Place], lengths: Iterable[int]) -> Iterator[int]:
    """Offsets of vectors of `lengths` bytes, rising, each where nothing of `taken` lies and on pages of its own."""
    spans = iter(sorted({(place.offset, _pages(place.length)) for place in taken}))
    cursor, span = 0, next(spans, None)
    for length in map(_pages, lengths):
        while span is not None and span[0] - cursor < length:
            cursor, span = sum(span), next(spans, None)
        yield cursor
        cursor += length


def _pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE
