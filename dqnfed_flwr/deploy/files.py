"""Files that hold secrets: made private from the first byte, replaced whole, never printed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE_FILE, PRIVATE_DIRECTORY, PUBLIC_FILE = 0o600, 0o700, 0o644
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_directory(path: Path) -> Path:
    """A directory, new or old, that nobody else can look into."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    path.chmod(PRIVATE_DIRECTORY)
    return path


def write_private(path: Path, content: bytes) -> None:
    """Write a secret; whoever reads the file sees the old content or the new one, and nobody else reads it."""
    _write(path, content, PRIVATE_FILE)


def write_public(path: Path, content: bytes | str) -> None:
    """Write what may be known, in the same way."""
    _write(path, content.encode() if isinstance(content, str) else content, PUBLIC_FILE)


def open_to_others(path: Path) -> bool:
    """Whether group or others have any right to `path`."""
    return bool(path.stat().st_mode & FOR_OTHERS)


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(mode)
    temporary.replace(path)
