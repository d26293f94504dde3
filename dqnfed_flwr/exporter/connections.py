"""The connections of the exporter's server: so many at most, each with a deadline, and the slowest make room.

A connection waits for its client while it reads a request or sends an answer. Where there is no place for a new one,
the one that has waited longest is cut, so that slow clients shut nobody out. One whose answer is being made stays.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


class Connection:
    """An open connection: since when its request goes on, and since when it waits for its client, None while not."""

    def __init__(self, taken: socket.socket) -> None:
        self._handle = taken.dup()  # stays valid when the other is closed, or handed over to TLS
        self.since = time.monotonic()
        self.waits_since: float | None = self.since
        self.is_cut = False

    def begin(self) -> None:
        """A new request: its deadline counts from now."""
        self.since = self.waits_since = time.monotonic()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While the answer is made: nobody else is let in for it."""
        self.waits_since = None
        try:
            yield
        finally:
            self.waits_since = time.monotonic()

    def cut(self) -> None:
        """End it: whoever reads or writes there finds it closed."""
        self.is_cut = True
        with contextlib.suppress(OSError):  # the client was faster
            self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it."""
        self._handle.close()


class Connections:
    """At most `most` connections; a request may take `seconds`, from the wait for its first byte to its last byte sent.

    Those that were cut count no more, but their threads take a moment to end: there are at most twice as many threads.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._open: set[Connection] = set()
        self._lock = threading.Lock()

    def take(self, request: socket.socket) -> Connection | None:
        """A place for a new connection; None where all places are taken by answers in the making."""
        with self._lock:
            if not self._has_room():
                return None
            found = Connection(request)
            self._open.add(found)
            return found

    def leave(self, connection: Connection) -> None:
        """The connection's thread is done with it."""
        with self._lock:
            self._open.discard(connection)
            connection.close()

    def cut_late(self) -> None:
        """Cut the connections whose deadline is over."""
        before = time.monotonic() - self._seconds
        with self._lock:
            for connection in self._open:
                if connection.since < before and not connection.is_cut:
                    connection.cut()

    def _has_room(self) -> bool:
        live = [connection for connection in self._open if not connection.is_cut]
        if len(live) < self._most:
            return len(self._open) < 2 * self._most
        waiting = [(since, place) for place, one in enumerate(live) if (since := one.waits_since) is not None]
        if not waiting or len(self._open) >= 2 * self._most:
            return False
        live[min(waiting)[1]].cut()
        return True
