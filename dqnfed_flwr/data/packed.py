"""Text files, which may be compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from pathlib import Path

from dqnfed_flwr.errors import DataError

_DECOMPRESS = {".xz": lzma.decompress, ".gz": gzip.decompress, ".bz2": bz2.decompress}


def unpacked(path: Path) -> bytes:
    """All bytes of a file; of .xz, .gz and .bz2 those that were packed.

    Raises
    ------
    DataError
        If it cannot be read, or is cut short.
    """
    try:
        content = path.read_bytes()
        return _DECOMPRESS[path.suffix](content) if path.suffix in _DECOMPRESS else content
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"data: {path} cannot be read ({error}); if it is cut short, fetch it again") from error


def text_lines(path: Path) -> list[str]:
    """Lines of a file of UTF-8 text, without those that hold nothing but spaces.

    Raises
    ------
    DataError
        If it cannot be read, or is no UTF-8 text.
    """
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data: {path} cannot be read as UTF-8 text ({error}); fetch it again") from error
