"""Models as Flower's records of named arrays: between two of them, and their parameters as one vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from dqnfed_flwr.errors import ModelError, ShapeError
from dqnfed_flwr.types import FloatArray

Arrays = Mapping[str, NDArray[np.generic]]
"""The arrays of a model by name."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a strategy hands it over, and its arrays."""

    record: ArrayRecord
    arrays: Arrays

    @classmethod
    def of(cls, record: ArrayRecord) -> Model:
        """The model in a record."""
        return cls(record, read(record))

    @classmethod
    def made(cls, arrays: Arrays) -> Model:
        """The model of some arrays."""
        return cls(write(arrays), arrays)

    def toward(self, end: Model, share: float) -> Model:
        """The model that lies a `share` of the way to another, at most 1: that other itself at 1."""
        return end if share == 1 else Model.made(between(self.arrays, end.arrays, share, ()))


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

    Server and client call this one function, so that both speak of the same model to the last bit. Arrays of floats,
    real or complex, that are no parameters, such as running statistics, go along from 0 to 1 and no further, since
    nothing is known of them elsewhere. Other arrays, such as counters, are those of `ahead`, as are the dtypes.
    """
    if share == 1:
        return ahead
    inside = min(max(share, 0.0), 1.0)

    def at(name: str, end: NDArray[np.generic]) -> NDArray[np.generic]:
        start = before[name]
        kinds = {start.dtype.kind, end.dtype.kind}
        if not kinds <= {"f", "c"}:
            return end
        exact = np.complex128 if "c" in kinds else np.float64
        first, last = start.astype(exact), end.astype(exact)
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
