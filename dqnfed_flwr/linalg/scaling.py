"""The unit-diagonal Gramian S G S, S = diag(1/|g_k|): what every K-sized problem is solved on.

Inner products become cosines, so that rows of any length, 1e-8 and 1e8, weigh alike in the conditioning. Rows of
norm zero are set aside: nothing is divided by their norm, and their weight is 0.

K x K problems gain nothing from threads, and OpenBLAS's spin for a while after each call: torch's then wait for the
cores. Measured on two cores: 160 ms for a step of K = 100, D = 650,000 with both pools awake, 17 ms with one thread
(`one_blas_thread`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import Float64Array

NOISE = 1e-14
"""Relative size below which an eigenvalue of a float64 Gramian is rounding, whatever the rows."""


@dataclass(frozen=True, slots=True)
class ScaledGram:
    """Cosines of the A rows that are not zero, with their spectrum.

    Attributes
    ----------
    active : NDArray[np.bool_]
        Rows with a positive norm [K].
    norms : Float64Array
        Their norms [A].
    cosines : Float64Array
        S G S over them [A, A], unit diagonal.
    values : Float64Array
        Its eigenvalues, rising; those below `NOISE` times the largest are rounding and set to 0 [A].
    vectors : Float64Array
        Its eigenvectors, one a column [A, A].
    """

    active: NDArray[np.bool_]
    norms: Float64Array
    cosines: Float64Array
    values: Float64Array
    vectors: Float64Array

    @classmethod
    def of(cls, gram: Float64Array) -> ScaledGram:
        """Scale the inner products `gram` [K, K], which must be square and finite, with a diagonal >= 0."""
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ShapeError(f"a Gramian of shape {gram.shape}; it holds the inner products of K rows, (K, K)")
        if not np.isfinite(gram).all():
            raise ShapeError("the Gramian has entries that are not finite; leave those rows out first")
        if (gram.diagonal() < 0).any():
            raise ShapeError(f"the Gramian has the squared norm {gram.diagonal().min():g}; it must not be negative")
        squares = gram.diagonal()
        active = squares > 0
        norms = np.sqrt(squares[active])
        cosines = gram[np.ix_(active, active)] / norms / norms[:, None]
        cosines = (cosines + cosines.T) / 2
        np.fill_diagonal(cosines, 1.0)
        values, vectors = np.linalg.eigh(cosines)
        values[values <= NOISE * values.max(initial=0.0)] = 0.0
        return cls(active, norms, cosines, values, vectors)

    @property
    def factor(self) -> Float64Array:
        """Matrix [A, A] whose columns have the cosines as inner products."""
        return np.sqrt(self.values)[:, None] * self.vectors.T

    def kept(self, cutoff: float) -> NDArray[np.bool_]:
        """Eigenvalues above `cutoff` times the largest [A]."""
        return np.asarray(self.values > cutoff * self.values.max(initial=0.0))

    def rank(self, cutoff: float) -> int:
        """Count the eigenvalues kept."""
        return int(self.kept(cutoff).sum())

    def condition(self, cutoff: float) -> float:
        """Divide the largest by the smallest eigenvalue kept; NaN when no row is active."""
        kept = self.values[self.kept(cutoff)]
        return float(kept[-1] / kept[0]) if kept.size else float("nan")

    def unscale(self, multipliers: Float64Array) -> Float64Array:
        """Weights [K] of the rows as given, from weights [A] of their unit vectors; 0 for zero rows."""
        weights = np.zeros(self.active.size)
        weights[self.active] = multipliers / self.norms
        return weights


def checked_vector(name: str, values: Sequence[float] | NDArray[np.floating], size: int) -> Float64Array:
    """`values` as float64 of shape (size,); `ShapeError` if there are not so many, or one is not finite."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (size,):
        raise ShapeError(f"{name} of shape {vector.shape}; need one value for each of the {size} rows, ({size},)")
    if not np.isfinite(vector).all():
        raise ShapeError(f"{name} must be finite; entry {int(np.flatnonzero(~np.isfinite(vector))[0])} is not")
    return vector


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold OpenBLAS to one thread within; other libraries and the setting afterwards are untouched."""
    with _openblas().limit(limits=1):
        yield


@cache
def _openblas() -> ThreadpoolController:
    return ThreadpoolController().select(internal_api="openblas")
