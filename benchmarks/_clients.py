"""How long the processes of clients live, watched from outside. Linux only."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.05


class Lives:
    """Seconds from start to end of every client process seen so far.

    A client's life holds all of its work: start, message, gradient, reply.
    """

    def __init__(self) -> None:
        self.ended: list[float] = []
        self._begun: dict[int, float] = {}

    def look(self, executors: Collection[int]) -> None:
        """See which clients of these executors have come and gone since the last look."""
        now = time.monotonic()
        alive = {number for executor in executors for number in _clients(executor)}
        self.ended += [now - begun for number, begun in self._begun.items() if number not in alive]
        self._begun = {number: self._begun.get(number, now) for number in alive}


def _clients(executor: int) -> Iterator[int]:
    for number in Path(f"/proc/{executor}/task/{executor}/children").read_text().split():
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if b"flwr-clientapp" in command:
            yield int(number)


@contextmanager
def watched(executors: Collection[int]) -> Iterator[Lives]:
    """Watch the clients that these executors start during the block."""
    lives, over = Lives(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            lives.look(executors)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lives
    finally:
        over.set()
        thread.join()
