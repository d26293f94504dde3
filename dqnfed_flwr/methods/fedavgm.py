"""FedAvgM: server momentum.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019; in Reddi et al. 2021 the same with SGD and momentum as the server's optimiser.

Deviations from the paper: none. The displacements of a round whose step the step rule refused stay in the momentum. A
mean whose square is no number any more is left out of it and counted (note `overflow`): v would carry it for rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config.methods import FedAvgMSettings
from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.types import RoundBatch


class FedAvgM(VectorMethod):
    """v <- beta v + sum p_k (theta - theta_k), step = lr v, from v = 0.

    Parameters
    ----------
    settings : FedAvgMSettings
        lr and beta.
    unit : float
        eta where the rows are gradients; 1 where they are displacements.
    """

    def __init__(self, settings: FedAvgMSettings, unit: float) -> None:
        self._lr, self._beta, self._unit = settings.lr, settings.momentum, unit
        self._velocity = torch.zeros(())
        self._overflow = False

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean displacement into v."""
        mean = rows.combine(self._unit * batch.shares)
        self._overflow = not math.isfinite(float(torch.dot(mean, mean)))
        self._velocity = self._velocity.expand_as(mean) if self._overflow else self._beta * self._velocity + mean

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """lr v [D]."""
        del batch, rows
        return self._lr * self._velocity

    def notes(self) -> Mapping[str, float]:
        """Whether the mean of this round was left out."""
        return {"overflow": float(self._overflow)}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """v."""
        return {"velocity": self._velocity.numpy()}

    def restore_state(self, state: State) -> None:
        """Take up v."""
        self._velocity = torch.from_numpy(np.array(state["velocity"]))
