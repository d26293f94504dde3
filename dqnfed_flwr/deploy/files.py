"""Files that hold secrets: made private from the first byte, replaced whole, never printed.

What root makes gets the owner of the folder it lies in, so that a service which owns the folder can read it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dqnfed_flwr.errors import ConfigError, RunError

PRIVATE_FILE, PRIVATE_DIRECTORY, PUBLIC_FILE = 0o600, 0o700, 0o644
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Mode bits of group and others."""


def at_home(path: str | Path) -> Path:
    """`path` with `~` replaced by the home folder; `ConfigError` if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}") from None


def make_directory(path: Path) -> Path:
    """A directory, new or old, that is closed to other users; the one above it must be there."""
    if not path.exists():
        path.mkdir(mode=PRIVATE_DIRECTORY)
        give_away(path)
    path.chmod(PRIVATE_DIRECTORY)
    return path


def make_way(path: Path) -> None:
    """Make `path` and the directories above it, where they are missing, with the modes that are usual here."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        missing.mkdir(exist_ok=True)
        give_away(missing)


def give_away(path: Path, like: Path | None = None) -> None:
    """As root, give something new to the owner of the folder it lies in, or to that of `like`."""
    if (owner := _owner_in(like or path.parent)) is not None:
        os.lchown(path, *owner)


def write_private(path: Path, content: bytes) -> None:
    """Write a secret; a reader sees the old content or the new one, and other users cannot read it."""
    _write(path, content, PRIVATE_FILE)


def write_public(path: Path, content: bytes | str) -> None:
    """Write what may be known, in the same way."""
    _write(path, content.encode() if isinstance(content, str) else content, PUBLIC_FILE)


def is_there(path: Path) -> bool:
    """Whether `path` is a file; `ConfigError` if this user may not know."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise _forbidden(path.parent, error) from None
    except (OSError, ValueError):
        return False


@contextmanager
def as_owner(directory: Path) -> Iterator[None]:
    """Work in a folder that may be another user's; `ConfigError` if this user may not read or write there."""
    try:
        yield
    except PermissionError as error:
        raise _forbidden(directory, error) from None


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """Write several files of `directory`.

    `ConfigError` if this user may not write there, `RunError` if the machine fails half way, say with a full disk.
    """
    try:
        with as_owner(directory):
            yield
    except OSError as error:
        raise RunError(
            f"{error.filename or directory}: {error.strerror}; some files of {directory} may be changed and others "
            "not: mend that, and do this once more"
        ) from None


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Let one command at a time change a federation's folder; another one waits.

    What the command knows of the folder is to be read within. It must not be held twice in one process.
    """
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # missing or closed, which the command itself tells
        yield
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def demand(folders: Sequence[Path]) -> None:
    """Refuse to begin where a folder is missing (`ConfigError`) or closed to this user (`PermissionError`)."""
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise ConfigError(
            f"{', '.join(missing)}: No such folder; nothing was changed. Restore it from your backup, or "
            "`dqnfed deploy remove-node` a node that is gone; `dqnfed deploy check` tells what else is missing"
        )
    for folder in folders:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _forbidden(directory: Path, error: PermissionError) -> ConfigError:
    try:
        owner = f", {directory.owner()}"
    except (OSError, KeyError):
        owner = ""
    return ConfigError(
        f"{error.filename or directory}: cannot be read or written by this user; run this as the owner of "
        f"{directory}{owner}"
    )


def _owner_in(folder: Path) -> tuple[int, int] | None:
    """User and group that something new in `folder` is given; None for who is not root: units may not even ask."""
    if os.geteuid() != 0:
        return None
    found = folder.stat()
    return found.st_uid, found.st_gid


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            if (owner := _owner_in(path.parent)) is not None:
                os.fchown(handle, *owner)
            file.write(content)
            file.flush()
            os.fsync(handle)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
