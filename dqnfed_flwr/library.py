"""The steps of DQN-Fed and MGDA for code that has gradients at hand and no federation.

>>> import numpy as np
>>> two_sided_step(np.array([[1.0, 0.0], [1.0, 1.0]]), [1.0, 3.0]).step
array([1., 2.])

Gradients are one row an objective, [K, D]: a NumPy array or a torch tensor, float32 or float64, on any device. Their
inner products and the step are computed in float64, over blocks of columns, so that no wide copy of the rows is made.
A step is meant to be subtracted: theta - alpha * step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from dqnfed_flwr.linalg.caller_rows import RowsT, combine, gramian, slopes, vector
from dqnfed_flwr.linalg.least_distance import Status
from dqnfed_flwr.linalg.min_norm import (
    CUTOFF,
    GramSolution,
    hull_weights,
    one_sided_weights,
    two_sided_weights,
)
from dqnfed_flwr.types import Float64Array

if TYPE_CHECKING:
    from dqnfed_flwr.linalg.caller_rows import Numbers as Rates


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
    gram = gramian(grads)
    solution = two_sided_weights(gram, vector("rates", rates, len(gram)), ridge=ridge, cutoff=cutoff)
    return _result(combine(solution.weights, grads, None), solution)


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
    gram = gramian(grads)
    wanted = vector("rates", rates, len(gram))
    solution = one_sided_weights(gram, wanted, offset=None if reference is None else slopes(grads, reference))
    return _result(combine(solution.weights, grads, reference), solution)


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
    solution = hull_weights(gramian(grads))
    return _result(combine(solution.weights, grads, None), solution)


def _result(step: RowsT, solution: GramSolution) -> StepResult[RowsT]:
    return StepResult(
        step=step,
        weights=solution.weights,
        rank=solution.rank,
        residual=solution.residual,
        status=solution.status,
        condition=solution.condition,
    )
