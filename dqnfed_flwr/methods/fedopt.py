"""Optimisers on the server, fed with the clients' mean displacement: FedAvgM and FedAdam.

FedAvgM is Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019; FedAdam is Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2, which has the former as SGD with momentum.

The displacements of a round whose step the step rule refused stay in the averages. A mean whose square is no number any
more is left out of them and counted (note `overflow`): they would carry it for rounds, or for good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dqnfed_flwr.methods._base import RoundRows, VectorMethod
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor

BETA1, BETA2 = 0.9, 0.99
"""FedAdam's weights of the mean and of the mean square before; the paper has these throughout."""


class ServerOptimiser(VectorMethod):
    """Averages over rounds that leave out a mean which is too large."""

    sees = Sees.SUM
    _overflow = False

    def notes(self) -> Mapping[str, float]:
        """Whether the mean of this round was left out."""
        return {"overflow": float(self._overflow)}


class FedAvgMSettings(Group):
    """FedAvgM."""

    lr: float = own(1.0, "server rate", gt=0)
    momentum: float = expert(0.9, "beta", ge=0, lt=1)


class FedAvgM(ServerOptimiser):
    """v <- beta v + sum p_k (theta - theta_k), step = lr v, from v = 0. No deviations."""

    _remembered = ("velocity",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        import torch

        settings = run.group_of(FedAvgMSettings)
        self._lr, self._beta = settings.lr, settings.momentum
        self._velocity = torch.zeros(())

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean displacement into v."""
        import torch

        mean = rows.combine(self._row_lr * batch.shares)
        self._overflow = not math.isfinite(float(torch.dot(mean, mean)))
        before = self._velocity.to(mean.device)  # a memory that was restored lies on the host
        self._velocity = before.expand_as(mean) if self._overflow else self._beta * before + mean

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """lr v [D]."""
        return self._lr * self._velocity

    def forget(self) -> None:
        """v = 0."""
        import torch

        self._velocity = torch.zeros_like(self._velocity)


class FedAdamSettings(Group):
    """FedAdam."""

    lr: float = own(0.01, "server rate", gt=0)
    tau: float = expert(1e-3, "added to the root of the mean square", gt=0)


class FedAdam(ServerOptimiser):
    """step = lr m / (sqrt(v) + tau), coordinate by coordinate, with D = sum p_k (theta - theta_k).

        m <- beta1 m + (1 - beta1) D,    v <- beta2 v + (1 - beta2) D^2

    from m = 0 and v = tau^2, the smallest value that the paper allows; as there, the bias is not corrected. Deviation
    from the paper: clients count by sample share, not alike. From published code: some start v at 0, some correct the
    bias.
    """

    _remembered = ("first", "second")

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        import torch

        settings = self._settings = run.group_of(FedAdamSettings)
        self._first = torch.zeros(())
        self._second = torch.tensor(settings.tau**2, dtype=torch.float64)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the mean displacement into m and v."""
        import torch

        mean = rows.combine(self._row_lr * batch.shares)
        square = mean.square()
        self._first, self._second = self._first.to(mean.device), self._second.to(mean.device)  # restored on the host
        self._overflow = not bool(torch.isfinite(square).all())
        if self._overflow:
            self._first = self._first.expand_as(mean)
            return
        self._first = BETA1 * self._first + (1 - BETA1) * mean
        self._second = BETA2 * self._second + (1 - BETA2) * square

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """lr m / (sqrt(v) + tau) [D]."""
        return self._settings.lr * self._first / (self._second.sqrt() + self._settings.tau)

    def forget(self) -> None:
        """m = 0; v says how long moves are, not where they lead, and stays."""
        import torch

        self._first = torch.zeros_like(self._first)


METHODS = (
    Profile(name="fedavgm", title="FedAvgM", settings=FedAvgMSettings, build=FedAvgM),
    Profile(name="fedadam", title="FedAdam", settings=FedAdamSettings, build=FedAdam),
)
