"""Problems whose audit is known beforehand, and runs of every shipped task on a little noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dqnfed_flwr.audit.weights import AuditedRun, Weights
from dqnfed_flwr.config import Settings
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.tasks import Datasets, Task
from dqnfed_flwr.types import Figure
from tests.helpers.audits import END

HERE = "tests.helpers.audited_tasks"


class Farthest:
    """The largest error."""

    higher_is_better = False

    def __init__(self) -> None:
        self.most = 0.0

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in a batch."""
        self.most = max(self.most, (predictions - targets).abs().max().item())

    def compute(self) -> float:
        """The largest of all."""
        return self.most


class Hand(Task):
    """Squared errors of w x + b on the test samples (1, 1), (2, 4)."""

    def model(self) -> nn.Module:
        """One weight and one bias."""
        return nn.Linear(1, 1)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """The same for every client."""
        x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        return Datasets(TensorDataset(x, y), TensorDataset(x, y))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Errors squared [n]."""
        return (model(batch[0]) - batch[1]).square()[:, 0]

    def metrics(self) -> Mapping[str, Any]:
        """One figure."""
        return {"farthest": Farthest()}


class InParts(Hand):
    """The same errors with weight 3, beside ones of twice their size with weight 1; sample 2 has no weight at all."""

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Losses and weights [n, 2]."""
        errors = super().losses(model, batch)
        weights = torch.tensor([3.0, 1.0]) * (batch[0] < 2)
        return torch.stack([errors, 2 * errors], dim=1), weights


class Whole(Hand):
    """Without a figure of its own."""

    def metrics(self) -> Mapping[str, Any]:
        """None."""
        return {}


class Negative(Hand):
    """What its author calls a loss is below 0 for models far off."""

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Errors, until they are large."""
        errors = super().losses(model, batch)
        return torch.where(errors > 50, -errors, errors)


class AboveMinus1(Negative):
    """The same less 1, and said to be above -1."""

    floor = -1.0

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Losses less 1."""
        return super().losses(model, batch) - 1


class Slopes(Task):
    """Client `odd` has y = -x, all others y = x with the same noise: the mean's line serves all of them but it."""

    odd = 2

    def model(self) -> nn.Module:
        """A line that begins at 0.5 x."""
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, 0.5)
        return layer

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Forty samples to train on and forty to test on."""
        x = torch.linspace(-1, 1, 80)[:, None]
        noise = torch.from_numpy(np.random.default_rng(7).normal(0, 0.5, (80, 1))).float()
        y = (-1 if partition == self.odd else 1) * x + noise
        return Datasets(TensorDataset(x[::2], y[::2]), TensorDataset(x[1::2], y[1::2]))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        """Squared errors [n]."""
        return (model(batch[0]) - batch[1]).square()[:, 0]

    def metrics(self) -> Mapping[str, Any]:
        """One figure."""
        return {"farthest": Farthest()}


class SlopesPermuted(Slopes):
    """The same with the odd client in another place."""

    odd = 0


def dense(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logits of C classes at every pixel."""
    return nn.Conv2d(input_shape[0], num_classes, 3, padding=1)


def words(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logits of the tokens that follow."""
    return nn.Sequential(nn.Embedding(num_classes, 4), nn.Linear(4, num_classes))


KINDS: dict[str, str] = {
    "regression": "tests.helpers.models:norm_mlp",
    "huber-regression": "tests.helpers.models:half_frozen",
    "multi-label": "logistic",
    "segmentation": f"{HERE}:dense",
    "next-token": f"{HERE}:words",
}
"""Models by task: with buffers, and with a frozen part, among them."""


def settings_of(folder: Path, task: str, **changes: Any) -> dict[str, Any]:
    """Three clients that share 90 samples of noise."""
    draw = np.random.default_rng(1)
    arrays: dict[str, tuple[Any, Any]] = {
        "classification": (draw.normal(size=(90, 4)), np.arange(90) % 3),
        "regression": (draw.normal(size=(90, 4)), draw.normal(size=90)),
        "huber-regression": (draw.normal(size=(90, 4)), 3 * draw.normal(size=(90, 2))),
        "multi-label": (draw.normal(size=(90, 4)), draw.integers(0, 2, (90, 3))),
        "segmentation": (draw.integers(0, 99, (90, 5, 5)).astype(np.uint8), draw.integers(-1, 3, (90, 5, 5))),
        "next-token": (draw.integers(0, 6, (90, 7)).astype(np.int16), draw.integers(-1, 6, (90, 7))),
    }
    x, y = arrays[task]
    x = x.astype(np.float32) if x.dtype == np.float64 else x
    np.savez(folder / "set.npz", allow_pickle=False, x_train=x, y_train=y)
    shared = {"data": str(folder / "set.npz"), "partition": "iid", "clients": 3, "rounds": 3, "method": "fedavg"}
    return {
        **shared,
        "task": task,
        "model": KINDS.get(task, "logistic"),
        "local.threads": 1,
        "local.batch-size": 8,
        "split.validation-fraction": 0.2,
        **changes,
    }


def hand_run(task: str = "Hand", start_loss: float | None = 5.0) -> AuditedRun:
    """A run of `Hand` that never took place, whose model is y = x."""
    settings = Settings.from_mapping({"task": f"{HERE}:{task}", "clients": 1, "local.threads": 1})
    figure = Figure("loss", higher=False) if task == "Whole" else Figure("farthest", higher=False)
    form = Form((1,), "own", 1, 2)
    return AuditedRun(Path("nowhere"), settings, form, line(1.0, 0.0), None, END, figure, start_loss)


def line(slope: float, offset: float) -> Weights:
    """The model slope x + offset."""
    return Weights(np.array([slope, offset], dtype=np.float32), {})
