"""The steps of DQN-Fed and MGDA for code that has gradients at hand and no federation.

>>> import numpy as np
>>> two_sided_step(np.array([[1.0, 0.0], [1.0, 1.0]]), [1.0, 3.0]).step
array([1., 2.])

Gradients are one row an objective, [K, D]: a NumPy array or a torch tensor, float32 or float64, on any device. Their
inner products and the step are computed in float64, over blocks of columns, so that no wide copy of the rows is made.
A step is meant to be subtracted: theta - alpha * step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DQNFedError, ShapeError
from dqnfed_flwr.linalg.min_norm import (
    CUTOFF,
    GramSolution,
    Status,
    checked_vector,
    hull_weights,
    one_sided_weights,
    two_sided_weights,
)
from dqnfed_flwr.types import Float64Array, FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    Rates = Sequence[float] | NDArray[np.floating] | Tensor

RowsT = TypeVar("RowsT", FloatArray, "Tensor")
BLOCK_VALUES = 1 << 20
"""Values of the rows that are widened to float64 at once."""


@dataclass(frozen=True, slots=True)
class StepResult(Generic[RowsT]):
    """A step, and how it came about.

    Attributes
    ----------
    step : RowsT
        [D]; the kind, dtype and device of the gradients.
    weights : Float64Array
        [K]; step = weights @ grads, plus the reference if there is one.
    rank : int
        Numerical rank of the unit-length gradients.
    residual : float
        Relative residual, see the function of the same purpose in `dqnfed_flwr.linalg.min_norm`.
    status : Status
        `converged`; `stationary` if the gradients have no common descent direction that would serve.
    condition : float
        Condition number of the unit-diagonal Gramian over the eigenvalues kept.
    """

    step: RowsT
    weights: Float64Array
    rank: int
    residual: float
    status: Status
    condition: float


def two_sided_step(grads: RowsT, rates: Rates, *, ridge: float = 0.0, cutoff: float = CUTOFF) -> StepResult[RowsT]:
    """Shortest step with grads @ step = rates: DQN-Fed's step as printed, (7), (8), (12), (17).

    Rates may have any sign. Dependent gradients whose rates contradict each other, and a zero gradient with a rate,
    cannot be met: the step is then the least-squares one over rate / |gradient|, and the residual says by how much.

    Parameters
    ----------
    grads : RowsT
        [K, D].
    rates : Sequence[float] | NDArray | Tensor
        [K], finite.
    ridge : float
        Added to the diagonal of the unit-diagonal Gramian.
    cutoff : float
        Eigenvalues of that Gramian below this share of the largest count as zero.

    Returns
    -------
    StepResult
        `residual` is |grads @ step - rates| / |rates|.

    Raises
    ------
    ShapeError
        If an array has an unfit shape or dtype or is not finite.
    ConfigError
        If `ridge` or `cutoff` is out of range.
    """
    gram = _gramian(grads)
    solution = two_sided_weights(gram, _vector("rates", rates, len(gram)), ridge=ridge, cutoff=cutoff)
    return _result(grads, solution)


def one_sided_step(grads: RowsT, rates: Rates, reference: RowsT | None = None) -> StepResult[RowsT]:
    """Step with grads @ step >= rates that lies as close to `reference` as these rates allow.

    A rate of zero or less is a bound like any other: the objective may stay, or rise by that much. A zero gradient
    asks for nothing, whatever its rate, and has weight 0; leave such rows out where that is not wanted.

    Parameters
    ----------
    grads : RowsT
        [K, D].
    rates : Sequence[float] | NDArray | Tensor
        [K], finite.
    reference : RowsT | None
        [D], of the kind, dtype and device of `grads`; None for the zero vector, which gives the shortest step.

    Returns
    -------
    StepResult
        Weights >= 0. With status `stationary` no step meets the rates: weights 0, and the step is the reference.

    Raises
    ------
    ShapeError
        If an array has an unfit shape, dtype or device or is not finite.
    """
    gram = _gramian(grads)
    wanted = _vector("rates", rates, len(gram))
    solution = one_sided_weights(gram, wanted, offset=None if reference is None else _slopes(grads, reference))
    return _result(grads, solution, reference)


def minimum_norm_point(grads: RowsT) -> StepResult[RowsT]:
    """Shortest vector in the convex hull of the rows that are not zero: MGDA's direction.

    Parameters
    ----------
    grads : RowsT
        [K, D].

    Returns
    -------
    StepResult
        Weights on the simplex. With status `stationary` the vector is zero up to 1e-5 times the shortest row.

    Raises
    ------
    ShapeError
        If `grads` has an unfit shape or dtype or is not finite.
    """
    return _result(grads, hull_weights(_gramian(grads)))


def newton_rate_step(grads: FloatArray, rates: Float64Array) -> tuple[FloatArray, float]:
    """The paper's server step as printed, by the recursion (7), (8), weights (12) and length (17).

    Slower than `two_sided_step`, and in float32 it depends on the order of clients: the tests' oracle.

    Parameters
    ----------
    grads : FloatArray
        g_k, [K, D], float32 or float64, linearly independent.
    rates : Float64Array
        d_k, [K]; not 0.

    Returns
    -------
    FloatArray
        The step [D] in the dtype of `grads`, in which everything of size D is computed.
    float
        eta (17).

    Raises
    ------
    ShapeError
        If an array has another shape or dtype, or `rates` is not finite.
    DQNFedError
        If a denominator of (8) or a norm is zero: the paper does not treat these cases.
    """
    if grads.ndim != 2 or grads.dtype not in (np.float32, np.float64) or 0 in grads.shape:
        raise ShapeError(f"gradients of shape {grads.shape} and dtype {grads.dtype}; need [K, D], float32 or float64")
    rates = checked_vector("rates", rates, len(grads))
    orthogonal = np.empty_like(grads)  # g~_k
    squares = np.zeros(len(grads))  # |g~_k|^2
    for k, gradient in enumerate(grads):
        remainder, denominator = gradient.copy(), float(rates[k])
        for i in range(k):
            a = float(gradient @ orthogonal[i]) / squares[i]
            remainder -= grads.dtype.type(a) * orthogonal[i]
            denominator -= a
        if denominator == 0:
            raise DQNFedError(f"the denominator of (8) is zero at client {k}; use two_sided_weights")
        orthogonal[k] = remainder / grads.dtype.type(denominator)
        squares[k] = float(orthogonal[k] @ orthogonal[k])
        if squares[k] == 0:
            raise DQNFedError(f"gradient {k} depends on those before it, or is zero; use two_sided_weights")
    eta = float((1 / squares).sum())
    shares = 1 / squares / eta  # lambda_k
    direction = shares.astype(grads.dtype) @ orthogonal
    return grads.dtype.type(eta) * direction, eta


def _result(grads: RowsT, solution: GramSolution, reference: RowsT | None = None) -> StepResult[RowsT]:
    """weights @ grads + reference in float64; the sum has kind, dtype and device of the rows."""
    weights = solution.weights
    step = _empty_row(grads)
    for part in _columns(grads):
        rows = _wide(grads[:, part])
        block = (weights if isinstance(rows, np.ndarray) else rows.new_tensor(weights)) @ rows
        step[part] = block if reference is None else block + _wide(reference[part])
    return StepResult(step, weights, solution.rank, solution.residual, solution.status, solution.condition)


def _gramian(grads: RowsT) -> Float64Array:
    """Inner products [K, K] of rows [K, D], which are checked."""
    _check_rows(grads)
    gram = np.zeros((len(grads), len(grads)))
    for part in _columns(grads):
        block = _finite("the gradients", _wide(grads[:, part]))
        gram += _host(block @ block.T)
    return gram


def _slopes(grads: RowsT, reference: RowsT) -> Float64Array:
    """grads @ reference [K], of rows [K, D] that were checked and a reference that is checked here."""
    kinds = [(type(x).__name__, tuple(x.shape[-1:]), x.dtype, _device(x)) for x in (reference, grads)]
    if reference.ndim != 1 or kinds[0] != kinds[1]:
        raise ShapeError(f"the reference is {kinds[0]}, ndim {reference.ndim}; need {kinds[1]}, ndim 1")
    found = np.zeros(len(grads))
    for part in _columns(grads):
        found += _host(_wide(grads[:, part]) @ _finite("the reference", _wide(reference[part])))
    return found


def _vector(name: str, values: Rates, size: int) -> Float64Array:
    """`size` finite numbers, called `name` in errors."""
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


def _empty_row(grads: RowsT) -> RowsT:
    dim = grads.shape[1]
    return np.empty(dim, grads.dtype) if isinstance(grads, np.ndarray) else grads.new_empty(dim)


def _device(values: FloatArray | Tensor) -> str:
    return "cpu" if isinstance(values, np.ndarray) else str(values.device)
