"""Values that are built once and kept for their next use while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

LEAST = 128
"""So many are kept however large they are."""
ROOM = 2 << 30
"""Bytes up to which more of them are kept."""


class Sized(Protocol):
    """Something that knows how large it is."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)


class Cache(Generic[Key, Value]):
    """Values by key; those asked for longest ago go first.

    An exchange asks for every client once, in the same order each time: a cache with room for one client too few would
    find none of them. That is why their number is not bounded, but their bytes are.

    Parameters
    ----------
    least : int
        Values that are kept however large they are.
    room : int
        Bytes up to which more of them are kept.
    """

    def __init__(self, least: int = LEAST, room: int = ROOM) -> None:
        self._least, self._room = least, room
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key, build: Callable[[], Value]) -> Value:
        """The value of `key`, built if it is not here; all who ask at the same time are given the same one."""
        with self._lock:
            if key in self._values:
                return self._used(key)
        built = build()
        with self._lock:
            if key not in self._values:
                size = built.nbytes
                self._values[key] = built, size
                self._bytes += size
                self._shrink()
            return self._used(key)

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _used(self, key: Key) -> Value:
        self._values.move_to_end(key)
        return self._values[key][0]

    def _shrink(self) -> None:
        while len(self._values) > self._least and self._bytes > self._room:
            _, (_, size) = self._values.popitem(last=False)
            self._bytes -= size
