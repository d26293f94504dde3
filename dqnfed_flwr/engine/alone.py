"""One at a time in a folder: whoever comes second waits for a while, and is then told who is there.

The lock is the kernel's, on an open file: it is gone with its process, however that ended. Only a program that the
process was just starting when it was killed holds it on for a moment, until it runs.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from dqnfed_flwr.errors import ConfigError

LOCK = ".lock"
POLL_SECONDS = 0.1
LINGER_SECONDS = 1.0
"""For which a lock that nobody is waited for is tried again: what a killed process was starting may hold it."""
TAKEOVER_SECONDS = 60.0
"""How long a run waits for the one before: a ServerApp taken for lost ends when it next calls the SuperLink."""

logger = logging.getLogger("flwr")


@contextmanager
def alone_in(directory: Path | None, seconds: float = 0.0) -> Iterator[None]:
    """Keep everybody else out of a folder, be it in another process or in this one.

    Parameters
    ----------
    directory : Path | None
        Made where it is missing; None where nothing is written, so that nobody can be in the way.
    seconds : float
        How long to wait for whoever is there; `LINGER_SECONDS` at least, for whoever was there and was killed.

    Raises
    ------
    ConfigError
        If somebody is still there, or nothing can be written.
    """
    if directory is None:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("ab+", buffering=0)
    except OSError as error:
        raise ConfigError(f"output: cannot write to {directory} ({error.strerror}); name another directory") from None
    with lock:
        _wait(lock, directory, seconds)
        _sign(lock)
        try:
            yield
        finally:
            _erase(lock)


def _wait(lock: FileIO, directory: Path, seconds: float) -> None:
    end, told = time.monotonic() + max(seconds, LINGER_SECONDS), False
    while not _taken(lock, directory):
        holder = _holder(lock)
        if time.monotonic() >= end:
            waited = f" and has not ended within {seconds:.0f} s" if seconds else ""
            raise ConfigError(
                f"{directory}: {holder} is at work there{waited}; let it end, end it, or name another directory"
            )
        if seconds and not told:
            logger.warning("%s: %s is at work there; waiting up to %.0f s for its end", directory, holder, seconds)
            told = True
        time.sleep(POLL_SECONDS)


def _taken(lock: FileIO, directory: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s cannot be locked (%s); see that nobody else writes there", directory, error.strerror)
    return True


def _sign(lock: FileIO) -> None:
    """Say who is here; a full disk keeps nobody out."""
    _erase(lock)
    with suppress(OSError):
        signature = f"process {os.getpid()} on {socket.gethostname()}, since {dt.datetime.now():%Y-%m-%d %H:%M:%S},"
        lock.write(signature.encode())


def _erase(lock: FileIO) -> None:
    """Take a signature out: whoever has left is not named, and a folder looked into stays as it was."""
    with suppress(OSError):
        lock.truncate(0)


def _holder(lock: FileIO) -> str:
    lock.seek(0)
    return lock.read().decode(errors="replace").strip() or "another process"
