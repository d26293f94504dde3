"""Read an .npz archive without reading its arrays: uncompressed members are mapped where they lie in the zip file.

A client process lives for one message and needs only its own samples, so the pages it does not touch are never read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name and extra field
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def map_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz archive by name, equal to those of `numpy.load` bit for bit.

    Members stored uncompressed (as `numpy.savez` writes them) become read-only memory maps; compressed or empty
    members and single numbers are read. The checksums of the zip file are not verified for mapped members.

    Raises
    ------
    DataError
        If the file is missing, is no .npz archive, is cut short, or holds Python objects.
    """
    path = Path(path)
    with _archive(path) as archive, path.open("rb") as raw:
        return {_name(info): _member(path, archive, raw, info) for info in _members(archive)}


def checksums(path: str | Path) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of the arrays of an .npz archive by name, as its directory lists them: none of them is read.

    Raises
    ------
    DataError
        If the file is missing or is no .npz archive.
    """
    with _archive(Path(path)) as archive:
        return {_name(info): (info.file_size, info.CRC) for info in _members(archive)}


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise DataError(f"data: no file {str(path)!r} (looked at {path.absolute()}); give an absolute path to an .npz")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except Exception as error:  # whatever damaged bytes make zipfile, zlib and NumPy's reader of headers raise
        raise DataError(
            f"data: {str(path)!r} cannot be read as an .npz archive ({error}); write it with numpy.savez, without "
            "Python objects"
        ) from error


def map_kept(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file that this package wrote, see `map_npz`.

    Raises
    ------
    DataError
        As `map_npz`; the text says that the file can be deleted.
    """
    try:
        return map_npz(path)
    except DataError as error:
        raise DataError(f"{error}; this file was made here: delete it, and it is made anew") from error


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [info for info in archive.infolist() if info.filename.endswith(".npy")]


def _name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def _member(path: Path, archive: zipfile.ZipFile, raw: IO[bytes], info: zipfile.ZipInfo) -> NDArray[Any]:
    mapped = _map(path, raw, info) if info.compress_type == zipfile.ZIP_STORED else None
    if mapped is not None:
        return mapped
    with archive.open(info) as member:
        array = npy.read_array(member, allow_pickle=False)
    array.flags.writeable = False
    return array


def _map(path: Path, raw: IO[bytes], info: zipfile.ZipInfo) -> NDArray[Any] | None:
    """Map the member; None for one better read: of another header version, of objects, empty, or a single number."""
    start = _start(raw, info)
    raw.seek(start)
    read_header = _HEADERS.get(npy.read_magic(raw))
    if read_header is None:
        return None
    shape, fortran, dtype = read_header(raw)
    size = dtype.itemsize
    for side in shape:
        size *= side
    if dtype.hasobject or size == 0 or shape == ():
        return None
    offset = raw.tell()
    if offset + size != start + info.file_size:
        raise ValueError(f"member {info.filename!r} declares {size} bytes, found {start + info.file_size - offset}")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _start(raw: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Find the member's first byte, behind its local header, whose name and extra field have lengths of their own."""
    raw.seek(info.header_offset)
    header = raw.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or not header.startswith(b"PK\x03\x04"):
        raise ValueError(f"member {info.filename!r} has no local header")
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return info.header_offset + _LOCAL_HEADER + name + extra
