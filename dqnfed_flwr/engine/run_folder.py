"""The output folder of a run: one run at a time works in it, none is started over another, and each can go on in it.

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

from dqnfed_flwr.config import Settings, check_for_nodes
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, RUN, UNREADABLE, private_folder, replacing
from dqnfed_flwr.strategy.checkpoint import output_directory, read_record

LOCK, RUN_ID = ".lock", "run-id"
POLL_SECONDS = 0.1
LINGER_SECONDS = 1.0
"""How long a lock is tried where no run is waited for: a program that a killed process was starting may hold it."""
TAKEOVER_SECONDS = 60.0
"""How long a run waits for the one before: a ServerApp taken for lost ends when it next calls the SuperLink."""
OUTPUT, METRICS = "DQNFED_OUTPUT", "DQNFED_METRICS"
"""Environment variables: where runs go that name no output, each into a folder called after its id; where they write
their metrics."""

logger = logging.getLogger("flwr")


@contextmanager
def directory_lock(directory: Path | None, seconds: float = 0.0) -> Iterator[None]:
    """Keep all others out of a folder, in another process or in this one; None where nothing is written.

    The folder is made where it is missing. The process that holds it is waited for during `seconds`, at least
    `LINGER_SECONDS`. `ConfigError` if another process still holds it, or nothing can be written.
    """
    if directory is None:
        yield
        return
    try:
        private_folder(directory)
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

    `ConfigError` if it cannot be written, or a run is to be resumed without one.
    """
    output = output_directory(settings)
    if output is None:
        if settings.resume:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        return None
    try:
        private_folder(output)
        with tempfile.NamedTemporaryFile(dir=output) as probe:
            os.fsync(probe.fileno())
    except OSError as error:
        raise _unwritable(output, error) from None
    return output


def guard_output(output: Path | None) -> None:
    """Refuse a directory that holds a run, which would be lost: the `ConfigError` says which, and what to do."""
    if output is not None and (run := held_by(output)):
        resume = "--resume (in Python resume=True) goes on with it; " if (output / CHECKPOINT).exists() else ""
        raise ConfigError(
            f"output: {output} holds {run}; {resume}name another folder, or --overwrite (overwrite=True) to lose it"
        )


def held_by(directory: Path) -> str:
    """The run in a folder, such as `a run of 5 rounds (finished)`; empty where there is none.

    A folder with an event log alone holds none: without a checkpoint no run could go on.
    """
    try:
        if (directory / RUN).exists():
            record = json.loads((directory / RUN).read_text())
            return f"a run of {record['rounds']} rounds ({record['status']})"
        if (directory / CHECKPOINT).exists():
            record = read_record(directory / CHECKPOINT)
            return f"a run of {record['round']} rounds ({record['status']})"
    except (*UNREADABLE, CheckpointError):
        return "a run that cannot be read"
    return ""


def with_folders(settings: Settings, run_id: int) -> Settings:
    """`settings` of the run config with the server's folders, where it names none itself."""
    if not settings.output and os.environ.get(OUTPUT):
        settings = settings.model_copy(update={"output": str(Path(os.environ[OUTPUT]) / str(run_id))})
    if not settings.metrics and os.environ.get(METRICS):
        settings = settings.model_copy(update={"metrics": os.environ[METRICS]})
    return settings


def settings_of_run(settings: Settings, run_id: int) -> Settings:
    """`settings` with `resume` where this very run left a checkpoint before; else a free output folder is made its own.

    Flower starts a ServerApp again after its SuperLink was lost, with the same run id and the same run config, so the
    run config cannot say that there is a beginning already. The output folder does: it names the run that last wrote
    there. The caller holds its lock.

    Raises
    ------
    ConfigError
        If the output folder cannot be written, a run is to be resumed without one, or the settings ask for what only
        the in-process engine does; or if another run's results or checkpoint lie there, and it is not to be resumed.
    """
    check_for_nodes(settings)
    output = prepare_output(settings)
    if output is None:
        logger.warning(
            "No output folder: a run that is interrupted begins anew. Set output, or %s on the server", OUTPUT
        )
        return settings
    if _last_run(output) != str(run_id):
        if not settings.resume and (run := held_by(output)):
            raise ConfigError(
                f"output: {output} holds {run}; resume goes on with it; name another folder, or move that one away"
            )
        with replacing(output / RUN_ID) as file:
            file.write(f"{run_id}\n".encode())
    elif not settings.resume and (output / CHECKPOINT).exists():
        logger.info("This run was here before; it goes on from %s", output / CHECKPOINT)
        return settings.model_copy(update={"resume": True})
    return settings


def _last_run(output: Path) -> str:
    try:
        return (output / RUN_ID).read_text().strip()
    except OSError:
        return ""


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
    """Write which process holds the lock; a full disk makes no difference to the lock."""
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
