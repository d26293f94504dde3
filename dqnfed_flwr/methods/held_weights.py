"""Weights on the simplex that the server holds for all clients; a round moves those of the clients present.

With sampling, the weights of those present are normalised and moved among themselves; the total of the absent ones
stays. A client seen for the first time enters with its share of the samples of all clients seen, itself included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import State
from dqnfed_flwr.types import Float64Array, RoundBatch


class HeldWeights:
    """The weights of all clients seen; they sum to 1.

    Attributes
    ----------
    restart : bool
        Whether all clients present had weight 0, so that this round goes by their samples.
    """

    def __init__(self) -> None:
        self.restart = False
        self._weights: dict[int, float] = {}
        self._samples: dict[int, float] = {}
        self._total = 0.0

    def take(self, batch: RoundBatch, samples: Float64Array) -> Float64Array:
        """The weights of the clients present [K], normalised to 1; `samples` [K] > 0 are those a new one counts by."""
        self._welcome(batch, samples)
        held = np.array([self._weights[client] for client in batch.clients])
        self._total = float(held.sum())
        self.restart = self._total <= 0
        return samples / samples.sum() if self.restart else held / self._total

    def put(self, batch: RoundBatch, weights: Float64Array) -> None:
        """Let the clients present share their total by `weights` [K] from the next round on."""
        self._weights.update(zip(batch.clients, (self._total * weights).tolist(), strict=True))

    def _welcome(self, batch: RoundBatch, samples: Float64Array) -> None:
        """Give clients that were never seen their weight, and scale down the others."""
        new = {c: float(n) for c, n in zip(batch.clients, samples, strict=True) if c not in self._weights}
        self._samples |= new
        total = sum(self._samples.values())
        entering = {client: count / total for client, count in new.items()}
        rest = 1 - sum(entering.values())
        self._weights = {client: weight * rest for client, weight in self._weights.items()} | entering

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Weights and samples of all clients seen."""
        seen = sorted(self._weights)
        return {
            "clients": np.array(seen, dtype=np.int64),
            "examples": np.array([self._samples[client] for client in seen], dtype=np.float64),
            "lambda": np.array([self._weights[client] for client in seen], dtype=np.float64),
        }

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        clients = state["clients"].tolist()
        self._weights = dict(zip(clients, state["lambda"].tolist(), strict=True))
        self._samples = dict(zip(clients, state["examples"].tolist(), strict=True))
