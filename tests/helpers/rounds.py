"""One round as a method sees it, from rows given as an array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.strategy.solve import Solved, solve
from dqnfed_flwr.types import Float64Array, RoundBatch


def decide(
    method: Method,
    grads: Float64Array,
    *,
    rates: Sequence[float] | Float64Array | None = None,
    examples: Sequence[float] | None = None,
    clients: Sequence[int] | None = None,
    number: int = 1,
) -> Solved:
    """What `method` makes of the rows [K, D]; rates |g_k|^2, samples equal and updates 0.1 g_k by default."""
    count, dim = grads.shape
    basis = Basis(count + method.reference_rows, dim, torch.float64)
    for slot, row in enumerate(grads):
        basis.put(slot, row)
    weights = np.asarray(examples or [1.0] * count)
    batch = RoundBatch(
        gram=basis.gram(range(count)),
        losses=np.ones(count),
        rates=np.sum(grads**2, axis=1) if rates is None else np.asarray(rates, np.float64),
        shares=weights / weights.sum(),
        clients=tuple(clients or range(count)),
        round=number,
    )
    return solve(method, batch, RoundRows(basis, tuple(range(count)), tuple(0.1 * grads)))
