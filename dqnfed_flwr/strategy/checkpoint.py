"""Checkpoints: one file, written under a temporary name, synced and renamed, so that a reader sees all or nothing."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.version import package_version

FORMAT = 1
RECORD = "record"
NAMES = "arrays"
DAMAGE = (OSError, ValueError, TypeError, LookupError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading raises where a byte of the archive is not what it was."""
FREE_TO_CHANGE = (
    "rounds",
    "output",
    "resume",
    "deadline",
    "quorum",
    "retries",
    "checkpoint-every",
    "early-stopping",
    "metrics",
    "metrics-clients",
)
"""Settings that a resumed run may set anew."""
Arrays = dict[str, NDArray[np.generic]]


def write_checkpoint(path: Path, record: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write a checkpoint that replaces the one before; where it cannot be written that one stays.

    Parameters
    ----------
    path : Path
        The file; its directory exists.
    record : Mapping[str, Any]
        What JSON can hold.
    arrays : Mapping[str, NDArray]
        Vectors, by name.
    """
    text = json.dumps({"format": FORMAT, NAMES: sorted(arrays), **record}).encode()
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{RECORD: np.frombuffer(text, np.uint8)}, **arrays)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Read what `write_checkpoint` wrote.

    Raises
    ------
    CheckpointError
        If there is none, or it is damaged, foreign or of another format.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint there; start the run without resume, or name its directory")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
        record = json.loads(arrays.pop(RECORD).tobytes())
    except DAMAGE as error:
        raise CheckpointError(f"{path}: damaged or no checkpoint of dqnfed-flwr ({error}); start anew") from None
    found = record if isinstance(record, dict) else {}
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {found.get('format')} of dqnfed-flwr {found.get('version')}; this is "
            f"{package_version()}, which reads format {FORMAT}. Continue with that version, or start anew"
        )
    if missing := set(record.pop(NAMES, ())) ^ set(arrays):
        raise CheckpointError(f"{path}: damaged: its list of arrays disagrees about {sorted(missing)[:4]}; start anew")
    return record, arrays


def output_directory(settings: Settings) -> Path | None:
    """Where results go, None for nowhere."""
    return Path(settings.output).expanduser() if settings.output else None


def check_settings(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to continue a run under other settings.

    Raises
    ------
    CheckpointError
        Naming each key that differs, with both values.
    """
    keys = sorted((set(found) | set(wanted)) - set(FREE_TO_CHANGE))
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
