"""A task of a user's own, as small as one can be, and the ways in which one may be at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dqnfed_flwr.tasks import Datasets, Task


class Line(Task):
    """Squared errors of a linear model; every client has twelve samples of its own."""

    def model(self) -> nn.Module:
        """Three inputs, one output."""
        return nn.Linear(3, 1)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Normal inputs, with a noise of the client's."""
        generator = torch.Generator().manual_seed(seed * clients + partition)
        x = torch.randn(12, 3, generator=generator)
        y = x.sum(1, keepdim=True) / 9 + torch.randn(12, 1, generator=generator) / 50
        return Datasets(train=TensorDataset(x[:8], y[:8]), test=TensorDataset(x[8:], y[8:]))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """A twentieth of the squared errors [n]."""
        x, y = batch
        return (model(x) - y).square()[:, 0] / 20


def whole(dataset: Any) -> tuple[Tensor, Tensor]:
    """All samples of a data set at once."""
    x, y = zip(*(dataset[place] for place in range(len(dataset))), strict=True)
    return torch.stack(x), torch.stack(y)


class BadMetricOfOne(Line):
    """A figure that raises on one client."""

    def metrics(self) -> Mapping[str, Any]:
        """One figure."""
        return {"picky": Picky()}

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Client 1 is tested on large inputs."""
        found = super().datasets(partition, clients, seed)
        x, y = whole(found.test)
        return Datasets(found.train, TensorDataset(x, y + 100.0 * (partition == 1)))


class BadDataOfOne(Line):
    """Data that client 1 cannot read."""

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """None for client 1."""
        if partition == 1:
            raise FileNotFoundError("no scans here")
        return super().datasets(partition, clients, seed)


class Picky:
    """A twentieth of the mean error; it refuses large targets."""

    higher_is_better = False

    def __init__(self) -> None:
        self._errors: list[Tensor] = []

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in a batch."""
        if targets.max() > 10:
            raise ValueError("too large")
        self._errors.append((predictions - targets).abs() / 20)

    def compute(self) -> Tensor:
        """The mean."""
        return torch.cat(self._errors).mean()
