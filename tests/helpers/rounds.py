"""One round as a method sees it, from rows given as an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.linalg.rows import IN_MEMORY, RowSet
from dqnfed_flwr.methods._base import LayerMethod, Method, RoundRows
from dqnfed_flwr.strategy.solve import Solved, solve
from dqnfed_flwr.types import Float64Array, FloatArray, RoundBatch

Vectors = Mapping[str, tuple[FloatArray, ...]]


def round_rows(rows: Float64Array, further: int = 0) -> RoundRows:
    """Rows [K, D] in the first slots of a row set with `further` empty ones."""
    held = RowSet(len(rows) + further, rows.shape[1], torch.float64)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    return RoundRows(held, tuple(range(len(rows))))


def decide(
    method: Method,
    grads: Float64Array,
    *,
    rates: Sequence[float] | Float64Array | None = None,
    losses: Sequence[float] | Float64Array | None = None,
    examples: Sequence[float] | None = None,
    clients: Sequence[int] | None = None,
    number: int = 1,
    vectors: Vectors | None = None,
    figures: Mapping[str, Float64Array] | None = None,
    slack: Sequence[float] = (),
    memory: RowMemory = IN_MEMORY,
) -> Solved:
    """What `method` makes of the rows [K, D].

    By default the rates are |g_k|^2, samples and losses equal, an anchor's row 0.1 g_k, and whatever else a method asks
    clients for is 0; a method that decides by layers gets three of them.
    """
    count, dim = grads.shape
    if isinstance(method, LayerMethod) and not method.layers:
        method.layers = tuple(slice(*bounds) for bounds in ((0, 1), (1, dim // 2), (dim // 2, dim)))
    held = RowSet(count + method.reference_rows, dim, torch.float64, memory=memory)
    for slot, row in enumerate(grads):
        held.put(slot, row)
    weights = np.asarray(examples or [1.0] * count)
    asked = method.extras(dim)
    blank = {name: tuple(np.zeros(shape) for _ in grads) for name, shape in asked.vectors.items()}
    batch = RoundBatch(
        gram=held.gram(range(count)),
        losses=np.ones(count) if losses is None else np.asarray(losses, np.float64),
        rates=np.sum(grads**2, axis=1) if rates is None else np.asarray(rates, np.float64),
        shares=weights / weights.sum(),
        clients=tuple(clients or range(count)),
        round=number,
        figures={**{name: np.zeros(count) for name in asked.figures}, **(figures or {})},
        examples=weights,
        slack=np.asarray(slack, np.float64),
    )
    given = {**blank, "anchor": tuple(0.1 * grads), **(vectors or {})}
    return solve(method, batch, RoundRows(held, tuple(range(count)), given))
