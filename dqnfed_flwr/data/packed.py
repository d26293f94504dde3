"""Text files that may be compressed."""

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
