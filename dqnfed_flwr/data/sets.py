"""Whole data sets by name: digits, .npz files, torchvision's and published files, as arrays with labels from 0.

Which of them are on this machine, and what distinguishes a set from another one of the same name, is found without
reading samples.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np

from dqnfed_flwr.data.dataset import Array, DataSet, as_data_set
from dqnfed_flwr.data.forms import FORMS, NAMED, Named
from dqnfed_flwr.data.objects import held, is_object
from dqnfed_flwr.data.sources import is_source, source_npz
from dqnfed_flwr.data.store import checksums, data_root, map_kept, map_npz, readable
from dqnfed_flwr.data.targets import TargetForm
from dqnfed_flwr.data.torchvision_sets import DOWNLOADS, TORCHVISION_SETS, numbered_from_zero, torchvision_npz
from dqnfed_flwr.errors import DataError

TORCHVISION = "torchvision:"
FINGERPRINT_DIGITS = 16


def load_dataset(name: str, num_classes: int = 0, targets: TargetForm = "classes") -> DataSet:
    """Load a whole data set.

    Parameters
    ----------
    name : str
        `digits` (scikit-learn's 8x8 images), a path ending in .npz (see `read_arrays`), or a torchvision name: cifar10,
        cifar100, mnist, fashion-mnist, emnist-letters, with or without `torchvision:` before it; or published files by
        their form or name, see `dqnfed_flwr.data.sources`.
    num_classes : int
        Number of classes; 0 asks the data.
    targets : TargetForm
        The form of its y.

    Raises
    ------
    DataError
        If the set is unknown, missing or unfit: the text says what was found, what is allowed and what to do.
    """
    arrays = read_arrays(name)
    data = as_data_set(arrays, name, num_classes, targets)
    if targets == "classes" and not num_classes and "num_classes" not in arrays:
        _check_every_class(data)
    return data


def is_function(name: str) -> bool:
    """Tell whether `name` is a `module:function` of the user's."""
    if is_object(name):
        return not isinstance(held("data", name), Mapping)
    return ":" in name and not name.endswith(".npz") and not name.startswith(TORCHVISION) and not is_source(name)


def npz_file(name: str) -> Path | None:
    """The .npz file of the set `name`, made where it is kept here (DataError if it cannot be); None if it has none."""
    with readable():
        if is_source(name):
            return source_npz(name)
        if name.endswith(".npz"):
            return Path(name)
        if name.startswith(TORCHVISION) or name in TORCHVISION_SETS:
            return torchvision_npz(name.removeprefix(TORCHVISION))
        return None


def read_arrays(name: str) -> Mapping[str, Array]:
    """Read the arrays of the set `name`, unchecked.

    An .npz file holds `x_train` and `y_train`; it may hold `x_test` and `y_test`, `groups_train` and `groups_test`
    (integers naming writer, speaker, ...) with their names in `group_names`, `class_names`, and the single integer
    `num_classes`; `numbered` are columns of a table whose values this file alone numbers.
    DataError if the set is unknown or cannot be read.
    """
    if name == "digits":
        return _digits()
    if is_object(name) and not is_function(name):
        whole: Mapping[str, Array] = held("data", name)
        return whole
    if (path := npz_file(name)) is not None:
        arrays = (map_npz if name.endswith(".npz") else map_kept)(path)
        public = name.removeprefix(TORCHVISION)
        return numbered_from_zero(public, arrays) if public in TORCHVISION_SETS else arrays
    check_name(name)
    raise DataError(f"data: {name!r} is a function, which gives the part of one client; use load_client")


def check_name(name: str) -> None:
    """Raise DataError if `data` cannot be `name`; whether its files are there is another question."""
    public = name.startswith(TORCHVISION) or name in TORCHVISION_SETS
    path = Path(name.partition(",")[0])
    if not is_source(name) and (table := next((end for end in path.suffixes if end in (".csv", ".parquet")), "")):
        raise DataError(f"data: {name!r} is a table; write {table[1:]}:{path},label=COLUMN")
    named = name == "digits" or name.endswith(".npz") or public or is_source(name)
    if not (named or is_object(name) or is_function(name)):
        raise DataError(
            f"data: unknown set {name!r}; allowed: digits, {', '.join(sorted(TORCHVISION_SETS))}, {', '.join(NAMED)}, "
            f"a path ending in .npz, FORM:PATH with one of the forms {', '.join(FORMS)}, or module:function"
        )


def _digits() -> dict[str, Array]:
    try:
        digits = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError("data: digits come with scikit-learn, which is not installed; install scikit-learn") from error
    return {"x_train": np.rint(digits.images * (255 / 16)).astype(np.uint8), "y_train": digits.target}


def _check_every_class(data: DataSet) -> None:
    absent = np.flatnonzero(np.bincount(data.y_train, minlength=data.num_classes) == 0)
    if len(absent):
        raise DataError(
            f"data: {data.name}: no training sample of the classes {absent[:10].tolist()} (labels found go from "
            f"{data.y_train.min()} to {data.y_train.max()}); number the classes from 0 without gaps, or state how many "
            "there are in num-classes or in the file"
        )


@dataclass(frozen=True)
class Availability:
    """A set: its name, whether it is there, and where; or what to do to have it."""

    name: str
    state: str
    where: str


def catalogue() -> Iterator[Availability]:
    """All sets with a name, those that come by themselves first."""
    yield Availability("digits", "yes", "comes with scikit-learn")
    with readable():
        yield from (_kept(name) or _public(name) for name in sorted(TORCHVISION_SETS))
        yield from (_kept(name) or _to_be_put(name, named) for name, named in NAMED.items())


def npz_of(name: str) -> Path:
    """Path of a set's arrays, fetched or decoded where that is still to be done.

    Raises
    ------
    DataError
        If the set is unknown, or cannot be had.
    """
    if not name.endswith(".npz") and (path := npz_file(name)) is not None:
        if is_source(name):  # the public sets are checked wherever they are asked for
            map_kept(path)
        return path
    raise DataError(
        f"data: {name!r} is nothing to fetch or decode; allowed: {', '.join(sorted(TORCHVISION_SETS))}, "
        f"{', '.join(NAMED)}, or FORM:PATH with one of the forms {', '.join(FORMS)}"
    )


def _kept(name: str) -> Availability | None:
    file = data_root() / f"{name}.npz"
    if not file.exists():
        return None
    try:
        checksums(file)
    except DataError:
        return Availability(name, "damaged", f"{file}: delete it, and it is made anew")
    return Availability(name, "yes", str(file))


def _public(name: str) -> Availability:
    begun = any((data_root() / DOWNLOADS / name).glob("*"))
    return Availability(name, "begun" if begun else "no", f"fetched on first use, or by: dqnfed data fetch {name}")


def _to_be_put(name: str, named: Named) -> Availability:
    root = data_root()
    lies = [root / place for _, place in named.candidates if (root / place).exists()]
    if lies:
        return Availability(name, "to be decoded", str(lies[0]))
    return Availability(name, "no", f"put {named.put.format(root=root)}")


def fingerprint(name: str) -> str | None:
    """Tell the contents of the set `name` in 16 hexadecimal digits.

    It is made of the names, sizes and CRC-32 of all arrays, which the directory of an .npz file lists: no sample is
    read, and it does not matter where the file lies, when it was written, or whether it is compressed. Sets of other
    forms have such a file, see `npz_file`. How samples are dealt out is not in it: settings say that. A function of the
    user's has none, for it may give other data at every call.

    Raises
    ------
    DataError
        If the set is unknown, or its file missing or unfit.
    """
    if is_function(name):
        return None
    path = npz_file(name)
    found = checksums(path) if path is not None else _sums_of(name)
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:FINGERPRINT_DIGITS]


def _sums_of(name: str) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of the arrays of a set that has no file."""
    return _sums(read_arrays(name)) if is_object(name) else _of_package(name)


@cache
def _of_package(name: str) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of the arrays of a set that an installed package brings."""
    return _sums(read_arrays(name))


def _sums(arrays: Mapping[str, Array]) -> dict[str, tuple[int, int]]:
    contents = {key: values.tobytes() for key, values in arrays.items()}
    return {key: (len(content), zlib.crc32(content)) for key, content in contents.items()}
