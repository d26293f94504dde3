"""Sets of gradient rows [K, D] that have a known property, each with the reason why."""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.types import Float64Array


def random_set(rng: np.random.Generator, clients: int, dim: int) -> Float64Array:
    """Independent normal rows.

    Linearly independent with probability 1 when clients <= dim: each row has a density, and the span of the others
    is a null set.
    """
    return rng.standard_normal((clients, dim))


def conflicting_set(rng: np.random.Generator, clients: int, dim: int, common: float = 0.5) -> Float64Array:
    """Rows of which every two oppose each other, although one direction lowers all objectives.

    With orthonormal e_0 .. e_K and their mean m over e_1 .. e_K, row k is a positive length times
    (e_k - m) + (common / sqrt(K)) e_0. For i != j the product of two unscaled rows is -1/K + common^2/K < 0 as long
    as common < 1, while every row's product with e_0 is positive. Their Gramian is I - (1 - common^2) 11'/K, with
    eigenvalues 1 and common^2: independent, and ill-conditioned as common tends to 0. Needs clients < dim, clients > 1.
    """
    frame = np.linalg.qr(rng.standard_normal((dim, clients + 1)))[0].T
    rows = frame[1:] - frame[1:].mean(axis=0) + common / np.sqrt(clients) * frame[0]
    return np.asarray(rows * rng.uniform(0.5, 2.0, (clients, 1)))


def rank_deficient_set(rng: np.random.Generator, clients: int, dim: int, rank: int) -> Float64Array:
    """Rows that span exactly `rank` dimensions.

    The product of normal matrices [clients, rank] and [rank, dim], each of full rank with probability 1, has rank
    min(rank, clients, dim).
    """
    return rng.standard_normal((clients, rank)) @ rng.standard_normal((rank, dim))


def duplicated_set(rng: np.random.Generator, distinct: int, dim: int) -> Float64Array:
    """Random rows, each there twice, bit for bit: 2 * distinct rows of rank min(distinct, dim)."""
    return np.repeat(rng.standard_normal((distinct, dim)), 2, axis=0)


def pareto_stationary_set(rng: np.random.Generator, clients: int, dim: int) -> Float64Array:
    """Rows without a common descent direction (Definition 3.1).

    The last row is minus a positive combination of the others, so positive weights lambda give lambda @ rows = 0. For
    any u then lambda . (rows @ u) = 0, and not every entry of rows @ u can be positive. Needs clients > 1.
    """
    rows = rng.standard_normal((clients, dim))
    rows[-1] = -(rng.uniform(0.5, 2.0, clients - 1) @ rows[:-1])
    return rows


def with_spread_lengths(
    rng: np.random.Generator, rows: Float64Array, low: float = -8.0, high: float = 8.0
) -> Float64Array:
    """The rows, each times 10 to a power drawn from [low, high]: signs, rank and stationarity stay as they are.

    Positive factors leave every row's half-space of descent, and the span, unchanged.
    """
    return np.asarray(rows * 10.0 ** rng.uniform(low, high, (len(rows), 1)))


def unit_condition(rows: Float64Array) -> float:
    """Condition number of the unit-diagonal Gramian of independent rows: the square of that of the unit rows."""
    values = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), compute_uv=False)
    return float((values[0] / values[-1]) ** 2) if values[-1] > 0 and len(rows) <= rows.shape[1] else float("inf")
