"""Whole data sets: digits, .npz files and torchvision's, all as arrays with labels from 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.inputs import sample_shape
from dqnfed_flwr.data.npz import map_kept, map_npz
from dqnfed_flwr.data.sources import FORMS, NAMED, is_source, source_npz
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS, numbered_from_zero, torchvision_npz
from dqnfed_flwr.errors import DataError

Array = NDArray[Any]
IntArray = NDArray[np.int64]
ARRAYS = ("x_train", "y_train", "x_test", "y_test", "groups_train", "groups_test", "group_names", "num_classes")
TORCHVISION = "torchvision:"


@dataclass(frozen=True)
class DataSet:
    """A whole data set; its samples may be a read-only memory map.

    Attributes
    ----------
    x_train, x_test : Array
        uint8 images [N, H, W] or [N, H, W, C], float features [N, ...] or integer tokens [N, L]; `x_test` may be None.
    y_train, y_test : IntArray
        Labels [N] from 0 to `num_classes` - 1.
    groups_train, groups_test : IntArray | None
        Natural group (writer, speaker) of each sample [N].
    num_classes : int
        As stated by the caller or the file, otherwise one more than the largest label.
    name : str
        As asked for.
    group_names : Array | None
        Text [G]; group g is named `group_names[g]`.
    """

    x_train: Array
    y_train: IntArray
    x_test: Array | None
    y_test: IntArray | None
    groups_train: IntArray | None
    groups_test: IntArray | None
    num_classes: int
    name: str
    group_names: Array | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model sees it, see `dqnfed_flwr.data.inputs`."""
        return sample_shape(self.x_train)


def load_dataset(name: str, num_classes: int = 0) -> DataSet:
    """Load a whole data set.

    Parameters
    ----------
    name : str
        `digits` (scikit-learn's 8x8 images), a path ending in .npz (see `read_arrays`), or a torchvision name: cifar10,
        cifar100, mnist, fashion-mnist, emnist-letters, with or without `torchvision:` before it; or published files by
        their form or name, see `dqnfed_flwr.data.sources`.
    num_classes : int
        Number of classes; 0 asks the data.

    Raises
    ------
    DataError
        If the set is unknown, missing or unfit: the text says what was found, what is allowed and what to do.
    """
    arrays = read_arrays(name)
    data = as_data_set(arrays, name, num_classes)
    if not num_classes and "num_classes" not in arrays:
        _check_every_class(data)
    return data


def is_function(name: str) -> bool:
    """Tell whether `name` is a `module:function` of the user's."""
    return ":" in name and not name.endswith(".npz") and not name.startswith(TORCHVISION) and not is_source(name)


