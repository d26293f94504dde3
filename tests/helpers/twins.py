"""A model, data set or loss written in two ways that mean the same: what a run makes of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dqnfed_flwr import Datasets, Task, run
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.types import FloatArray

FEATURES, CLASSES, CLIENTS = 6, 3, 3
SMALL = {"clients": CLIENTS, "rounds": 3, "seed": 4, "partition": "iid", "local.threads": 1, "local.batch-size": 8}
METHODS = ("dqn-fed", "fedavg")
SAME = ""
"""In place of the words of a refusal: the same bits."""


@dataclass(frozen=True)
class Twin:
    """The plain way, the other way, and the words with which the other is refused, `SAME` where it is not.

    Both are what `run` is given beside the settings, such as `model`; `settings` are for both.
    """

    plain: Mapping[str, Any]
    other: Mapping[str, Any]
    refused: str = SAME
    settings: Mapping[str, Any] = field(default_factory=dict)


def outcome(given: Mapping[str, Any], **settings: Any) -> FloatArray | str:
    """The model [D] that a run ends at, or the words with which it is refused; one that has not moved is neither."""
    try:
        result = run({**SMALL, **settings}, **given)
    except DQNFedError as error:
        return str(error)
    if not result.totals.moved:
        raise AssertionError(f"the model never moved: {result.status}, {result.left_out}")
    return result.theta


def arrays(scale: float = 1.0, kind: str = "classes") -> dict[str, Any]:
    """Samples of three classes, or of one number, that can be learnt."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % CLASSES
    x = (rng.normal(size=(90, FEATURES)) + 2 * np.eye(FEATURES)[y]).astype(np.float32) * np.float32(scale)
    if kind == "values":
        return {"x_train": x, "y_train": (x @ np.linspace(-1, 1, FEATURES, dtype=np.float32))[:, None]}
    return {"x_train": x, "y_train": y, "num_classes": CLASSES}


def counts() -> dict[str, Any]:
    """Tokens below 12 of three classes."""
    rng, y = np.random.default_rng(1), np.arange(90) % CLASSES
    return {"x_train": rng.integers(0, 4, (90, 5)) + 4 * y[:, None], "y_train": y, "num_classes": CLASSES}


class Two(nn.Module):
    """Two layers, the same in all twins: a subclass changes what stands between, or how they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.body(x)))


def model(build: Callable[[], nn.Module], data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `run` is given for a model on the samples."""
    return {"model": lambda shape, classes: build(), "data": dict(arrays() if data is None else data)}


class OwnTask(Task):
    """A regression of the user's own; a subclass writes its losses or its samples in another way."""

    def model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1)

    def samples(self, partition: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(partition)
        x = torch.randn(40, FEATURES, generator=generator)
        return x, x.sum(1, keepdim=True) + partition

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        x, y = self.samples(partition)
        return Datasets(TensorDataset(x[:30], y[:30]), TensorDataset(x[30:], y[30:]))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return (model(x) - y).square()[:, 0]
