"""A whole data set in arrays, checked, whatever file or function they come from, and what a model sees of it.

| stored | model input | shape of one sample |
|---|---|---|
| uint8 images [N, H, W] or [N, H, W, C] | channels first, 0..255 scaled to [-1, 1] | (1, H, W) or (C, H, W) |
| float features [N, ...] | as they are | (...) |
| integer tokens [N, L] | int64 | (L,) |

What a task wants to hear about each sample is the form of its targets `y`:

| form | stored | the model's outputs |
|---|---|---|
| `classes` | integers [N] from 0 | one logit a class |
| `values` | numbers [N] or [N, T] | T values |
| `flags` | 0 or 1, [N, C] | one logit a flag |
| `places` | integers [N, ...] from 0, -1 where nothing is asked | one logit a class at every place |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.number_text import value_of
from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
IntArray = NDArray[np.int64]
TargetForm = Literal["classes", "values", "flags", "places"]
IGNORED = -1  # a place without a class
_MEANT: Mapping[TargetForm, str] = {
    "values": "finite numbers, one or a row of them a sample, [N] or [N, T]",
    "flags": "0 or 1 for each flag, [N, C]",
    "places": "integers, [N, ...], from 0, or -1 where nothing is asked",
}
ARRAYS = (
    *("x_train", "y_train", "x_test", "y_test", "groups_train", "groups_test"),
    *("group_names", "class_names", "num_classes", "numbered", "notes", "only_values"),
)
MOST_CLASSES = 1_000_000
"""More are taken for something else than classes, such as identities."""
MOST_COLOURS = 4
"""Channels of common images; more are taken where the axes leave no doubt, as of satellites."""


@dataclass(frozen=True)
class DataSet:
    """A whole data set; its samples may be a read-only memory map.

    Attributes
    ----------
    x_train, x_test : Array
        uint8 images [N, H, W] or [N, H, W, C], float features [N, ...] or integer tokens [N, L]; `x_test` may be None.
    y_train, y_test : Array
        Targets: labels [N] from 0 to `num_classes` - 1, or what `targets` says.
    groups_train, groups_test : IntArray | None
        Natural group (writer, speaker) of each sample [N].
    num_classes : int
        As stated by the caller or the file, otherwise one more than the largest label; for other targets the outputs
        that they ask for.
    name : str
        As asked for.
    group_names, class_names : Array | None
        Text [G], [C]; group g is named `group_names[g]`.
    targets : TargetForm
        The form of `y_train` and `y_test`.
    """

    x_train: Array
    y_train: Array
    x_test: Array | None
    y_test: Array | None
    groups_train: IntArray | None
    groups_test: IntArray | None
    num_classes: int
    name: str
    group_names: Array | None = None
    class_names: Array | None = None
    targets: TargetForm = "classes"

    @property
    def strata_train(self) -> IntArray:
        """Classes [N] by which training samples are dealt out and split."""
        return strata(self.y_train, self.targets)

    @property
    def strata_test(self) -> IntArray | None:
        """The same of the test part."""
        return None if self.y_test is None else strata(self.y_test, self.targets)


def as_data_set(
    arrays: Mapping[str, Array], name: str, num_classes: int = 0, targets: TargetForm = "classes"
) -> DataSet:
    """Check arrays by name (see `Source.arrays`) and put them together; `targets` is the form of the y.

    DataError for a missing or unknown key, lengths or shapes that differ, unfit samples or labels.
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
    labels = {part: _targets(arrays, part, name, targets) for part in parts}
    grouped = [part for part in parts if f"groups_{part}" in arrays]
    groups = {part: _numbers(arrays, f"groups_{part}", f"x_{part}", name) for part in grouped}
    _check_samples(arrays, parts, name)
    named = _class_count(arrays, labels, name, 0) if targets == "classes" else 0
    return DataSet(
        x_train=arrays["x_train"],
        y_train=labels["train"],
        x_test=arrays.get("x_test"),
        y_test=labels.get("test"),
        groups_train=groups.get("train"),
        groups_test=groups.get("test"),
        num_classes=_outputs(arrays, labels, name, num_classes, targets),
        name=name,
        group_names=_names(arrays, "group_names", "groups", _most(groups.values()), name),
        class_names=_names(arrays, "class_names", "classes", named, name),
        targets=targets,
    )


def _most(numbered: Iterable[IntArray]) -> int:
    """How many groups or classes these numbers need."""
    return 1 + max((int(numbers.max()) for numbers in numbered), default=-1)


