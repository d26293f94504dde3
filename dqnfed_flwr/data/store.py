"""Where data sets lie on this machine: fetched, kept as .npz archives, and read from these without their arrays.

Published files are fetched with progress, going on where a transfer was cut off, and checked against their MD5 sum. A
set is kept whole or not at all, and one process makes it. Uncompressed members of an archive are mapped where they lie
in the zip file: a client process lives for one message and needs only its own samples, so the pages it does not touch
are never read.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dqnfed_flwr.archives import check_packed
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.run_files import replacing

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from rich.console import Console

Arrays = Mapping[str, NDArray[Any]]
TRIES = 3
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_TOO_FAR = 416  # the server has nothing behind what is here
_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name and extra field
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def data_root() -> Path:
    """Folder of the sets: the environment variable DQNFED_DATA, or ~/.cache/dqnfed."""
    return Path(os.environ.get("DQNFED_DATA") or Path.home() / ".cache" / "dqnfed")


def console() -> Console:
    """Where this package says what it fetches and decodes: stderr, apart from results."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def readable() -> Iterator[None]:
    """Where files and folders of sets are looked for: one that may not be read is a fault of the data (DataError)."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"data: {error.filename or data_root()} cannot be read ({error.strerror}); let this user read it, or set "
            "DQNFED_DATA to another folder"
        ) from error


def kept(target: Path, make: Callable[[Path], Arrays], mode: int = 0o644) -> Path:
    """Path of the .npz file `target`, made on first use.

    Other processes that want it meanwhile wait for the one that makes it. `make` is called with an empty folder for
    large arrays in the making, which is removed afterwards; `mode` says who may read the file. If the file cannot be
    written (DataError) or `make` raises, nothing is left behind.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target):
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
                    arrays = make(Path(scratch))
                    with replacing(target, sync=True) as file:
                        os.fchmod(file.fileno(), mode)
                        np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(
            f"data: {target} cannot be made ({error}); free or repair the place, or set DQNFED_DATA to another folder"
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


@dataclass(frozen=True)
class PublishedFile:
    """A file as its publisher describes it: its name, where it lies, in the order to try, and its MD5 sum in hex."""

    name: str
    urls: tuple[str, ...]
    md5: str

    def check(self, file: Path) -> None:
        """Compare a file with the published one; DataError if it is another, or was cut short."""
        found = md5_of(file)
        if found != self.md5:
            raise DataError(
                f"data: {file} is not the published file: MD5 {found}, published {self.md5}, {file.stat().st_size:,} "
                f"bytes; it may be cut short: delete it and try again, or fetch {self.urls[0]}"
            )


def fetch(published: PublishedFile, folder: Path) -> Path:
    """Path of the whole, checked file in `folder`, fetched if it does not lie there.

    What has arrived of a transfer that fails stays as NAME.part, and the next call goes on from there. The caller sees
    to it that one process at a time fetches a file. DataError if no place gives it, or it is not the published one.
    """
    target = folder / published.name
    if target.exists():
        published.check(target)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    failures = []
    for url in published.urls:
        failure = _fetched(url, part, published.md5)
        if not failure:
            part.replace(target)
            console().print(f"{published.name}: fetched to {target}, MD5 as published", markup=False, soft_wrap=True)
            return target
        failures.append(f"{url}: {failure}")
    left = f"{part.stat().st_size:,} bytes are in {part} and will be used" if part.exists() else "nothing was kept"
    raise DataError(
        f"data: {published.name} cannot be fetched ({'; '.join(failures)}); {left}; try again, or put the file itself "
        f"to {target}"
    )


def _fetched(url: str, part: Path, md5: str) -> str:
    """Bring `part` to its end; say why that failed, or nothing."""
    failure = ""
    for _ in range(TRIES):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part)
        except HTTPError as error:
            return f"{error.code} {error.reason}"
        except (OSError, HTTPException) as error:
            failure = str(error) or type(error).__name__
            continue
        found = md5_of(part)
        if found == md5:
            return ""
        part.unlink()
        failure = f"MD5 {found}, published {md5}; what came was deleted"
        if not resumed:
            break
    return failure


