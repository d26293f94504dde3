"""A call that several threads need done once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Once:
    """Makes `call` when it is first needed; whoever comes meanwhile waits, and all are told of its failure.

    Parameters
    ----------
    call : Callable[[], None]
        Let go of when it has returned.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Have it done.

        Raises
        ------
        Exception
            What `call` raised, every time.
        """
        with self._lock:
            call, self._call = self._call, None
            if call is not None:
                try:
                    call()
                except Exception as error:  # told to all who need it
                    self._error = error
        if self._error is not None:
            raise self._error
