"""Archives of NumPy arrays (.npz) that somebody else may have written: bounded before they are unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_PACKED = 2**30
"""Bytes to which the packed arrays of one archive may unpack together. `numpy.savez` packs none."""


def check_packed(archive: zipfile.ZipFile) -> None:
    """Raise ValueError where the packed arrays are more than `MOST_PACKED`, by what the archive's directory says.

    More than the directory says is never unpacked: `zipfile` stops there.
    """
    packed = sum(info.file_size for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED)
    if packed > MOST_PACKED:
        raise ValueError(
            f"its packed arrays are {packed:,} bytes, and at most {MOST_PACKED:,} are unpacked; numpy.savez packs none"
        )


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an archive, by name; raises what NumPy raises, and ValueError where too much is packed."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        check_packed(archive.zip)
        return {name: archive[name] for name in archive.files}
