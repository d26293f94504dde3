"""Models as Flower's records of named arrays: between two of them, and their parameters as one vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from dqnfed_flwr.errors import ModelError, ShapeError
from dqnfed_flwr.types import FloatArray

Arrays = Mapping[str, NDArray[np.generic]]
"""The arrays of a model by name."""


def read(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """The arrays of a record, in its order; `ModelError` where one cannot be read."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError) as error:
        raise ModelError(f"a model whose arrays cannot be read ({error}); send NumPy or torch arrays") from None


def write(arrays: Arrays) -> ArrayRecord:
    """Inverse of `read`."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def check_alike(what: str, found: Arrays, model: Arrays) -> None:
    """Raise `ShapeError` unless `found` has the names and shapes of `model`."""
    if list(found) != list(model) and set(found) != set(model):
        different = sorted(set(found).symmetric_difference(model))
        raise ShapeError(f"{what} has other arrays than the model: {different[:8]}; both need the same names")
    for name, values in found.items():
        if values.shape != model[name].shape:
            raise ShapeError(f"{what}: {name!r} has shape {values.shape}; the model's has {model[name].shape}")


def between(before: Arrays, ahead: Arrays, share: float, parameters: Collection[str]) -> Arrays:
    """The model that lies a share of the way from `before` to `ahead`: `ahead` itself at 1.

    Server and client call this one function, so that both speak of the same model to the last bit. Arrays of floats
    that are no parameters, such as running statistics, go along from 0 to 1 and no further, since nothing is known of
    them elsewhere. Other arrays, such as counters, are those of `ahead`. The dtypes are those of `ahead`.
    """
    if share == 1:
        return ahead
    inside = min(max(share, 0.0), 1.0)

    def at(name: str, end: NDArray[np.generic]) -> NDArray[np.generic]:
        start = before[name]
        if start.dtype.kind != "f" or end.dtype.kind != "f":
            return end
        first, last = start.astype(np.float64), end.astype(np.float64)
        way = np.subtract(last, first, out=np.zeros_like(last), where=first != last)  # two infinities are no way apart
        part = share if name in parameters else inside
        return np.asarray((first + part * way).astype(end.dtype))

    return {name: at(name, end) for name, end in ahead.items()}


def flatten(arrays: Arrays, names: Sequence[str]) -> FloatArray:
    """The named arrays as one float64 vector [D]."""
    return np.concatenate([arrays[name].reshape(-1).astype(np.float64) for name in names])


def moved(arrays: Arrays, names: Sequence[str], by: FloatArray) -> Arrays:
    """`arrays` with `by` [D] added to the named ones; their dtypes stay."""
    found, start = dict(arrays), 0
    for name in names:
        values = arrays[name]
        part = by[start : start + values.size].reshape(values.shape)
        found[name] = np.asarray((values.astype(np.float64) + part).astype(values.dtype))
        start += values.size
    return found
