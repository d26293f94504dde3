"""Data sets that are read sample by sample, good and bad ones, and a task on one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate, get_worker_info

from dqnfed_flwr.client.reading import Collate, Reading
from dqnfed_flwr.client.samples import Samples, StreamedSamples, read_samples
from dqnfed_flwr.tasks._base import Datasets, Task

CPU = torch.device("cpu")
Pair = tuple[Tensor, Tensor]


class Pairs:
    """Inputs and targets, sample by sample; `touch` is called with each number before the sample is read."""

    def __init__(self, inputs: Tensor, targets: Tensor, touch: Callable[[int], object] = lambda row: None) -> None:
        self.inputs, self.targets, self.touch = inputs, targets, touch

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Pair:
        if not 0 <= row < len(self):
            raise IndexError(row)
        self.touch(row)
        return self.inputs[row], self.targets[row]


class Augmented(Pairs):
    """Adds noise that `noise` draws for a number."""

    def __init__(self, inputs: Tensor, targets: Tensor, noise: Callable[[int], float]) -> None:
        super().__init__(inputs, targets)
        self.noise = noise

    def __getitem__(self, row: int) -> Pair:
        inputs, targets = super().__getitem__(row)
        return inputs + self.noise(row), targets


def seeded_by_number(row: int) -> float:
    """The same for a number whenever it is asked for, and torch's generator is not as before."""
    torch.manual_seed(row)
    return torch.rand(()).item()


DRAWS: dict[str, Callable[[int], float]] = {
    "torch": lambda row: torch.rand(()).item(),
    "numpy": lambda row: float(np.random.rand()),  # noqa: NPY002
    "python": lambda row: random.random(),
    "seldom": lambda row: float(random.random() < 1e-9),
    "own": (lambda rng: lambda row: float(rng.random()))(np.random.default_rng(0)),
}
"""Noise that is other noise each time."""


def dies_at(number: int) -> Callable[[int], None]:
    """Ends the process that reads ahead at a sample, as the kernel does where memory is short."""

    def touch(row: int) -> None:
        if row == number and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    return touch


def streamed(
    dataset: Pairs,
    workers: int = 0,
    *,
    collate: Collate = default_collate,
    client: int = 3,
    dtype: torch.dtype | None = None,
) -> StreamedSamples:
    """The samples of a data set, read in every pass."""
    found = opened(dataset, Reading(collate, dtype or torch.float32, CPU, workers, 0, client))
    assert isinstance(found, StreamedSamples)
    return found


def opened(dataset: Pairs, reading: Reading) -> Samples:
    """As a client opens them."""
    return read_samples(dataset, reading)


class Folder:
    """A folder of .npy files, a sample each."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, float]:
        values = torch.from_numpy(np.load(self.files[row])).float()
        return values / 16, float(values.sum() / 512)


class Brightness(Task):
    """How bright an image of a folder is, which the environment variable FOLDER names; a client has one of its own."""

    def model(self) -> nn.Module:
        """Linear regression with a layer that drops inputs while it trains."""
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 1), nn.Flatten(0))

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Of the client's folder."""
        folder = Path(os.environ["FOLDER"]) / str(partition)
        return Datasets(Folder(folder / "train"), Folder(folder / "test"), Folder(folder / "validation"))

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Squared errors."""
        inputs, targets = batch
        errors: Tensor = model(inputs) - targets
        return errors.square()
