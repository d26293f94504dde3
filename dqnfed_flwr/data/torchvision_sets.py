"""Public image sets, fetched once through torchvision and kept as plain .npz files that every process can map.

torchvision's data sets are imported also where its compiled operators do not fit the installed torch. A torchvision
wheel built for CUDA next to a CPU-only torch cannot load its operator library; its import then stops at the operators
that it registers fake kernels for, and cannot be repeated in the process. Their schemas, declared before that first
import, are enough for data sets. Where the library loads, nothing is declared.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.store import PublishedFile, console, data_root, fetch, kept, map_kept, md5_of
from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a schema lives as long as the object that declared it
DOWNLOADS = "downloads"
"""Folder of archives until they are unpacked."""


def torchvision_datasets() -> ModuleType:
    """Import `torchvision.datasets`; DataError if torchvision is not installed."""
    if "torchvision" not in sys.modules:
        spec = find_spec("torchvision")
        if spec is None or spec.origin is None:
            raise DataError(
                "data: this set comes through torchvision, which is not installed; install torchvision, or name an "
                ".npz file"
            )
        if not _operators_load(Path(spec.origin).parent):
            _declare_operators()
    return import_module("torchvision.datasets")


def _operators_load(package: Path) -> bool:
    import torch

    libraries = [path for path in package.glob("_C*") if path.suffix in {".so", ".pyd", ".dylib"}]
    try:
        for path in libraries:
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return bool(libraries)


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)


@dataclass(frozen=True)
class Size:
    """Images of the two parts of a set, the shape of one as it is kept, and its classes, all of them in both parts."""

    train: int
    test: int
    image: tuple[int, ...]
    classes: int

    def fault(self, arrays: Mapping[str, NDArray[Any]]) -> str:
        """Say in what these arrays by name differ from the published set; nothing where they do not."""
        for part, samples in (("train", self.train), ("test", self.test)):
            for key, shape in ((f"x_{part}", (samples, *self.image)), (f"y_{part}", (samples,))):
                if key not in arrays:
                    return f"no array {key}"
                if arrays[key].shape != shape:
                    return f"{key} has shape {list(arrays[key].shape)}, published is {list(shape)}"
            labels = np.unique(arrays[f"y_{part}"])
            if not np.array_equal(labels, np.arange(self.classes)):
                found = f"{len(labels)} different labels, {labels[0]} to {labels[-1]}"
                return f"y_{part} has {found}, published are all of 0 to {self.classes - 1}"
        return ""


@dataclass(frozen=True)
class _Source:
    """A torchvision class, its arguments, and what turns its arrays into upright images and labels from 0.

    `size` is how much was published, `prefixes` are those of its files where they are of MNIST's form.
    """

    class_name: str
    size: Size
    prefixes: tuple[str, str] | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    transposed: bool = False
    first_label: int = 0


_MNIST = Size(60_000, 10_000, (28, 28), 10)
TORCHVISION_SETS = {
    "cifar10": _Source("CIFAR10", Size(50_000, 10_000, (32, 32, 3), 10)),
    "cifar100": _Source("CIFAR100", Size(50_000, 10_000, (32, 32, 3), 100)),
    "mnist": _Source("MNIST", _MNIST, ("train", "t10k")),
    "fashion-mnist": _Source("FashionMNIST", _MNIST, ("train", "t10k")),
    "emnist-letters": _Source(
        "EMNIST",
        Size(124_800, 20_800, (28, 28), 26),
        ("emnist-letters-train", "emnist-letters-test"),
        (("split", "letters"),),
        transposed=True,
        first_label=1,
    ),
}


def torchvision_npz(name: str) -> Path:
    """Path of the .npz file of the set `name`, written on first use.

    torchvision is imported only for that first use: from its files under `data_root()` if they lie there, otherwise
    from its archives, which are fetched unless they lie there. The file appears whole or not at all, and one of several
    processes makes it. It is the published set: what differs in size or labels is not kept, and not used where it lies.
    DataError if the set is unknown, torchvision is missing, files are corrupt or others, or it cannot be fetched.
    """
    source = TORCHVISION_SETS.get(name)
    if source is None:
        raise DataError(f"data: unknown torchvision set {name!r}; allowed: {', '.join(sorted(TORCHVISION_SETS))}")
    target = data_root() / f"{name}.npz"
    if target.exists():
        _check_kept(name, target)
    else:
        kept(target, lambda scratch: _unpacked(name, source, scratch))
        shutil.rmtree(data_root() / DOWNLOADS / name, ignore_errors=True)
        console().print(f"{name}: kept in {target}", markup=False, soft_wrap=True)
    return target


def numbered_from_zero(name: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of the set `name`, with labels from 0 where its .npz file has the numbers that were published."""
    first = TORCHVISION_SETS[name].first_label
    if not first or "y_train" not in arrays or arrays["y_train"].min(initial=first) < first:
        return dict(arrays)
    return {key: values - first if key in ("y_train", "y_test") else values for key, values in arrays.items()}


def _check_kept(name: str, target: Path) -> None:
    fault = TORCHVISION_SETS[name].size.fault(numbered_from_zero(name, map_kept(target)))
    if fault:
        raise DataError(
            f"data: {target} is not {name} as published: {fault}; delete this file, and it is made anew; a set of your "
            f"own goes by its path, data={target}"
        )