def _targets(arrays: Mapping[str, Array], part: str, name: str, form: TargetForm) -> Array:
    """The targets of a part, checked against its samples."""
    if form == "classes":
        if "only_values" in arrays:  # numbers of a table that are no classes, and why
            raise DataError(str(arrays["only_values"]))
        return _numbers(arrays, f"y_{part}", f"x_{part}", name)
    values, samples = arrays[f"y_{part}"], arrays[f"x_{part}"]
    _check_length(values, samples, f"y_{part}", f"x_{part}", name)
    if form == "values" and "class_names" in arrays and values.ndim == 1 and values.dtype.kind in "iu":
        values = named_values(values, arrays["class_names"], name)
    return checked_targets(values, form, f"y_{part}", name)


def _outputs(
    arrays: Mapping[str, Array], targets: Mapping[str, Array], name: str, stated: int, form: TargetForm
) -> int:
    """How many outputs the model needs: `stated`, or what the targets ask for."""
    if form == "classes":
        return _class_count(arrays, targets, name, stated)
    found = max(outputs_of(y, form) for y in targets.values())
    if stated and (stated < found or (stated > found and form != "places")):
        raise DataError(f"data: {name}: the targets ask for {found} outputs, num-classes is {stated}; leave it at 0")
    return stated or found


def _names(arrays: Mapping[str, Array], key: str, of: str, needed: int, name: str) -> Array | None:
    """Names of so many groups or classes, text [G] or [C]."""
    names = arrays.get(key)
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) < needed:
        raise DataError(
            f"data: {name}: {key} has dtype {names.dtype} and shape {names.shape}; it must be a text for each of "
            f"the {of} 0..{needed - 1}"
        )
    return names


def _numbers(arrays: Mapping[str, Array], key: str, samples: str, name: str) -> IntArray:
    """Labels or groups as int64 [N], checked against the samples they belong to."""
    values = arrays[key]
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise DataError(
            f"data: {name}: {key} has dtype {values.dtype} and shape {values.shape}; it must be one integer a sample, "
            f"[N]; store class numbers from 0, not one-hot rows, fractions or text{_if_numbers(values)}"
        )
    _check_length(values, arrays[samples], key, samples, name)
    low, high = int(values.min()), int(values.max())
    if low < 0:
        raise DataError(f"data: {name}: {key} goes down to {low}; number from 0")
    if high > np.iinfo(np.int64).max:
        raise DataError(f"data: {name}: {key} goes up to {high}, more than 64 bits with a sign hold; number from 0")
    return np.array(values, dtype=np.int64)


def _if_numbers(values: Array) -> str:
    """What is to be done where fractions are given for classes."""
    whole = values.dtype.kind != "f" or np.array_equal(values, np.rint(values))
    if whole or values.ndim != 1:
        return ""
    found = values[values != np.rint(values)][0]
    return f"; found {found:g}: to learn numbers, set task to regression"


def _check_length(values: Array, samples: Array, key: str, of: str, name: str) -> None:
    count, found = (len(array) if array.ndim else 0 for array in (samples, values))
    if found != count or not count:
        raise DataError(
            f"data: {name}: {of} has {count} samples and {key} {found}; they must be equal and above 0; "
            "leave out an empty test part"
        )


def _check_samples(arrays: Mapping[str, Array], parts: tuple[str, ...], name: str) -> None:
    kinds = {part: (sample_shape(arrays[f"x_{part}"]), arrays[f"x_{part}"].dtype) for part in parts}
    if len(set(kinds.values())) > 1:
        raise DataError(f"data: {name}: samples of the two parts differ in shape or dtype: {kinds}; store them alike")


def _class_count(arrays: Mapping[str, Array], labels: Mapping[str, IntArray], name: str, stated: int) -> int:
    found = _most(labels.values())
    if not stated and "num_classes" in arrays:
        count = arrays["num_classes"]
        if count.shape != () or not np.issubdtype(count.dtype, np.integer):
            raise DataError(f"data: {name}: num_classes must be a single integer, found {count!r}")
        stated = int(count)
    if max(found, stated) > MOST_CLASSES:
        raise DataError(
            f"data: {name}: {max(found, stated)} classes, where at most {MOST_CLASSES} are allowed; number the classes "
            "from 0 without gaps"
        )
    if stated and stated < found:
        raise DataError(
            f"data: {name}: labels go up to {found - 1}, but {stated} classes are stated; labels run from 0 to "
            "num-classes - 1; relabel the data or raise num-classes"
        )
    return stated or found


