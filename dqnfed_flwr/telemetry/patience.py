"""A full disk ends no run: what must be written waits, with the run, until there is room."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space on the disk, or none left of a quota; whatever else goes wrong is not mended by waiting."""
SHORTEST, LONGEST = 1.0, 60.0
"""Seconds until the first new attempt, and between the later ones, each pause twice the one before."""

logger = logging.getLogger("flwr")


@runtime_checkable
class HearsOfPauses(Protocol):
    """A listener that wants to know when the run stands still for want of room."""

    def on_pause(self) -> None:
        """The run waits."""

    def on_resume(self) -> None:
        """It goes on."""


class Patience:
    """Writes, and waits for room where there is none.

    Parameters
    ----------
    listeners : Iterable[object]
        Those among them that are `HearsOfPauses` are told.
    """

    def __init__(self, listeners: Iterable[object] = ()) -> None:
        self._listeners = [listener for listener in listeners if isinstance(listener, HearsOfPauses)]

    def write(self, path: Path, action: Callable[[], None]) -> None:
        """Do `action`, which writes `path` and can be done again from its beginning, until the disk has room for it.

        Raises
        ------
        OSError
            If it fails for another reason than a full disk or quota.
        """
        pause = SHORTEST
        while not self._done(path, action, pause):
            if pause == SHORTEST:
                for listener in self._listeners:
                    listener.on_pause()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        if pause > SHORTEST:
            logger.warning("There is room for %s again: the run goes on", path)
            for listener in self._listeners:
                listener.on_resume()

    def _done(self, path: Path, action: Callable[[], None], pause: float) -> bool:
        try:
            action()
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning(
                "The run pauses: no room for %s (%s). Nothing is lost; make room there, and it goes on by itself. Next "
                "attempt in %.0f s",
                path,
                error.strerror,
                pause,
            )
            return False
        return True