def archives(make: Any) -> Iterator[tuple[str, PublishedFile]]:
    """Archives of a torchvision class, as it names them itself, each with its folder below the root."""
    place = f"{make.__name__}/raw" if hasattr(make, "resources") else ""
    if hasattr(make, "url"):
        name = getattr(make, "filename", make.url.rpartition("/")[2])
        yield place, PublishedFile(name, (make.url,), getattr(make, "tgz_md5", "") or make.md5)
        return
    for name, md5 in getattr(make, "resources", ()):
        yield place, PublishedFile(name, tuple(mirror + name for mirror in make.mirrors), md5)


def _unpacked(name: str, source: _Source, scratch: Path) -> dict[str, NDArray[Any]]:
    """Arrays from torchvision's files; where there are none, from its archives, by way of an empty folder."""
    make: Callable[..., Any] = getattr(torchvision_datasets(), source.class_name)
    root = data_root()
    place = root / str(getattr(make, "base_folder", f"{make.__name__}/raw"))
    _check_unpacked(name, make, source, place)
    try:
        arrays = _arrays(make, source, root, download=False)
        fault = source.size.fault(arrays)
    except RuntimeError:  # not there
        return _from_archives(make, name, source, scratch)
    except (ValueError, TypeError, EOFError, AssertionError) as error:
        fault = str(error) or type(error).__name__
    if fault:
        raise DataError(
            f"data: torchvision's files of {name} in {place} are not the published ones ({fault}); "
            "delete them and try again, and the set is fetched anew, or put whole ones in their place"
        )
    return arrays


def _check_unpacked(name: str, make: Any, source: _Source, place: Path) -> None:
    """Compare those of a set's unpacked files that lie in `place` with the published ones.

    DataError names every file that is cut short, or another. Archives have a published MD5 sum, and so have CIFAR's
    unpacked files. Those of MNIST's form have none, and are checked by their sizes.
    """
    faults = list(_idx_faults(place, source.prefixes, source.size) if source.prefixes else _md5_faults(place, make))
    if faults:
        raise DataError(
            f"data: {name}: {'; '.join(faults)}: not the published files, perhaps cut short; delete them and try "
            "again, and the set is fetched anew, or put whole ones in their place"
        )


def _idx_faults(place: Path, prefixes: tuple[str, str], size: Size) -> Iterator[str]:
    """Files of MNIST's form whose header or length is another."""
    for prefix, samples in zip(prefixes, (size.train, size.test), strict=True):
        for kind, shape in (("images-idx3", (samples, *size.image)), ("labels-idx1", (samples,))):
            file = place / f"{prefix}-{kind}-ubyte"
            if not file.exists():
                continue
            header = bytes((0, 0, 8, len(shape))) + b"".join(side.to_bytes(4, "big") for side in shape)
            whole, found = len(header) + math.prod(shape), file.stat().st_size
            if found != whole:
                yield f"{file} has {found:,} bytes, published are {whole:,}"
                continue
            with file.open("rb") as content:
                if content.read(len(header)) != header:
                    yield f"{file} does not begin as a file of shape {list(shape)} does"


def _md5_faults(place: Path, make: Any) -> Iterator[str]:
    """Files of CIFAR's form whose sum, which their torchvision class names, is another."""
    named = [*getattr(make, "train_list", ()), *getattr(make, "test_list", ())]
    meta = getattr(make, "meta", None)
    for name, published in [*named, (meta["filename"], meta["md5"])] if meta else named:
        file = place / name
        if file.exists() and (found := md5_of(file)) != published:
            yield f"{file} has MD5 {found}, published is {published}"


def _from_archives(make: Callable[..., Any], name: str, source: _Source, scratch: Path) -> dict[str, NDArray[Any]]:
    root = data_root()
    _place_archives(make, name, root, scratch)
    try:
        arrays = _arrays(make, source, scratch, download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"data: {name} is not in {root} and cannot be downloaded ({error}); connect to the internet once, put "
            f"{name}.npz or torchvision's own files there, or set DQNFED_DATA to a folder that has them"
        ) from error
    fault = source.size.fault(arrays)
    if fault:
        raise DataError(
            f"data: what torchvision unpacked is not {name} as published ({fault}); install another release of "
            f"torchvision, or put a whole {name}.npz into {root}"
        )
    return arrays


def _place_archives(make: Any, name: str, root: Path, scratch: Path) -> None:
    """Link every archive to where torchvision looks for it below `scratch`; fetch those that are not there."""
    for place, published in archives(make):
        file = root / place / published.name
        if file.exists():
            published.check(file)
        else:
            file = fetch(published, root / DOWNLOADS / name)
        (scratch / place).mkdir(parents=True, exist_ok=True)
        (scratch / place / published.name).symlink_to(file.absolute())


def _arrays(make: Callable[..., Any], source: _Source, root: Path, *, download: bool) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        data = make(root=str(root), train=part == "train", download=download, **dict(source.arguments))
        images = np.asarray(data.data, dtype=np.uint8)
        arrays[f"x_{part}"] = np.ascontiguousarray(images.swapaxes(1, 2)) if source.transposed else images
        arrays[f"y_{part}"] = np.asarray(data.targets, dtype=np.int64) - source.first_label
    return arrays