def checked_targets(y: Array, form: TargetForm, key: str, name: str) -> Array:
    """Targets of a form other than `classes` as they are stored, [N, T], [N, C] or [N, ...]; none of them is copied.

    `DataError` names the set `name`, the array `key`, what was found and what is allowed.
    """
    fits = {"values": _are_values, "flags": _are_flags, "places": _are_places}[form]
    if not fits(y):
        least = f", from {y.min()}" if y.size and y.dtype.kind in "iuf" else ""
        raise DataError(
            f"data: {name}: {key} has dtype {y.dtype} and shape {y.shape}{least}; this task needs {_MEANT[form]}"
        )
    return y.reshape(len(y), -1) if form == "values" else y


def named_values(y: Array, names: Array, name: str) -> NDArray[np.float32]:
    """The numbers [N] that stand behind classes [N], as their names say; `DataError` where a name is no number."""
    values = {label: value_of(str(names[label])) for label in np.unique(y).tolist() if 0 <= label < len(names)}
    if len(values) < len(np.unique(y)) or None in values.values():
        wrong = [str(names[label]) for label, value in values.items() if value is None]
        raise DataError(
            f"data: {name}: the targets are classes with names, such as {', '.join(wrong[:3]) or 'none'}; this task "
            "needs numbers: name another column or file, or store y without class_names"
        )
    table = np.zeros(len(names), dtype=np.float64)
    table[list(values)] = list(values.values())
    return table[y].astype(np.float32)


def used_targets(y: Array, form: TargetForm) -> Array:
    """Some of them as a client uses them: int64 [n, ...], float32 [n, T] or uint8 [n, C]."""
    return np.asarray(y, dtype={"values": np.float32, "flags": np.uint8}.get(form, np.int64))


def outputs_of(y: Array, form: TargetForm) -> int:
    """How many outputs these targets ask of a model, at each place where there are places."""
    return 1 + int(y.max(initial=0)) if form == "places" else int(y.shape[1])


def strata(y: Array, form: TargetForm) -> NDArray[np.int64]:
    """The classes [N] by which samples are dealt out and split; all in one where a sample has no class of its own."""
    return y if form == "classes" else np.zeros(len(y), dtype=np.int64)


def _are_values(y: Array) -> bool:
    return y.ndim in (1, 2) and y.dtype.kind in "fiu" and y.size > 0 and bool(np.isfinite(y).all())


def _are_flags(y: Array) -> bool:
    return y.ndim == 2 and y.dtype.kind in "biu" and y.shape[1] > 0 and bool(np.isin(y, (0, 1)).all())


def _are_places(y: Array) -> bool:
    return y.ndim >= 2 and y.dtype.kind in "iu" and y.size > 0 and bool(y.min() >= IGNORED)


def sample_shape(x: NDArray[Any]) -> tuple[int, ...]:
    """Shape of one sample as the model sees it, channels first for images.

    DataError if dtype and number of axes are those of no kind of sample, or images seem to have their channels first.
    """
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        height, width, *channels = x.shape[1:]
        if channels and height <= MOST_COLOURS < min(width, *channels):
            raise DataError(f"data: found uint8 images of shape {x.shape}: looks like [N, C, H, W]; store [N, H, W, C]")
        return (channels[0] if channels else 1, height, width)
    if np.issubdtype(x.dtype, np.floating) and x.dtype.itemsize <= 8 and x.ndim >= 2:
        return x.shape[1:]
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8 and x.ndim == 2:
        return x.shape[1:]
    raise DataError(
        f"data: found samples of dtype {x.dtype} and shape {x.shape}; allowed are uint8 images [N, H, W] or "
        "[N, H, W, C], float features [N, ...] of at most 64 bits and integer tokens [N, L] (int16, int32 or int64)"
    )


def sample_kind(x: NDArray[Any]) -> str:
    """`images`, `features` or `tokens`: what decides how stored values become the model's, see above."""
    if x.dtype == np.uint8:
        return "images"
    return "features" if np.issubdtype(x.dtype, np.floating) else "tokens"


def to_model_input(x: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Turn stored samples into the tensor that the model takes.

    Parameters
    ----------
    x : NDArray
        Samples [N, ...] of one of the kinds above.
    dtype : torch.dtype
        Of the result for images and features; tokens become int64.

    Returns
    -------
    Tensor
        [N, *sample_shape(x)] on the CPU, contiguous, sharing no memory with `x`.

    Raises
    ------
    DataError
        As `sample_shape`.
    """
    import torch

    shape = sample_shape(x)
    if x.dtype == np.uint8:
        channels_first = np.moveaxis(x, -1, 1) if x.ndim == 4 else x[:, None]
        pixels = torch.from_numpy(np.array(channels_first, order="C")).to(dtype)
        return pixels.div_(255).sub_(0.5).div_(0.5)
    values = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    tensor = values.to(dtype if np.issubdtype(x.dtype, np.floating) else torch.int64)
    return tensor.reshape(len(x), *shape)
