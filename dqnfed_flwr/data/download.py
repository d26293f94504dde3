"""Fetch published files: with progress, going on where a transfer was cut off, checked against their MD5 sum."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dqnfed_flwr.data.store import console
from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from http.client import HTTPResponse

TRIES = 3
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_TOO_FAR = 416  # the server has nothing behind what is here


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
        start = _start(response)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        if start not in (0, here):
            raise OSError(f"asked for byte {here}, the server began at {start}")
        with part.open("ab" if start else "wb") as file:
            _copy(response, file, part.name.removesuffix(".part"), start, total)
    size = part.stat().st_size
    if total is not None and size < total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _start(response: HTTPResponse) -> int:
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
