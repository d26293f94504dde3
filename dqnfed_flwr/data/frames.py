"""Arrays of whatever a caller gives for them in Python: frames of columns, columns, sparse matrices, tensors, lists.

Frames are those of pandas, polars and their like; none of these packages is imported. A frame of features becomes
float32, column by column: numbers and truth values, dates as days since 1970-01-01, and durations as days. Everything
else is refused by the name of its column. Columns that number the rows are left out, as in tables of files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data import columns
from dqnfed_flwr.errors import DataError

logger = logging.getLogger("flwr")
DAY = np.timedelta64(86_400_000_000, "us")
_CODED = ("category", "categorical", "enum")
"""How types begin whose values are names, even where these are numbers."""


def arrays_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name; a frame of a test part has the columns of the training part, in its order.

    Raises
    ------
    DataError
        If one holds something else than numbers: the text names the array, the column, what was found and a remedy.
    """
    arrays, frames = dict[str, Any](), dict[str, _Chosen]()
    for key in sorted(given, key=lambda key: key != "x_train"):
        value = unmasked(given[key], f"data: {key}")
        if _is_frame(value) and key.startswith("x_"):
            arrays[key], frames[key] = _features(value, key, frames.get("x_train"))
        else:
            arrays[key] = _array(value, key)
    for part in ("train", "test"):
        _check_order(given.get(f"x_{part}"), given.get(f"y_{part}"), part)
    return {key: arrays[key] for key in given}


def unmasked(value: Any, where: str) -> Any:
    """The data of a masked array of numpy, of which no value is masked; anything else as it is.

    DataError, which begins with `where`, names the first masked value, whose number means nothing.
    """
    if not isinstance(value, np.ma.MaskedArray):
        return value
    places = np.argwhere(np.ma.getmaskarray(value))
    if len(places):
        more = f" (and {len(places) - 1} further ones)" if len(places) > 1 else ""
        raise DataError(
            f"{where}, place {places[0].tolist()}: found a masked value{more}; every value is needed: fill it in "
            "(numpy.ma.filled), or leave its row out"
        )
    return np.asarray(value.data)


def in_order(four: Sequence[Any]) -> Sequence[Any]:
    """Four arrays as x_train, y_train, x_test, y_test; those in the order of scikit-learn's `train_test_split` moved.

    Lengths tell the two orders apart, and where all are the same, shapes.
    """
    shapes = [_shape(each) for each in four]
    if any(not shape for shape in shapes):
        return four
    a, b, c, d = shapes
    ours, sklearns = (a[0] == b[0] and c[0] == d[0]), (a[0] == c[0] and b[0] == d[0])
    if sklearns and (not ours or (a[1:] == b[1:] and a[1:] != c[1:])):
        logger.warning(
            "data: the four arrays are taken as x_train, x_test, y_train, y_test, the order of train_test_split; they "
            "do not fit as x_train, y_train, x_test, y_test"
        )
        return four[0], four[2], four[1], four[3]
    return four


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array, or of whatever has a length; empty where there is none."""
    shape = getattr(value, "shape", None)
    if shape is None:
        try:
            shape = np.shape(value)
        except ValueError:
            return (len(value),)
    return tuple(shape)


def _is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def _columns(frame: Any) -> Iterator[tuple[str, Any]]:
    """Names and columns: of polars, of pandas, and of anything else by its whole array."""
    names = [str(name) for name in frame.columns]
    if hasattr(frame, "get_columns"):
        return zip(names, frame.get_columns(), strict=True)
    if hasattr(frame, "iloc"):
        return ((name, frame.iloc[:, place]) for place, name in enumerate(names))
    whole = np.asarray(frame.to_numpy())
    return ((name, whole[:, place]) for place, name in enumerate(names))


@dataclass(frozen=True)
class _Chosen:
    """Names of a frame's columns that are features, and of those that number its rows."""

    features: list[str]
    left_out: list[str]


def _features(frame: Any, key: str, train: _Chosen | None) -> tuple[NDArray[np.float32], _Chosen]:
    """Features [N, F] of a frame, and its columns: those of the training part, or all that do not number the rows."""
    named = list(_columns(frame))
    if train is not None:
        named = _as_in_training(named, train, key)
    found, left_out, leading = list[tuple[str, NDArray[Any]]](), list[str](), True
    for name, column in named:
        values = _numbers(column, f"data: {key}, column {name!r}")
        leading = leading and columns.names_index(name)
        if train is None and (why := _index(name, values, leading)):
            left_out.append(name)
            keeping = "to keep it, give the frame's to_numpy()"
            logger.warning("data: %s: column %r is left out: it %s; %s", key, name, why, keeping)
        else:
            found.append((name, values))
            if train is None:
                _tell(values, f"data: {key}: column {name!r}")
    if not found:
        raise DataError(f"data: {key}: no column of features is left; to keep all, give the frame's to_numpy()")
    columns.check_dense(len(found[0][1]), len(found))
    x = np.column_stack([_float32(values, f"data: {key}, column {name!r}") for name, values in found])
    return x, train or _Chosen([name for name, _ in found], left_out)


