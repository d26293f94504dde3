"""Where data sets lie on this machine, and how decoded ones are kept: whole or not at all, made by one process."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

Arrays = Mapping[str, NDArray[Any]]


def data_root() -> Path:
    """Folder of the sets: the environment variable DQNFED_DATA, or ~/.cache/dqnfed."""
    return Path(os.environ.get("DQNFED_DATA") or Path.home() / ".cache" / "dqnfed")


def console() -> Console:
    """Where this package says what it fetches and decodes: stderr, apart from results."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def readable() -> Iterator[None]:
    """Where files and folders of sets are looked for: one that may not be read is a fault of the data.

    Raises
    ------
    DataError
        Naming it.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"data: {error.filename or data_root()} cannot be read ({error.strerror}); let this user read it, or set "
            "DQNFED_DATA to another folder"
        ) from error


def kept(target: Path, make: Callable[[Path], Arrays]) -> Path:
    """Path of the .npz file `target`, made on first use.

    Other processes that want it meanwhile wait for the one that makes it.

    Parameters
    ----------
    target : Path
        The file.
    make : Callable[[Path], Arrays]
        Called with an empty folder for large arrays in the making, which is removed afterwards.

    Raises
    ------
    DataError
        If the file cannot be written; and whatever `make` raises. Nothing is left behind then.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target):
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
                    _write(target, make(Path(scratch)))
    except OSError as error:
        raise DataError(
            f"data: {target} cannot be made ({error}); free or mend the place, or set DQNFED_DATA to another folder"
        ) from error
    return target


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold `target` for this process; its lock file goes when the holder is done."""
    file = target.with_name(f".{target.name}.lock")
    lock = _acquired(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(lock)


def _acquired(file: Path) -> int:
    """Descriptor of the locked file; one that its last holder removed while this process waited does not count."""
    while True:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(lock), file.stat()):
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def _write(target: Path, arrays: Arrays) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
        try:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).chmod(0o644)
    Path(file.name).replace(target)
