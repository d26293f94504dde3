"""FedAvgM: server momentum.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019; in Reddi et al. 2021 the same with SGD and momentum as the server's optimiser.

Deviations from the paper: none. The displacements of a round whose step the step rule refused stay in the momentum. A
mean whose square is no number any more is left out of it and counted (note `overflow`): v would carry it for rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import Profile, RunSettings
from dqnfed_flwr.types import RoundBatch

if TYPE_CHECKING:
    from torch import Tensor


class FedAvgMSettings(Group):
    """FedAvgM."""

    lr: float = own(1.0, "server rate", gt=0)
    momentum: float = own(0.9, "beta", ge=0, lt=1)


class FedAvgM(VectorMethod):
    """v <- beta v + sum p_k (theta - theta_k), step = lr v, from v = 0."""

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        import torch

        settings = run.group_of(FedAvgMSettings)
        self._lr, self._beta = settings.lr, settings.momentum
        self._velocity = torch.zeros(())
        self._overflow = False

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean displacement into v."""
        import torch

        mean = rows.combine(self._row_lr * batch.shares)
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
        import torch

        self._velocity = torch.from_numpy(np.array(state["velocity"]))


METHODS = (
    Profile(
        name="fedavgm",
        title="FedAvgM",
        settings=FedAvgMSettings,
        build=FedAvgM,
    ),
)
