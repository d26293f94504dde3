"""Checkpoints: an archive, written under a temporary name, synced and renamed, so that a reader sees all or nothing.

Long vectors lie in a file beside it, which the archive names the places of.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import KNOWN, Settings, without_retired
from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.strategy.vectors import LONG, Arrays, Mark, Place, VectorFile, mark_of, read_vectors
from dqnfed_flwr.version import package_version

FORMAT = 2
READABLE = (1, 2)
"""Format 1 had all vectors in the archive."""
RECORD, NAMES, VECTORS = "record", "arrays", "vectors"
DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading raises where a byte of the archive is not what it was."""


class CheckpointStore:
    """The checkpoint of a run: an archive, and beside it the file of its long vectors.

    Parameters
    ----------
    path : Path
        The archive; its directory exists.

    Attributes
    ----------
    path : Path
        As given.

    Notes
    -----
    Vectors of the last checkpoint are held in memory until the next, see `vectors.VectorFile`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: Mark | None = None
        self._vectors = VectorFile(_beside(path))

    def write(self, record: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Write a checkpoint that replaces the one before; where it cannot be written that one stays.

        Parameters
        ----------
        record : Mapping[str, Any]
            What JSON can hold.
        arrays : Mapping[str, NDArray]
            By name; they are held until the next call, and must not be written to after this one.

        Raises
        ------
        OSError
            If there is no room, or the directory cannot be written.
        """
        if self._mark != mark_of(self.path):  # another process writes there, too; what its checkpoint needs stays whole
            self._vectors = VectorFile(_beside(self.path), _places_in(self.path))
        long = {name: values for name, values in arrays.items() if values.nbytes >= LONG}
        short = {name: values for name, values in arrays.items() if name not in long}
        places = {name: place.as_list() for name, place in self._vectors.put(long).items()}
        text = json.dumps({"format": FORMAT, NAMES: sorted(short), VECTORS: places, **record})
        self._replace({RECORD: np.frombuffer(text.encode(), np.uint8), **short})
        self._vectors.settle()

    def read(self) -> tuple[dict[str, Any], Arrays]:
        """Read what is there, and go on from it.

        Raises
        ------
        CheckpointError
            If there is none, or it is damaged, foreign or of another format.
        """
        record, arrays = _read_archive(self.path)
        try:
            places = {name: Place.of(values) for name, values in record.pop(VECTORS, {}).items()}
            arrays |= read_vectors(_beside(self.path), places)
        except DAMAGE as error:
            raise CheckpointError(f"{self.path}: damaged ({error}); start anew") from None
        self._vectors, self._mark = VectorFile(_beside(self.path), places.values()), mark_of(self.path)
        return record, arrays

    def discard(self) -> None:
        """Remove what is there, if anything is."""
        self.path.unlink(missing_ok=True)
        _beside(self.path).unlink(missing_ok=True)
        self._vectors, self._mark = VectorFile(_beside(self.path)), None

    def _replace(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Put an archive of `arrays` in the place of the one before."""
        temporary = self.path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            mark = mark_of(temporary)
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
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
        As `CheckpointStore.read`.
    """
    record, _ = _read_archive(path)
    record.pop(VECTORS, None)
    return record


def _places_in(path: Path) -> list[Place]:
    try:
        return [Place.of(values) for values in _read_archive(path)[0].get(VECTORS, {}).values()]
    except (CheckpointError, *DAMAGE):
        return []


def _beside(path: Path) -> Path:
    return path.with_suffix(".vectors")


def _read_archive(path: Path) -> tuple[dict[str, Any], Arrays]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint there; start the run without resume, or name its directory")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
        record = json.loads(arrays.pop(RECORD).tobytes())
    except DAMAGE as error:
        raise CheckpointError(f"{path}: damaged or no checkpoint of dqnfed-flwr ({error}); start anew") from None
    found = record if isinstance(record, dict) else {}
    if found.get("format") not in READABLE:
        raise CheckpointError(
            f"{path}: checkpoint format {found.get('format')} of dqnfed-flwr {found.get('version')}; this is "
            f"{package_version()}, which reads formats {READABLE}. Continue with that version, or start anew"
        )
    if missing := set(record.pop(NAMES, ())) ^ set(arrays):
        raise CheckpointError(f"{path}: damaged: its list of arrays disagrees about {sorted(missing)[:4]}; start anew")
    return record, arrays


def output_directory(settings: Settings) -> Path | None:
    """Where results go, None for nowhere."""
    return Path(settings.output).expanduser() if settings.output else None


def check_settings(found: Mapping[str, Any], wanted: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
    """Refuse to continue a run under other settings; one that `found` does not know yet had its default.

    Keys that are `ignored` have no effect on the run.

    Raises
    ------
    CheckpointError
        Naming each key that differs, with both values.
    """
    found = {**Settings().flat(), **without_retired(found)}
    free = {key for key, known in KNOWN.items() if known.on_resume}
    keys = sorted((set(found) | set(wanted)) - {*free, *ignored})
    if changed := [
        f"{key}: {found.get(key)!r} then, {wanted.get(key)!r} now" for key in keys if found.get(key) != wanted.get(key)
    ]:
        raise CheckpointError("the checkpoint belongs to a run with other settings; " + "; ".join(changed))


def group(prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Put names under `prefix`."""
    return {f"{prefix}/{name}": np.asarray(value) for name, value in arrays.items()}


def ungroup(prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Inverse of `group`."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}
