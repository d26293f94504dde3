"""Negative log-likelihoods of a user's own, which fall below 0 when the fit is good."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dqnfed_flwr.tasks import Datasets, Task


class Counts(Task):
    """Counts of a month, with the Poisson likelihood as torch has it: without the constant that keeps it above 0."""

    constant = 0.0

    def model(self) -> nn.Module:
        """Three inputs, the logarithm of a rate; it begins at the rate 1, where the loss is 1."""
        module = nn.Linear(3, 1)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        return module

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Sixty months, whose rate depends on the first input in another way for each client."""
        draw = np.random.default_rng([seed, partition])
        x = draw.normal(size=(60, 3))
        y = draw.poisson(np.exp(0.8 + 0.2 * partition + 0.3 * x[:, :1]))
        inputs, targets = (torch.tensor(part, dtype=torch.float64) for part in (x, y))
        return Datasets(TensorDataset(inputs[:50], targets[:50]), TensorDataset(inputs[50:], targets[50:]))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """exp(z) - y z, and the constant."""
        x, y = batch
        z = model(x.to(next(model.parameters()).dtype)).double()
        return nn.functional.poisson_nll_loss(z, y, full=False, reduction="none")[:, 0] + self.constant


class Floored(Counts):
    """The same with its least value: no loss is below y - y log y, and no count above 60 has come up."""

    floor: float | None = 60 - 60 * float(np.log(60))


class Shifted(Floored):
    """The same with a constant added, so that no loss is below 0."""

    floor: float | None = 0.0
    constant = 60 * float(np.log(60)) - 60


class TooHigh(Counts):
    """With a floor that its author took for granted."""

    floor = -0.1


class Normal(Counts):
    """Noisy lines, with the normal likelihood and a variance that is learnt: below 0 from the first model on."""

    def model(self) -> nn.Module:
        """Mean and logarithm of the variance, which begins small."""
        module = nn.Linear(3, 2)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        with torch.no_grad():
            module.bias[1] = -2.0
        return module

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Sixty points near y = 0.3 x_1."""
        draw = np.random.default_rng([seed, partition])
        x = draw.normal(size=(60, 3))
        y = 0.3 * x[:, :1] + (0.1 + 0.02 * partition) * draw.normal(size=(60, 1))
        inputs, targets = (torch.tensor(part, dtype=torch.float64) for part in (x, y))
        return Datasets(TensorDataset(inputs[:50], targets[:50]), TensorDataset(inputs[50:], targets[50:]))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Half of log variance and squared error over it."""
        x, y = batch
        out = model(x.to(next(model.parameters()).dtype)).double()
        return nn.functional.gaussian_nll_loss(out[:, :1], y, out[:, 1:].exp(), reduction="none")[:, 0]
