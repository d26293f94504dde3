"""What is known of a public image set before it is read: how many images of which size, and how large its files are.

Archives have a published MD5 sum, and so have CIFAR's unpacked files. Those of MNIST's form have none, and are checked
by their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.download import md5_of
from dqnfed_flwr.errors import DataError


@dataclass(frozen=True)
class Size:
    """How much of what a set holds.

    Attributes
    ----------
    train, test : int
        Images of the two parts.
    image : tuple[int, ...]
        Shape of one, as it is kept.
    classes : int
        Both parts have all of them, numbered from 0.
    """

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


def check_unpacked(name: str, make: Any, prefixes: tuple[str, str] | None, size: Size, root: Path) -> None:
    """Compare those of a set's unpacked files that lie below `root` with the published ones.

    Parameters
    ----------
    name : str
        Of the set.
    make : Any
        Its torchvision class.
    prefixes : tuple[str, str] | None
        How the names of the training and of the test files begin, where they are of MNIST's form.
    size : Size
        Of the set.
    root : Path
        Where torchvision looks for its folder.

    Raises
    ------
    DataError
        Naming every file that is cut short, or another.
    """
    place = root / unpacked_place(make)
    faults = list(_idx_faults(place, prefixes, size) if prefixes else _md5_faults(place, make))
    if faults:
        raise DataError(
            f"data: {name}: {'; '.join(faults)}: not the published files, perhaps cut short; delete them and try "
            "again, and the set is fetched anew, or put whole ones in their place"
        )


def unpacked_place(make: Any) -> str:
    """Folder of a torchvision class's unpacked files, below its root."""
    return str(getattr(make, "base_folder", f"{make.__name__}/raw"))


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
            elif _beginning(file, len(header)) != header:
                yield f"{file} does not begin as a file of shape {list(shape)} does"


def _beginning(file: Path, length: int) -> bytes:
    with file.open("rb") as content:
        return content.read(length)


def _md5_faults(place: Path, make: Any) -> Iterator[str]:
    """Files of CIFAR's form whose sum, which their torchvision class names, is another."""
    named = [*getattr(make, "train_list", ()), *getattr(make, "test_list", ())]
    meta = getattr(make, "meta", None)
    for name, published in [*named, (meta["filename"], meta["md5"])] if meta else named:
        file = place / name
        if file.exists() and (found := md5_of(file)) != published:
            yield f"{file} has MD5 {found}, published is {published}"