def _float32(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    return columns.to_float32(values, lambda row: f"{where}, row {row}")


def _tell(values: NDArray[Any], where: str) -> None:
    """Warn of a feature that may be an index, or is not what it was as float32."""
    if columns.numbers_rows(values):
        logger.warning("%s holds each row number once; leave it out if it is an index", where)
    if columns.merges(values):
        logger.warning("%s %s", where, columns.MERGED)


def _as_in_training(named: list[tuple[str, Any]], train: _Chosen, key: str) -> list[tuple[str, Any]]:
    """The columns of the training part, in its order; DataError where one is missing, or there is another."""
    held = dict(named)
    if len(held) < len(named):  # names that stand twice say nothing
        return named
    missing = [name for name in train.features if name not in held]
    others = [name for name in held if name not in train.features and name not in train.left_out]
    extra = [name for name in others if not _may_be_index(name, held[name], f"data: {key}, column {name!r}")]
    if missing or extra:
        raise DataError(
            f"data: {key}: lacks the columns {', '.join(missing) or 'none'} and has others "
            f"{', '.join(extra) or 'none'} than x_train; give both the same"
        )
    return [(name, held[name]) for name in train.features]


def _may_be_index(name: str, column: Any, where: str) -> bool:
    """Whether a column that training lacks may be an index."""
    values = _numbers(column, where)
    return columns.is_unnamed(name) or columns.is_level(name) or bool(columns.why_index(name, values, leading=True))


def _index(name: str, values: NDArray[Any], leading: bool) -> str:
    """Why a column numbers the rows; empty where it does not. `leading` ones have the name of an index."""
    if leading and (columns.is_unnamed(name) or columns.is_level(name)) and np.array_equal(values, np.rint(values)):
        return columns.NAMELESS
    return columns.why_index(name, values, leading=leading)


def _numbers(column: Any, where: str) -> NDArray[Any]:
    """Numbers of a column [N], without gaps: whole ones stay whole."""
    kind = str(getattr(column, "dtype", ""))
    if kind.lower().startswith(_CODED):
        remedy = (
            "give the numbers of its classes (y.cat.codes)"
            if "y_" in where
            else ("give numbers: encode it (pandas.get_dummies), or leave it out")
        )
        raise DataError(f"{where}: found the dtype {kind}; {remedy}")
    column = unmasked(column, where)
    values = column if isinstance(column, np.ndarray) else np.asarray(_zoneless(column, kind))
    if values.ndim != 1:
        raise DataError(f"{where}: found the shape {values.shape}; give one number a row")
    if values.dtype.kind in "mM":
        _check_whole(np.isnat(values), where)
        logger.warning("%s is read as days%s", where, " since 1970-01-01" if values.dtype.kind == "M" else "")
        return values.astype("datetime64[us]" if values.dtype.kind == "M" else "timedelta64[us]").astype(np.int64) / (
            DAY.astype(np.int64)
        )
    if values.dtype.kind == "O":
        values = _of_objects(values, where)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: found the dtype {kind or values.dtype}; give numbers: encode it, or leave it out")
    if values.dtype.kind == "f":
        _check_whole(np.isnan(values), where)
    return values.astype(np.int64) if values.dtype.kind == "b" else values


def _zoneless(column: Any, kind: str) -> Any:
    """The array of a column; dates with a zone as those of UTC."""
    if kind.startswith("datetime64[") and "," in kind:
        return column.to_numpy(dtype="datetime64[ns]")
    return column.to_numpy()


def _of_objects(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Numbers of Python's own [N]: truth values, whole and decimal numbers, fractions; pandas' gaps are told."""
    missing = np.array([_is_missing(value) for value in values])
    _check_whole(missing, where)
    for row, value in enumerate(values):
        if not isinstance(value, Real | Decimal | np.bool_):
            raise DataError(
                f"{where}, row {row}: found {value!r}, of type {type(value).__name__}; give numbers: encode it, or "
                "leave the column out"
            )
    whole = all(isinstance(value, int | np.integer | np.bool_) for value in values)
    return np.array([int(value) if whole else float(value) for value in values])


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or a gap of pandas, which does not compare."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and bool(value != value)


def _check_whole(missing: NDArray[np.bool_], where: str) -> None:
    if len(rows := np.flatnonzero(missing)):
        more = f" (and in {len(rows) - 1} further rows)" if len(rows) > 1 else ""
        raise DataError(
            f"{where}, row {rows[0]}: found a missing value{more}; every row needs a value: fill it in, or leave the "
            "row or the column out"
        )


def _array(value: Any, key: str) -> Any:
    """An array of anything but a frame of features."""
    if hasattr(value, "toarray") and hasattr(value, "nnz"):  # a sparse matrix of scipy
        columns.check_dense(*value.shape)
        return np.asarray(value.astype(np.float32).toarray())
    if _is_frame(value):
        held = [_numbers(column, f"data: {key}, column {name!r}") for name, column in _columns(value)]
        return held[0] if len(held) == 1 else np.column_stack(held)
    if hasattr(value, "detach"):  # a tensor, which may have a gradient or be sparse
        value = value.detach()
        value = value.to_dense() if value.layout is not None and "sparse" in str(value.layout) else value
    if hasattr(value, "dtype") and hasattr(value, "to_numpy"):  # a column
        return _numbers(value, f"data: {key}")
    try:
        array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data: {key} is a {type(value).__name__} and no array ({error}); give numbers") from None
    if array.dtype.kind == "b" and (key.startswith("x_") or array.ndim == 1):
        return array.astype(np.float32 if key.startswith("x_") else np.int64)
    return array


def _check_order(x: Any, y: Any, part: str) -> None:
    """Refuse two of pandas whose rows have the same index in another order: one of them was shuffled alone."""
    one, other = (getattr(each, "index", None) for each in (x, y))
    if one is None or other is None or not all(hasattr(index, "sort_values") for index in (one, other)):
        return
    if len(one) == len(other) and not one.equals(other) and one.sort_values().equals(other.sort_values()):
        raise DataError(
            f"data: x_{part} and y_{part} have the same index in another order, so that rows do not belong together; "
            "give y.loc[x.index], or arrays, y.to_numpy(), if the order is meant"
        )
