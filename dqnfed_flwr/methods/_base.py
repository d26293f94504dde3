"""What a method is: it turns the figures of a round into coefficients over the rows.

Most methods need only inner products and derive from `GramMethod`: a small function from a `RoundBatch` to K weights.
Those that need a vector of size D derive from `Method` and ask the basis for it: the type says what a method costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.types import Combination, Float64Array, FloatArray, RoundBatch

State = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The D-sized side of a round.

    Attributes
    ----------
    basis : Basis
        Rows of the clients, and free slots behind them for references.
    slots : tuple[int, ...]
        Slot of each client's row, in the order of `RoundBatch.clients`.
    updates : tuple[FloatArray, ...]
        Displacements theta - theta_k [D] of local passes in the same order; empty unless clients send them.
    """

    basis: Basis
    slots: tuple[int, ...]
    updates: tuple[FloatArray, ...] = ()

    def combine(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the clients' rows by K weights."""
        return self.basis.combine(self.spread(weights))

    def spread(self, weights: Float64Array) -> Float64Array:
        """Lay K weights out over all slots of the basis."""
        out = np.zeros(self.basis.capacity)
        out[list(self.slots)] = weights
        return out

    def mean_update(self, shares: Float64Array) -> Tensor:
        """Mean displacement [D] by sample shares [K], summed in the order of the clients."""
        if not self.updates:
            raise RunError("this method needs the clients' local updates, which their replies do not hold")
        total = np.zeros_like(self.updates[0])
        for share, update in zip(shares, self.updates, strict=True):
            total += update * total.dtype.type(share)
        return torch.from_numpy(total)


class Method(ABC):
    """A rule that combines clients.

    Attributes
    ----------
    reference_rows : int
        Slots beyond the K clients that the method uses in the basis; they follow the clients' slots.
    """

    reference_rows: int = 0

    @abstractmethod
    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Decide the round.

        Parameters
        ----------
        batch : RoundBatch
            Figures of the K clients present.
        rows : RoundRows
            Their rows.

        Returns
        -------
        Combination
            With `weights` over all slots of the basis.
        """

    def settle(self, step: Tensor, factor: float) -> None:
        """Learn how the last `combine` was used: theta^{t+1} = theta^t - `factor` * `step` [D], 0 if not at all."""
        del step, factor

    def retreat(self) -> bool:
        """Hear that no length of the last step was accepted; True if the method will propose another one there."""
        return False

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What the method remembers between rounds, for a checkpoint."""
        return {}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        del state


class GramMethod(Method):
    """A method that never sees a vector of size D."""

    @abstractmethod
    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K clients' rows [K]."""

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """`weights`, laid out over the slots of the basis."""
        combination = self.weights(batch)
        return replace(combination, weights=rows.spread(combination.weights))
