"""Rows that stand for clients' gradients: independent ones, and ones of which every two oppose each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.linalg.min_norm import ScaledGram
from dqnfed_flwr.types import Float64Array

MOST_CLIENTS = 50
STREAMED_VALUES = 1 << 21
"""A set of at least so many values goes the way of large models: float32 products inside blocks."""
WORST_CONDITION = 1e4
"""Sets whose unit-diagonal Gramian is worse conditioned are drawn again: no float32 row determines their step."""


@dataclass(frozen=True, slots=True)
class GradientSet:
    """Rows [K, D] in float64, rates [K], and what is known of them."""

    kind: str
    rows: Float64Array
    rates: Float64Array
    condition: float


def gradient_sets(count: int, seed: int, streamed_values: int = STREAMED_VALUES) -> Iterator[GradientSet]:
    """Draw `count` sets: by turns random and conflicting, two small and two of at least `streamed_values` values."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        kind = ("random", "conflicting")[number % 2]
        while True:
            clients = int(rng.integers(2, MOST_CLIENTS + 1))
            least = 2 * clients if number % 4 < 2 else max(2 * clients, -(-streamed_values // clients))
            drawn = draw(kind, clients, least + int(rng.integers(0, 2000)), rng)
            if drawn.condition < WORST_CONDITION:
                yield drawn
                break


def draw(kind: str, clients: int, dim: int, rng: Generator) -> GradientSet:
    """A random or conflicting set with lengths and rates that differ between clients.

    Conflicting rows have all but a share c of their mean taken away, so that the products of any two become negative;
    c is drawn between 0.01 and 1 on a logarithmic scale, and the condition number is about 1 / c^2.
    """
    rows = rng.standard_normal((clients, dim))
    if kind == "conflicting":
        share = 10.0 ** rng.uniform(-2.0, 0.0)
        rows -= (1 - share) * rows.mean(axis=0)
    rows *= rng.uniform(0.5, 2.0, (clients, 1))
    condition = ScaledGram.of(rows @ rows.T).condition(1e-15)
    return GradientSet(kind, rows, rng.uniform(0.1, 1.0, clients), condition)
