"""The output folder of a run: one run at a time works in it, and none is started over another.

The lock is the kernel's, on an open file: it is gone with its process, however that ended. Only a program that the
process was just starting when it was killed holds it on for a moment, until it runs.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from dqnfed_flwr.strategy.checkpoint import output_directory, read_record

LOCK = ".lock"
POLL_SECONDS = 0.1
LINGER_SECONDS = 1.0
"""How long a lock is tried where no run is waited for: a program that a killed process was starting may hold it."""
TAKEOVER_SECONDS = 60.0
"""How long a run waits for the one before: a ServerApp taken for lost ends when it next calls the SuperLink."""

logger = logging.getLogger("flwr")


@contextmanager
def directory_lock(directory: Path | None, seconds: float = 0.0) -> Iterator[None]:
    """Keep everybody else out of a folder, in another process or in this one.

    Parameters
    ----------
    directory : Path | None
        Made where it is missing; None where nothing is written, so that nobody can be in the way.
    seconds : float
        How long to wait for the process that holds the folder; `LINGER_SECONDS` at least.

    Raises
    ------
    ConfigError
        If another process still holds it, or nothing can be written.
    """
    if directory is None:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("ab+", buffering=0)
    except OSError as error:
        raise _unwritable(directory, error) from None
    with lock:
        _wait(lock, directory, seconds)
        _sign(lock)
        try:
            yield
        finally:
            _erase(lock)


def prepare_output(settings: Settings) -> Path | None:
    """Make the output directory and try it, before any training.

    Raises
    ------
    ConfigError
        If it cannot be written, or a run is to be resumed without one.
    """
    output = output_directory(settings)
    if output is None:
        if settings.resume:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        return None
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output) as probe:
            os.fsync(probe.fileno())
    except OSError as error:
        raise _unwritable(output, error) from None
    return output


def guard_output(output: Path | None) -> None:
    """Refuse a directory that holds a run, which would be lost.

    Raises
    ------
    ConfigError
        It says which run, and what to do.
    """
    if output is not None and (run := held_by(output)):
        resume = "--resume (in Python resume=True) goes on with it; " if (output / CHECKPOINT).exists() else ""
        raise ConfigError(
            f"output: {output} holds {run}; {resume}name another folder, or --overwrite (overwrite=True) to lose it"
        )


def held_by(directory: Path) -> str:
    """The run in a folder, such as `a run of 5 rounds (finished)`; empty where there is none.

    A folder with an event log alone holds none: without a checkpoint nobody could go on with it.
    """
    if (directory / RUN).exists():
        record, key = _recorded(directory / RUN), "rounds"
    elif (directory / CHECKPOINT).exists():
        record, key = _saved(directory / CHECKPOINT), "round"
    else:
        return ""
    if key not in record or "status" not in record:
        return "a run that cannot be read"
    return f"a run of {record[key]} rounds ({record['status']})"


def _recorded(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _saved(path: Path) -> dict[str, object]:
    try:
        return read_record(path)
    except CheckpointError:
        return {}


def _unwritable(directory: Path, error: OSError) -> ConfigError:
    return ConfigError(f"output: cannot write to {directory} ({error.strerror}); name another directory")


def _wait(lock: FileIO, directory: Path, seconds: float) -> None:
    end, warned = time.monotonic() + max(seconds, LINGER_SECONDS), False
    while not _taken(lock, directory):
        holder = _holder(lock)
        if time.monotonic() >= end:
            waited = f" and has not ended within {seconds:.0f} s" if seconds else ""
            raise ConfigError(
                f"{directory}: {holder} is at work there{waited}; let it end, end it, or name another directory"
            )
        if seconds and not warned:
            logger.warning("%s: %s is at work there; waiting up to %.0f s for its end", directory, holder, seconds)
            warned = True
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
    """Write which process holds the lock; a full disk keeps nobody out."""
    _erase(lock)
    with suppress(OSError):
        signature = f"process {os.getpid()} on {socket.gethostname()}, since {dt.datetime.now():%Y-%m-%d %H:%M:%S},"
        lock.write(signature.encode())


def _erase(lock: FileIO) -> None:
    """Take the signature out: a process that has left is not named."""
    with suppress(OSError):
        lock.truncate(0)


def _holder(lock: FileIO) -> str:
    lock.seek(0)
    return lock.read().decode(errors="replace").strip() or "another process"
