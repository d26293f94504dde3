"""Public image sets, fetched once through torchvision and kept as plain .npz files that every process can map."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data._torchvision import torchvision_datasets
from dqnfed_flwr.errors import DataError


@dataclass(frozen=True)
class _Source:
    """A torchvision class, its arguments, and what turns its arrays into upright images and labels from 0."""

    class_name: str
    arguments: tuple[tuple[str, str], ...] = ()
    transposed: bool = False
    first_label: int = 0


TORCHVISION_SETS = {
    "cifar10": _Source("CIFAR10"),
    "cifar100": _Source("CIFAR100"),
    "mnist": _Source("MNIST"),
    "fashion-mnist": _Source("FashionMNIST"),
    "emnist-letters": _Source("EMNIST", (("split", "letters"),), transposed=True, first_label=1),
}


def data_root() -> Path:
    """Folder of the kept sets: the environment variable DQNFED_DATA, or ~/.cache/dqnfed."""
    return Path(os.environ.get("DQNFED_DATA") or Path.home() / ".cache" / "dqnfed")


def torchvision_npz(name: str) -> Path:
    """Path of the .npz file of the set `name`, written on first use.

    torchvision is imported only for that first use: from its files under `data_root()` if they lie there, otherwise
    by download. The file appears whole or not at all, so that several processes may start at once.

    Raises
    ------
    DataError
        If the set is unknown, torchvision is missing, or the set cannot be downloaded.
    """
    source = TORCHVISION_SETS.get(name)
    if source is None:
        raise DataError(f"data: unknown torchvision set {name!r}; allowed: {', '.join(sorted(TORCHVISION_SETS))}")
    target = data_root() / f"{name}.npz"
    if not target.exists():
        _keep(target, _fetch(name, source))
    return target


def _fetch(name: str, source: _Source) -> dict[str, NDArray[Any]]:
    make: Callable[..., Any] = getattr(torchvision_datasets(), source.class_name)
    root = data_root()
    root.mkdir(parents=True, exist_ok=True)
    try:
        return _arrays(make, source, root, download=False)
    except RuntimeError:  # not there: fetch it into a folder of this process, out of the way of others
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            try:
                return _arrays(make, source, Path(scratch), download=True)
            except (OSError, RuntimeError) as error:
                raise DataError(
                    f"data: {name} is not in {root} and cannot be downloaded ({error}); connect to the internet once, "
                    f"put {name}.npz or torchvision's own files there, or set DQNFED_DATA to a folder that has them"
                ) from error


def _arrays(make: Callable[..., Any], source: _Source, root: Path, *, download: bool) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        data = make(root=str(root), train=part == "train", download=download, **dict(source.arguments))
        images = np.asarray(data.data, dtype=np.uint8)
        arrays[f"x_{part}"] = np.ascontiguousarray(images.swapaxes(1, 2)) if source.transposed else images
        arrays[f"y_{part}"] = np.asarray(data.targets, dtype=np.int64) - source.first_label
    return arrays


def _keep(target: Path, arrays: dict[str, NDArray[Any]]) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
        try:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).chmod(0o644)
    Path(file.name).replace(target)
