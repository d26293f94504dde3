"""Rows that a caller has at hand, NumPy arrays or torch tensors: their inner products and sums in float64.

Blocks of columns are widened one after the other, so that no wide copy of the rows is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg.scaling import checked_vector
from dqnfed_flwr.types import Float64Array, FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    Numbers = Sequence[float] | NDArray[np.floating] | Tensor

RowsT = TypeVar("RowsT", FloatArray, "Tensor")

BLOCK_VALUES = 1 << 20
"""Values of the rows that are widened to float64 at once."""


def gramian(grads: RowsT) -> Float64Array:
    """Inner products [K, K] of rows [K, D].

    Raises
    ------
    ShapeError
        If they are no finite float32 or float64 matrix.
    """
    _check_rows(grads)
    gram = np.zeros((len(grads), len(grads)))
    for part in _columns(grads):
        block = _finite("the gradients", _wide(grads[:, part]))
        gram += _host(block @ block.T)
    return gram


def slopes(grads: RowsT, reference: RowsT) -> Float64Array:
    """Compute grads @ reference [K], of rows [K, D] that were checked.

    Raises
    ------
    ShapeError
        If the reference is not finite, or not [D] of the same kind, dtype and device.
    """
    kinds = [(type(x).__name__, tuple(x.shape[-1:]), x.dtype, _device(x)) for x in (reference, grads)]
    if reference.ndim != 1 or kinds[0] != kinds[1]:
        raise ShapeError(f"the reference is {kinds[0]}, ndim {reference.ndim}; need {kinds[1]}, ndim 1")
    found = np.zeros(len(grads))
    for part in _columns(grads):
        found += _host(_wide(grads[:, part]) @ _finite("the reference", _wide(reference[part])))
    return found


def combine(weights: Float64Array, grads: RowsT, reference: RowsT | None) -> RowsT:
    """Compute weights @ grads + reference [D] in float64; the sum has kind, dtype and device of the rows."""
    step = _empty_row(grads)
    for part in _columns(grads):
        rows = _wide(grads[:, part])
        block = _beside(weights, rows) @ rows
        step[part] = block if reference is None else block + _wide(reference[part])
    return step


def vector(name: str, values: Numbers, size: int) -> Float64Array:
    """`size` finite numbers, called `name` in errors.

    Raises
    ------
    ShapeError
        If they are something else.
    """
    try:
        array = np.asarray(values.detach().cpu() if _is_tensor(values) else values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} cannot be read as numbers ({error}); pass one a row") from None
    return checked_vector(name, array, size)


def _check_rows(grads: FloatArray | Tensor) -> None:
    if not isinstance(grads, np.ndarray) and not _is_tensor(grads):
        raise ShapeError(f"gradients are a {type(grads).__name__}; pass a NumPy array or a torch tensor")
    if str(grads.dtype).removeprefix("torch.") not in ("float32", "float64"):
        raise ShapeError(f"gradients of dtype {grads.dtype}; convert them to float32 or float64")
    if grads.ndim != 2 or 0 in grads.shape:
        raise ShapeError(f"gradients of shape {tuple(grads.shape)}; need one row an objective, [K, D], K and D >= 1")


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")  # who holds a tensor has imported torch
    return torch is not None and isinstance(value, torch.Tensor)


def _columns(grads: FloatArray | Tensor) -> Iterator[slice]:
    rows, dim = grads.shape
    width = max(1, BLOCK_VALUES // rows)
    return (slice(start, start + width) for start in range(0, dim, width))


def _wide(values: RowsT) -> RowsT:
    return values.astype(np.float64, copy=False) if isinstance(values, np.ndarray) else values.detach().double()


def _finite(name: str, values: RowsT) -> RowsT:
    finite = np.isfinite(values) if isinstance(values, np.ndarray) else values.isfinite()
    if not bool(finite.all()):
        raise ShapeError(f"{name} must be finite; leave out what is not")
    return values


def _host(values: FloatArray | Tensor) -> Float64Array:
    return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy(), dtype=np.float64)


def _beside(weights: Float64Array, rows: RowsT) -> RowsT:
    """Copy `weights` to the kind and device of the wide `rows`."""
    return weights if isinstance(rows, np.ndarray) else rows.new_tensor(weights)


def _empty_row(grads: RowsT) -> RowsT:
    dim = grads.shape[1]
    return np.empty(dim, grads.dtype) if isinstance(grads, np.ndarray) else grads.new_empty(dim)


def _device(values: FloatArray | Tensor) -> str:
    return "cpu" if isinstance(values, np.ndarray) else str(values.device)
