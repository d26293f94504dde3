"""Calls worked off in their order by a few threads, each result computed shortly before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

HELD = 2
"""Results begun or held for each thread: what bounds the memory."""


class Ahead(Generic[In, Out]):
    """Results by key, computed by `threads` threads that stay a little ahead of whoever takes them.

    With one thread nothing runs ahead: a result is computed when it is taken, in the caller's thread.

    Parameters
    ----------
    work : Callable[[In], Out]
        Must bear to be called by several threads with different arguments. What it raises, `take` raises.
    threads : int
        Calls at the same time.
    """

    def __init__(self, work: Callable[[In], Out], threads: int) -> None:
        self._work, self._threads = work, threads
        self._waiting: dict[str, In] = {}
        self._begun: dict[str, Future[Out]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="client") if threads > 1 else None

    def put(self, inputs: Mapping[str, In]) -> None:
        """Take these up, in their order, in place of what was not taken."""
        wait([future for future in self._begun.values() if not future.cancel()])
        self._begun.clear()
        self._waiting = dict(inputs)

    def take(self, key: str) -> Out:
        """The result under `key`, once.

        Raises
        ------
        KeyError
            If there is none.
        """
        if self._pool is None:
            return self._work(self._waiting.pop(key))
        if key not in self._begun:
            self._begin(key, self._pool)
        self._run_ahead(self._pool)
        result = self._begun.pop(key).result()
        self._run_ahead(self._pool)
        return result

    def _run_ahead(self, pool: ThreadPoolExecutor) -> None:
        for key in list(self._waiting)[: max(0, HELD * self._threads - len(self._begun))]:
            self._begin(key, pool)

    def _begin(self, key: str, pool: ThreadPoolExecutor) -> None:
        self._begun[key] = pool.submit(self._work, self._waiting.pop(key))