def _transfer(url: str, part: Path) -> None:
    """Append to `part` what it lacks; begin anew where the server cannot go on from the middle.

    OSError or HTTPException if the server fails, or ends before the end.
    """
    here = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "dqnfed-flwr", **({"Range": f"bytes={here}-"} if here else {})}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if here and error.code == _TOO_FAR:
            return
        raise
    with response:
        start = _first_byte(response)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        if start not in (0, here):
            raise OSError(f"asked for byte {here}, the server began at {start}")
        with part.open("ab" if start else "wb") as file:
            _copy(response, file, part.name.removesuffix(".part"), start, total)
    size = part.stat().st_size
    if total is not None and size < total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _first_byte(response: HTTPResponse) -> int:
    """First byte that the answer holds."""
    described = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(described[1]) if response.status == 206 and described else 0


def _copy(response: HTTPResponse, file: BinaryIO, name: str, start: int, total: int | None) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console()) as progress:
        task = progress.add_task(name, total=total, completed=start)
        while block := response.read(_BLOCK):
            file.write(block)
            progress.advance(task, len(block))


def md5_of(file: Path) -> str:
    """MD5 sum in hexadecimal, as publishers name it."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def map_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz archive by name, equal to those of `numpy.load` bit for bit.

    Members stored uncompressed (as `numpy.savez` writes them) become read-only memory maps; compressed or empty
    members and single numbers are read. The checksums of the zip file are not verified for mapped members. DataError if
    the file is missing, is no .npz archive, is cut short, holds Python objects, or compressed arrays above
    `archives.MOST_PACKED`.
    """
    with _archive(path) as archive, path.open("rb") as raw:
        return {name: _member(path, archive, raw, info) for name, info in _members(archive)}


def checksums(path: Path) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of the arrays of an .npz archive by name, as its directory lists them: none of them is read.

    DataError if the file is missing or is no .npz archive.
    """
    with _archive(path) as archive:
        return {name: (info.file_size, info.CRC) for name, info in _members(archive)}


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise DataError(f"data: no file {str(path)!r} (looked at {path.absolute()}); give an absolute path to an .npz")
    try:
        with zipfile.ZipFile(path) as archive:
            check_packed(archive)
            yield archive
    except Exception as error:  # whatever damaged bytes make zipfile, zlib and NumPy's reader of headers raise
        raise DataError(
            f"data: {str(path)!r} cannot be read as an .npz archive ({error}); write it with numpy.savez, without "
            "Python objects"
        ) from error


def map_kept(path: Path) -> dict[str, NDArray[Any]]:
    """`map_npz` of a file that this package wrote: the text of its DataError says that the file can be deleted."""
    try:
        return map_npz(path)
    except DataError as error:
        raise DataError(f"{error}; this file was made here: delete it, and it is made anew") from error


def _members(archive: zipfile.ZipFile) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    found = archive.infolist()
    return ((info.filename.removesuffix(".npy"), info) for info in found if info.filename.endswith(".npy"))


def _member(path: Path, archive: zipfile.ZipFile, raw: IO[bytes], info: zipfile.ZipInfo) -> NDArray[Any]:
    mapped = _map(path, raw, info) if info.compress_type == zipfile.ZIP_STORED else None
    if mapped is not None:
        return mapped
    with archive.open(info) as member:
        _check_size(member, info)
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
    size = dtype.itemsize * math.prod(shape)
    if dtype.hasobject or size == 0 or shape == ():
        return None
    offset = raw.tell()
    if offset + size != start + info.file_size:
        raise ValueError(f"member {info.filename!r} declares {size} bytes, found {start + info.file_size - offset}")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _check_size(member: IO[bytes], info: zipfile.ZipInfo) -> None:
    """Raise ValueError where the header of a member asks for more memory than its bytes fill."""
    read_header = _HEADERS.get(npy.read_magic(member))
    if read_header is not None:
        shape, _, dtype = read_header(member)
        if not dtype.hasobject and (size := dtype.itemsize * math.prod(shape)) > info.file_size:
            raise ValueError(f"member {info.filename!r} declares {size} bytes, found {info.file_size}")


def _start(raw: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Find the member's first byte, behind its local header, whose name and extra field have lengths of their own."""
    raw.seek(info.header_offset)
    header = raw.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or not header.startswith(b"PK\x03\x04"):
        raise ValueError(f"member {info.filename!r} has no local header")
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return info.header_offset + _LOCAL_HEADER + name + extra