def npz_file(name: str) -> Path | None:
    """The .npz file that the set `name` is read from, made where it is kept here; None if it is read from none.

    Raises
    ------
    DataError
        If it cannot be made.
    """
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
    (integers naming writer, speaker, ...) with their names in `group_names`, and the single integer `num_classes`.

    Raises
    ------
    DataError
        If the set is unknown or cannot be read.
    """
    if name == "digits":
        return _digits()
    if is_source(name):
        return map_kept(source_npz(name))
    if name.endswith(".npz"):
        return map_npz(name)
    if name.startswith(TORCHVISION) or name in TORCHVISION_SETS:
        name = name.removeprefix(TORCHVISION)
        return numbered_from_zero(name, map_kept(torchvision_npz(name)))
    if is_function(name):
        raise DataError(f"data: {name!r} is a function, which gives the part of one client; use load_client")
    raise DataError(
        f"data: unknown set {name!r}; allowed: digits, {', '.join(sorted(TORCHVISION_SETS))}, {', '.join(NAMED)}, a "
        f"path ending in .npz, FORM:PATH with one of the forms {', '.join(FORMS)}, or module:function"
    )


def _digits() -> dict[str, Array]:
    try:
        digits = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError("data: digits come with scikit-learn, which is not installed; install scikit-learn") from error
    return {"x_train": np.rint(digits.images * (255 / 16)).astype(np.uint8), "y_train": digits.target}


def as_data_set(arrays: Mapping[str, Array], name: str, num_classes: int = 0) -> DataSet:
    """Check arrays by name (see `read_arrays`) and put them together.

    Raises
    ------
    DataError
        For a missing or unknown key, lengths or shapes that differ, unfit samples or labels.
    """
    unknown = sorted(set(arrays) - set(ARRAYS))
    missing = [key for key in ("x_train", "y_train") if key not in arrays]
    missing += [key for key in ("x_test", "y_test") if ("x_test" in arrays or "y_test" in arrays) and key not in arrays]
    if unknown or missing:
        raise DataError(
            f"data: {name} lacks {missing or 'nothing'} and has the unknown arrays {unknown or 'none'}; needed are "
            f"x_train and y_train, x_test and y_test come together, and all that is allowed is {', '.join(ARRAYS)}"
        )
    parts = ("train", "test") if "x_test" in arrays else ("train",)
    labels = {part: _numbers(arrays, f"y_{part}", f"x_{part}", name) for part in parts}
    grouped = [part for part in parts if f"groups_{part}" in arrays]
    groups = {part: _numbers(arrays, f"groups_{part}", f"x_{part}", name) for part in grouped}
    _check_samples(arrays, parts, name)
    return DataSet(
        x_train=arrays["x_train"],
        y_train=labels["train"],
        x_test=arrays.get("x_test"),
        y_test=labels.get("test"),
        groups_train=groups.get("train"),
        groups_test=groups.get("test"),
        num_classes=_class_count(arrays, labels, name, num_classes),
        name=name,
        group_names=_group_names(arrays, groups.values(), name),
    )


def _group_names(arrays: Mapping[str, Array], groups: Iterable[IntArray], name: str) -> Array | None:
    names = arrays.get("group_names")
    if names is None:
        return None
    needed = 1 + max((int(numbers.max()) for numbers in groups), default=-1)
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) < needed:
        raise DataError(
            f"data: {name}: group_names has dtype {names.dtype} and shape {names.shape}; it must be a text for each of "
            f"the groups 0..{needed - 1}"
        )
    return names


def _numbers(arrays: Mapping[str, Array], key: str, samples: str, name: str) -> IntArray:
    """Labels or groups as int64 [N], checked against the samples they belong to."""
    values, count = arrays[key], len(arrays[samples]) if arrays[samples].ndim else 0
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise DataError(
            f"data: {name}: {key} has dtype {values.dtype} and shape {values.shape}; it must be one integer a sample, "
            "[N]; store class numbers from 0, not one-hot rows, fractions or text"
        )
    if len(values) != count or not count:
        raise DataError(
            f"data: {name}: {samples} has {count} samples and {key} {len(values)}; they must be equal and above 0; "
            "leave out an empty test part"
        )
    if values.min() < 0:
        raise DataError(f"data: {name}: {key} goes down to {values.min()}; number from 0")
    return np.array(values, dtype=np.int64)


def _check_samples(arrays: Mapping[str, Array], parts: tuple[str, ...], name: str) -> None:
    kinds = {part: (sample_shape(arrays[f"x_{part}"]), arrays[f"x_{part}"].dtype) for part in parts}
    if len(set(kinds.values())) > 1:
        raise DataError(f"data: {name}: samples of the two parts differ in shape or dtype: {kinds}; store them alike")


def _class_count(arrays: Mapping[str, Array], labels: Mapping[str, IntArray], name: str, stated: int) -> int:
    found = 1 + max(int(values.max()) for values in labels.values())
    if not stated and "num_classes" in arrays:
        count = arrays["num_classes"]
        if count.shape != () or not np.issubdtype(count.dtype, np.integer):
            raise DataError(f"data: {name}: num_classes must be a single integer, found {count!r}")
        stated = int(count)
    if stated and stated < found:
        raise DataError(
            f"data: {name}: labels go up to {found - 1}, but {stated} classes are stated; labels run from 0 to "
            "num-classes - 1; relabel the data or raise num-classes"
        )
    return stated or found


def _check_every_class(data: DataSet) -> None:
    absent = np.flatnonzero(np.bincount(data.y_train, minlength=data.num_classes) == 0)
    if len(absent):
        raise DataError(
            f"data: {data.name}: no training sample of the classes {absent[:10].tolist()} (labels found go from "
            f"{data.y_train.min()} to {data.y_train.max()}); number the classes from 0 without gaps, or state how many "
            "there are in num-classes or in the file"
        )
