"""Checkpoints: an archive, written under a temporary name, synced and renamed, so that a reader sees all or nothing.

Long vectors lie in a second file, at places that the archive names. A checkpoint of a large model holds dozens of
vectors of its size, and a round brings few new ones. A vector that the checkpoint before holds already is not written
again, and a new one goes where nothing of that checkpoint lies: it stays whole until the new one has replaced it.
Blocks that exist are written several times as fast as new ones.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.archives import read_npz
from dqnfed_flwr.config import KNOWN
from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.run_files import UNREADABLE, replacing
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.version import package_version

FORMAT = 4
"""Of an archive; others are refused."""
RECORD, NAMES, VECTORS = "record", "arrays", "vectors"
DAMAGE = (*UNREADABLE, MemoryError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading raises where a byte of the archive is not what it was."""
LONG = 1 << 12
"""Bytes from which an array is kept in the file of long vectors, and not in the archive."""
_PAGE = 1 << 12
Arrays = dict[str, NDArray[np.generic]]
Mark = tuple[int, int, int, int]
_Key = tuple[int, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a vector lies in the file, in bytes, with the CRC-32 of its bytes, its dtype and its shape."""

    offset: int
    length: int
    checksum: int
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: object) -> Place:
        """Inverse of `astuple`, as JSON has it; ValueError or TypeError if `values` is no such list."""
        match values:
            case [int(offset), int(length), int(checksum), str(dtype), list(shape)]:
                return cls(offset, length, checksum, dtype, tuple(map(int, shape)))
        raise TypeError(f"no place of a vector: {values}")


class VectorFile:
    """The long vectors of one run's checkpoints, in a file at `path`, whose directory exists.

    A vector is known by where it lies in memory. So what was put must not be written to later, only replaced; and the
    vectors of the last checkpoint are held until the next, so that no other takes their place. Places of a checkpoint
    on disk from an earlier process are `taken`.
    """

    def __init__(self, path: Path, taken: Iterable[Place] = ()) -> None:
        self._path = path
        self._taken = list(taken)
        self._durable: dict[_Key, tuple[Place, NDArray[np.generic]]] = {}
        self._mark: Mark | None = None
        self._next: dict[_Key, tuple[Place, NDArray[np.generic]]] = {}

    def put(self, arrays: Arrays) -> dict[str, Place]:
        """Write what the last checkpoint does not hold, synced; the places of all, by name.

        Nothing of that checkpoint is touched before `commit`. What fails can be done again, with the same places. Where
        the file is gone, or another process wrote to it, all is written.
        """
        if self._mark != mark_of(self._path):
            self._durable = {}
        solid = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        keys = {name: _key(values) for name, values in solid.items()}
        new = {key: solid[name] for name, key in keys.items() if key not in self._durable}
        offsets = _free(self._taken, [values.nbytes for values in new.values()])
        fresh = {
            key: (Place(offset, values.nbytes, zlib.crc32(_bytes(values)), values.dtype.str, values.shape), values)
            for (key, values), offset in zip(new.items(), offsets, strict=True)
        }
        if fresh:
            self._write(fresh.values())
        self._next = {key: fresh[key] if key in fresh else self._durable[key] for key in keys.values()}
        return {name: self._next[key][0] for name, key in keys.items()}

    def commit(self) -> None:
        """The checkpoint that names the places of the last `put` has replaced the one before."""
        self._durable = self._next
        self._taken = [place for place, _ in self._durable.values()]

    def _write(self, vectors: Iterable[tuple[Place, NDArray[np.generic]]]) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)  # never cut: an archive may name it
        try:
            with os.fdopen(descriptor, "wb") as file:
                for place, values in vectors:
                    file.seek(place.offset)
                    file.write(_bytes(values))
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._mark = mark_of(self._path)  # also where it failed: what is there was written here, not by another


def mark_of(path: Path) -> Mark | None:
    """What tells a file from itself once it was written to, and from another of its name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_vectors(path: Path, places: Mapping[str, Place]) -> Arrays:
    """Read the vectors at `places`; ValueError if one of them is not what was written."""
    if not places:
        return {}
    arrays: Arrays = {}
    with path.open("rb") as file:
        for name, place in places.items():
            file.seek(place.offset)
            values = np.frombuffer(bytearray(file.read(place.length)), place.dtype).reshape(place.shape)
            if zlib.crc32(_bytes(values)) != place.checksum:
                raise ValueError(f"the checksum of {name!r} in {path.name} is another")
            arrays[name] = values
    return arrays


def _key(values: NDArray[np.generic]) -> _Key:
    return values.ctypes.data, values.dtype.str, values.shape


def _bytes(values: NDArray[np.generic]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _free(taken: Iterable[Place], lengths: Iterable[int]) -> Iterator[int]:
    """Offsets of vectors of `lengths` bytes, rising, each where nothing of `taken` lies and on pages of its own."""
    spans = iter(sorted({(place.offset, _pages(place.length)) for place in taken}))
    cursor, span = 0, next(spans, None)
    for length in map(_pages, lengths):
        while span is not None and span[0] - cursor < length:
            cursor, span = sum(span), next(spans, None)
        yield cursor
        cursor += length


def _pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


class CheckpointStore:
    """The checkpoint of a run: an archive at `path`, whose directory exists, and a `VectorFile` next to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: Mark | None = None
        self._vectors = VectorFile(_vectors_of(path))

    def write(self, record: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Write a checkpoint that replaces the one before; where that raises OSError, the one before stays.

        The `record` is for JSON. The `arrays` are held until the next call, and must not be written to after this one.
        """
        if self._mark != mark_of(self.path):  # another process writes there, too; what its checkpoint needs stays whole
            self._vectors = VectorFile(_vectors_of(self.path), _places_in(self.path))
        long = {name: values for name, values in arrays.items() if values.nbytes >= LONG}
        short = {name: values for name, values in arrays.items() if name not in long}
        places = {name: astuple(place) for name, place in self._vectors.put(long).items()}
        text = json.dumps({"format": FORMAT, NAMES: sorted(short), VECTORS: places, **record})
        self._replace({RECORD: np.frombuffer(text.encode(), np.uint8), **short})
        self._vectors.commit()

    def read(self) -> tuple[dict[str, Any], Arrays]:
        """Read what is there, and go on from it; CheckpointError if it is missing, damaged or of another format."""
        record, arrays = _read_archive(self.path)
        try:
            places = {name: Place.of(values) for name, values in record.pop(VECTORS).items()}
            arrays |= read_vectors(_vectors_of(self.path), places)
        except DAMAGE as error:
            raise damaged(self.path, error) from None
        self._vectors, self._mark = VectorFile(_vectors_of(self.path), places.values()), mark_of(self.path)
        return record, arrays

    def discard(self) -> None:
        """Remove what is there, if anything is."""
        self.path.unlink(missing_ok=True)
        _vectors_of(self.path).unlink(missing_ok=True)
        self._vectors, self._mark = VectorFile(_vectors_of(self.path)), None

    def _replace(self, arrays: Arrays) -> None:
        """Put an archive of `arrays` in the place of the one before."""
        with replacing(self.path, sync=True) as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            mark = mark_of(Path(file.name))  # before it has its name, under which another process may write
        self._mark = mark
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read_record(path: Path) -> dict[str, Any]:
    """The record of a checkpoint, without its vectors.

    Raises
    ------
    CheckpointError
        If there is none, or it is damaged, foreign or of another format.
    """
    record, _ = _read_archive(path)
    record.pop(VECTORS, None)
    return record


def _places_in(path: Path) -> list[Place]:
    try:
        return [Place.of(values) for values in _read_archive(path)[0][VECTORS].values()]
    except (CheckpointError, *DAMAGE):
        return []


def _vectors_of(path: Path) -> Path:
    return path.with_suffix(".vectors")


def _read_archive(path: Path) -> tuple[dict[str, Any], Arrays]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint there; start the run without resume, or name its directory")
    try:
        arrays: Arrays = read_npz(path)
        record = json.loads(arrays.pop(RECORD).tobytes())
    except DAMAGE as error:
        raise CheckpointError(f"{path}: damaged or no checkpoint of dqnfed-flwr ({error}); start anew") from None
    found = record if isinstance(record, dict) else {}
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {found.get('format')} of dqnfed-flwr {found.get('version')}; this is "
            f"{package_version()}, which reads format {FORMAT}. Continue with that version, or start anew"
        )
    try:
        missing = set(record.pop(NAMES)) ^ set(arrays)
    except DAMAGE as error:
        raise damaged(path, error) from None
    if missing:
        raise damaged(path, f"its list of arrays disagrees about {sorted(missing)[:4]}")
    return record, arrays


def damaged(path: Path, why: Exception | str) -> CheckpointError:
    """The error for a checkpoint whose content is not what was written; `why` is what reading it raised, or words."""
    words = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return CheckpointError(f"{path}: damaged ({words}); start anew")


def output_directory(settings: RunSettings) -> Path | None:
    """Where results go, None for nowhere."""
    return Path(settings.output).expanduser() if settings.output else None


def check_settings(found: Mapping[str, Any], wanted: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
    """Refuse to continue a run under other settings.

    Keys that are `ignored` have no effect on the run. The CheckpointError names each key that differs, and both values.
    A key that `found` lacks is a KeyError.
    """
    if missing := wanted.keys() - found.keys():
        raise KeyError(min(missing))
    free = {key for key, known in KNOWN.items() if known.on_resume}
    if wanted.get("privacy.epsilon"):  # the noise so far was made for these rounds
        free -= {"rounds"}
    keys = sorted((set(found) | set(wanted)) - {*free, *ignored})
    if changed := [
        f"{key}: {found.get(key)!r} then, {wanted.get(key)!r} now" for key in keys if found.get(key) != wanted.get(key)
    ]:
        raise CheckpointError("the checkpoint belongs to a run with other settings; " + "; ".join(changed))


@dataclass(frozen=True, slots=True)
class Provenance:
    """Data and code of a run, also of one that was interrupted in between."""

    fingerprint: str | None = None  # of the data, see `data.sources`; None where the server does not see them
    commits: tuple[str | None, ...] = ()  # of the code, in the order of the run; None for one that is not known
    frozen: str | None = None  # of what stays of the model on the nodes, see `Form.frozen`; None where they do not say

    def as_record(self) -> dict[str, Any]:
        """Return what a checkpoint and `run.json` hold of it."""
        return {"fingerprint": self.fingerprint, "commits": list(self.commits), "frozen": self.frozen}

    def continuing(self, record: Mapping[str, Any]) -> Provenance:
        """Return the provenance of a run that goes on here from the checkpoint of `record`.

        Other data raise CheckpointError, and a key that is missing KeyError.
        """
        then, frozen = record["fingerprint"], record["frozen"]
        if differ(then, self.fingerprint):
            raise CheckpointError(
                f"the checkpoint belongs to a run on other data; fingerprint: {then} then, {self.fingerprint} now. Put "
                "the data of then back, or start anew"
            )
        if differ(frozen, self.frozen):
            raise CheckpointError(
                "the checkpoint belongs to a run whose model had another frozen part; put its pretrained weights back "
                "on the nodes, or start anew"
            )
        commits = [*record["commits"]]
        commits += [commit for commit in self.commits if [commit] != commits[-1:]]
        return Provenance(self.fingerprint if then else None, tuple(commits), self.frozen)


def differ(then: str | None, now: str | None) -> bool:
    """Tell whether two fingerprints are of different data; one that is not known differs from none."""
    return then is not None and now is not None and then != now
