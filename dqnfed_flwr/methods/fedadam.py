"""FedAdam: Adam on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2.

Deviations from the paper: clients count by sample share, not alike; v starts at tau^2, the smallest value that the
paper allows. As in the paper there is no bias correction. Deviations from published code: some start v at 0, some
correct the bias. The displacements of a round whose step the step rule refused stay in the averages. A mean whose
square is no number any more is left out of them and counted (note `overflow`): v would never come down from it.
"""

from __future__ import annotations

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


class FedAdamSettings(Group):
    """FedAdam."""

    lr: float = own(0.01, "server rate", gt=0)
    beta1: float = own(0.9, "weight of the mean before", ge=0, lt=1)
    beta2: float = own(0.99, "weight of the mean square before", ge=0, lt=1)
    tau: float = own(1e-3, "added to the root of the mean square", gt=0)


class FedAdam(VectorMethod):
    """step = lr m / (sqrt(v) + tau), coordinate by coordinate, with D = sum p_k (theta - theta_k).

        m <- beta1 m + (1 - beta1) D,    v <- beta2 v + (1 - beta2) D^2

    from m = 0 and v = tau^2.
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        import torch

        settings = self._settings = run.group_of(FedAdamSettings)
        self._first = torch.zeros(())
        self._second = torch.tensor(settings.tau**2, dtype=torch.float64)
        self._overflow = False

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean displacement into m and v."""
        import torch

        mean = rows.combine(self._row_lr * batch.shares)
        square = mean.square()
        self._overflow = not bool(torch.isfinite(square).all())
        if self._overflow:
            self._first = self._first.expand_as(mean)
            return
        beta1, beta2 = self._settings.beta1, self._settings.beta2
        self._first = beta1 * self._first + (1 - beta1) * mean
        self._second = beta2 * self._second + (1 - beta2) * square

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """lr m / (sqrt(v) + tau) [D]."""
        del batch, rows
        return self._settings.lr * self._first / (self._second.sqrt() + self._settings.tau)

    def notes(self) -> Mapping[str, float]:
        """Whether the mean of this round was left out."""
        return {"overflow": float(self._overflow)}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """m and v."""
        return {"first": self._first.numpy(), "second": self._second.numpy()}

    def restore_state(self, state: State) -> None:
        """Take up m and v."""
        import torch

        self._first, self._second = (torch.from_numpy(np.array(state[name])) for name in ("first", "second"))


METHODS = (
    Profile(
        name="fedadam",
        title="FedAdam",
        settings=FedAdamSettings,
        build=FedAdam,
    ),
)
