"""A client whose images do not fit into memory, in a process of its own: its memory, and its speed beside a plain loop.

Two ways to store the images: a memory-mapped array in an .npz file, and a folder of .npy files with a data set of the
user's. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from benchmarks._common import Json, median, timed
from benchmarks.server_memory import resident
from dqnfed_flwr.client.device import choose_device
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import ClientSource, DeviceParts, StoredData, open_client
from dqnfed_flwr.client.reading import as_it_is
from dqnfed_flwr.client.samples import bytes_of_one
from dqnfed_flwr.config import Settings
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Datasets, Task
from dqnfed_flwr.types import ClientTask

SIDE, CLASSES, WIDTH = 224, 100, 4096
IMAGE_BYTES = SIDE * SIDE * 3
FOLDER = "STREAMING_FOLDER"
ARRAYS = "images.npz"
COPIES = 6
"""Vectors of the model's size that a client may hold."""
PAUSE = 0.002  # seconds between two looks at the memory


def patches(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network on patches of an image, cheap for its number of parameters, so that reading counts."""
    channels, height, width = input_shape
    inner = 8 * (height // 32) * (width // 32)
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 32, stride=32), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(inner, WIDTH), nn.ReLU(), nn.Linear(WIDTH, num_classes)),
    )


class Images:
    """The images of a folder, a .npy file each; the name ends in the class."""

    def __init__(self, folder: str, names: list[str]) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        name = self.names[row]
        pixels = torch.from_numpy(np.load(f"{self.folder}/{name}")).permute(2, 0, 1).float()
        return pixels.div_(127.5).sub_(1.0), int(name.removesuffix(".npy").rpartition("-")[2])


class OfFolder(Task):
    """Classification of the images of a folder, which the environment variable `FOLDER` names."""

    def model(self) -> nn.Module:
        """The same as of the arrays."""
        return patches((3, SIDE, SIDE), CLASSES)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """A fifth is tested on."""
        folder = os.environ[FOLDER]
        names = sorted(os.listdir(folder))
        tested = len(names) // 5
        return Datasets(Images(folder, names[tested:]), Images(folder, names[:tested]))

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropies."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def settings_of(kind: str, folder: Path, workers: int) -> Settings:
    """One client, all of whose images are streamed."""
    arrays = {"data": str(folder / ARRAYS), "num-classes": CLASSES, "model": "benchmarks._streaming:patches"}
    images = {"task": "benchmarks._streaming:OfFolder"}
    of_kind: dict[str, Any] = dict(arrays if kind == "arrays" else images)
    local = {"local.held-bytes": 0, "local.workers": workers, "local.threads": 1}
    return Settings.from_mapping({"clients": 1, "partition": "iid", **of_kind, **local})


def memory_of(settings: Settings) -> dict[str, Json]:
    """Peak of the anonymous memory of a client that trains, probes and tests, over what the libraries hold."""
    weight = torch.ones(1, 3, 2, 2, requires_grad=True)
    torch.autograd.grad(nn.functional.conv2d(torch.ones(1, 3, 8, 8), weight).sum(), weight)  # what libraries keep
    size = sum(parameter.numel() for parameter in patches((3, SIDE, SIDE), CLASSES).parameters())
    with _peak() as peak:
        source = open_client(settings, 0)
        client = DQNFedClient(settings, 0, source)
        asked = ClientTask(1, 1, train=True, evaluate=True, num_classes=source.num_classes)
        client.work(asked, np.zeros(size, np.float32))
    del client
    loss = _loss(settings, source)
    chunk = loss.chunk * bytes_of_one(loss.model, loss.samples, loss.task)
    allowed = COPIES * 4 * size + 2 * chunk
    return {
        "parameters": size,
        "chunk": loss.chunk,
        "chunk_bytes": chunk,
        "peak_memory_bytes": peak[0],
        "memory_over_allowed": peak[0] / allowed,
    }


def speed_of(settings: Settings, repeats: int) -> dict[str, Json]:
    """Seconds of a pass for the gradient, and of a plain loop over the same loader; they take turns.

    The ratio is that of this process's processor time, which other jobs lengthen less; with workers see the clock.
    """
    source = open_client(settings, 0)
    loss = _loss(settings, source)
    theta = loss.model.theta.clone()
    loader = _plain_loader(settings, source, loss.chunk)
    ours, plain = [], []
    for turn in range(repeats):
        if turn % 2:
            plain.append(timed(lambda: _plain(loss.model, loader)))
        ours.append(timed(lambda: loss.loss_and_gradient(theta)))
        if not turn % 2:
            plain.append(timed(lambda: _plain(loss.model, loader)))
    by_clock, by_processor = ([b[of] / a[of] for a, b in zip(ours, plain, strict=True)] for of in (0, 1))
    return {
        "samples": loss.num_examples,
        "seconds": median([one for one, _ in ours]),
        "plain_seconds": median([one for one, _ in plain]),
        "plain_over_ours": median(by_processor),
        "plain_over_ours_by_clock": median(by_clock),
        "turns": [[*a, *b] for a, b in zip(ours, plain, strict=True)],
    }


def _plain_loader(settings: Settings, source: ClientSource, chunk: int) -> DataLoader[Any]:
    stored = isinstance(source, StoredData)
    dataset = source.of("train", torch.float32) if isinstance(source, StoredData) else cast(Any, source).of("train")
    workers = settings.local.workers
    return DataLoader(
        cast(Any, dataset),
        batch_size=chunk,
        collate_fn=as_it_is if stored else default_collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=1 if workers else None,
    )


def _plain(model: FlatModel, loader: DataLoader[Any]) -> float:
    """Loss and gradient as one writes them in torch."""
    total = 0.0
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model.module(inputs), labels, reduction="sum")
        torch.autograd.backward(loss)
        total += loss.item()
    for parameter in model.parameters:
        parameter.grad = None
    return total


def _loss(settings: Settings, source: ClientSource) -> LocalLoss:
    task, classes = task_of(settings), source.num_classes
    model = FlatModel(task.build(source.input_shape, classes, seed=0, dtype=torch.float32), _cpu())
    train = DeviceParts(settings, task, source, 0, CLASSES, _cpu()).part("train")
    return LocalLoss(model, train, task=task)


def _cpu() -> torch.device:
    return choose_device("cpu", "float32")


@contextmanager
def _peak() -> Iterator[list[int]]:
    """The most anonymous memory of this process within, over what it had before, once that is over."""
    before, peak, over = resident("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not over.wait(PAUSE):
            peak[0] = max(peak[0], resident("RssAnon") - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def main(kind: str, folder: str, workers: str, repeats: str, limit: str) -> None:
    """Measure one kind under a limit to the memory that the process may ask for, and print the figures as JSON."""
    os.environ[FOLDER] = folder
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    torch.set_num_threads(1)
    settings = settings_of(kind, Path(folder), int(workers))
    print(json.dumps(memory_of(settings) | speed_of(settings, int(repeats))))


if __name__ == "__main__":
    main(*sys.argv[1:])
