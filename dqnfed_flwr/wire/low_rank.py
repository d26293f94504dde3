"""Steps in low rank: each matrix as a few columns times a few rows, as in PowerSGD (Vogels et al., NeurIPS 2019).

A matrix [n, m] of rank r is r (n + m) numbers. What the others lack goes into what is sent next (error feedback), so
this is for steps alone; see `levels`. How many columns a step needs is for who sends it to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.rounding import BLOCK, CODES, SWEEP, Brief, Expected, Parts, Shape

SIDES = ".sides"
"""Ends the name of the array [L, 3] of whole numbers n, m, r, a row for each part of the vector; r is 0 for values as
they are."""
MORE, POWERS = 4, 2
"""Columns beyond those that are sent, and products with M M^T, to find the largest singular vectors of M by (Halko et
al., SIAM Review 2011)."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """A vector [D] of parameters of these `shapes`, their matrices by the best sum of `rank` products, in bfloat16.

    A parameter [n, ...] is a matrix [n, m]; where the factors are not shorter than its values, as those of one with a
    single side, its values go. Neither number nor `shapes` are needed to read what was sent.
    """

    rank: int = 0
    shapes: tuple[Shape, ...] = ()

    def expected(self, shape: Shape) -> Expected:
        """Dtypes of the factors and of the sides; the sides decide the number of factors."""
        return {CODES: (None, ("uint16",)), SIDES: (None, ("int64",))}

    def pack(self, vector: FloatArray, generator: np.random.Generator) -> Parts:
        """Bring a vector of float32 or float64 to low rank; the `generator` draws columns and rounds factors.

        `ShapeError` where the `shapes` are of another number of values. A matrix with a value that is not finite goes
        as it is: `unpack` shows it.
        """
        if (count := sum(map(math.prod, self.shapes))) != len(vector):
            raise ShapeError(f"shapes of {count} values for a vector of {len(vector)}")
        sides, values, place = list[tuple[int, int, int]](), list[NDArray[np.float32]](), 0
        for shape in self.shapes:
            size, rows = math.prod(shape), shape[0] if shape else 1
            with np.errstate(over="ignore"):
                part = np.asarray(vector[place : place + size], np.float32)
            columns, place = size // max(rows, 1), place + size
            if self.rank * (rows + columns) < size and np.isfinite(part).all():
                sides.append((rows, columns, self.rank))
                values.extend(_factors(part.reshape(rows, columns), self.rank, generator))
            else:
                sides.append((size, 1, 0))
                values.append(part)
        parts = Brief().pack(np.concatenate([each.reshape(-1) for each in values]), generator)
        return {**parts, SIDES: np.array(sides, np.int64)}

    def unpack(self, parts: Parts, shape: Shape) -> FloatArray:
        """The values, float32 [D]; `ShapeError` for parts that do not stand for so many.

        Products are added in their order, each value by itself: no library's matrix product decides a bit of them.
        """
        sides, values = _sides(parts[SIDES], math.prod(shape)), Brief().unpack(parts, (parts[CODES].size,))
        held = sum(rank * (rows + columns) or rows * columns for rows, columns, rank in sides)
        if (count := sum(rows * columns for rows, columns, _ in sides)) != math.prod(shape) or held != len(values):
            raise ShapeError(f"{len(values)} factors of {count} values; {math.prod(shape)} values are needed")
        found, place, at = np.empty(count, np.float32), 0, 0
        for rows, columns, rank in sides:
            into = found[at : at + rows * columns].reshape(rows, columns)
            at += rows * columns
            length = rank * (rows + columns) or rows * columns
            part, place = values[place : place + length], place + length
            if rank:
                _add_products(part.reshape(rank, rows + columns), into)
            else:
                into[:] = part.reshape(rows, columns)
        return found


def _factors(matrix: NDArray[np.float32], rank: int, generator: np.random.Generator) -> list[NDArray[np.float32]]:
    """Columns [n] and rows [m], in turn, whose products' sum is nearly the best of so many for the matrix M [n, m].

    Q is an orthonormal basis of (M M^T)^POWERS M R, R of random columns, `MORE` than needed, and U the first left
    singular vectors of Q^T M: columns are those of P = Q U, rows those of P^T M. M is brought to values up to 1 for
    that, by a power of two.
    """
    power = np.ldexp(np.float32(1), -int(np.frexp(np.abs(matrix).max())[1]))
    matrix = matrix * power
    basis = generator.standard_normal((matrix.shape[1], min(rank + MORE, *matrix.shape))).astype(np.float32)
    for _ in range(POWERS):
        basis, _ = np.linalg.qr(matrix @ basis)
        basis, _ = np.linalg.qr(matrix.T @ basis)
    basis, _ = np.linalg.qr(matrix @ basis)
    largest, _, _ = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    columns = basis @ largest[:, :rank]
    return [side for pair in zip(columns.T, columns.T @ matrix / power, strict=True) for side in pair]


def _add_products(factors: NDArray[np.float32], into: NDArray[np.float32]) -> None:
    """Write the sum of the products of columns and rows [r, n + m] `into` [n, m], some rows at a time."""
    rows, columns = into.shape
    height = max(1, SWEEP * BLOCK // columns)
    into[:] = 0
    for first in range(0, rows, height):
        part = into[first : first + height]
        for factor in factors:
            part += factor[first : min(first + height, rows), None] * factor[rows:]


def _sides(given: NDArray[np.generic], most: int) -> list[tuple[int, int, int]]:
    """Rows, columns and rank of each part; `ShapeError` unless they can be those of parts of `most` values in all."""
    if given.ndim != 2 or given.shape[1:] != (3,):
        raise ShapeError(f"sides of shape {given.shape}; need [L, 3]")
    sides = [(rows, columns, rank) for rows, columns, rank in given.tolist()]
    for rows, columns, rank in sides:
        if not (0 <= rows <= most and 0 <= columns <= most and 0 <= rank <= min(rows, columns)):
            raise ShapeError(f"a part of sides {rows} and {columns} and rank {rank} among {most} values")
    return sides
