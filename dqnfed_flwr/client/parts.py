"""The parts of a client's data on one device, by the task: arrays from the settings, or the task's own data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import default_collate

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.opening import length_of, read_samples
from dqnfed_flwr.client.reading import Reading, as_it_is
from dqnfed_flwr.client.samples import HeldSamples, Samples
from dqnfed_flwr.client.stored import StoredData, StoredPart, target_dtype
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, to_model_input
from dqnfed_flwr.data.client_part import ClientPart, find_part
from dqnfed_flwr.data.clients import Part, take_part
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import DataError, DQNFedError, ModelError
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Datasets, Task
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks.arrays import ArrayTask


@dataclass(frozen=True)
class OwnData:
    """The data sets of a task of the user's own; of their form nothing is known."""

    datasets: Datasets
    input_shape: tuple[int, ...] = (1,)
    input_kind: str = "own"
    num_classes: int = 1
    feature_scale: float = 0.0
    nbytes: int = 0

    def of(self, part: Part) -> MapStyle:
        """The data set of a part; an empty list where the task has none."""
        found: MapStyle | None = getattr(self.datasets, part)
        return [] if found is None else found

    def count(self, part: Part) -> int:
        """Samples of a part."""
        return len(self.of(part))


ClientSource = ClientData | StoredData | OwnData
"""Where a client's samples come from, and what a node says of them."""


def open_client(settings: Settings, partition: int, data_path: str | None = None) -> ClientSource:
    """The data of one client of a run; arrays with a part of more than `local.held-bytes` stay where they are stored.

    Raises
    ------
    ConfigError
        If there is no such task.
    DataError
        If data or partition cannot be used, as `load_client`.
    """
    task = task_of(settings)
    if isinstance(task, ArrayTask):
        return _stored_or_taken(settings, find_part(settings, partition, data_path, task.targets))
    with naming_client(partition):
        return _own_data(task, settings, partition)


def _stored_or_taken(settings: Settings, part: ClientPart) -> ClientData | StoredData:
    """The samples where they are stored, if a part of them fills more than `local.held-bytes`; else a copy."""
    stored, most = StoredData(part), settings.local.held_bytes
    parts: tuple[Part, ...] = ("train", "validation", "test")
    largest = max((stored.of(name, DTYPES[settings.dtype]) for name in parts), key=len).nbytes
    if largest <= most:
        return take_part(settings, part)
    if settings.data_scale != "none":
        raise DataError(
            f"data-scale: {settings.data_scale} needs a client's part in memory, and one of {part.data.name} fills "
            f"{largest} bytes where local.held-bytes allows {most}; raise it, or set data-scale none and store the "
            "features scaled"
        )
    return stored


def _own_data(task: Task, settings: Settings, partition: int) -> OwnData:
    try:
        found = task.datasets(partition, settings.clients, settings.seed)
    except DQNFedError:
        raise
    except Exception as cause:  # whatever the user's own code does
        raise DataError(f"task: datasets() raised {told(cause)}") from cause
    if not isinstance(found, Datasets):
        raise DataError(f"task: datasets() returned {type(found).__name__}; it must return dqnfed_flwr.tasks.Datasets")
    for part in ("train", "test"):
        if not length_of(getattr(found, part), f"the {part} data set"):
            raise DataError(f"task: the {part} data set has no sample; give it at least one")
    return OwnData(found)


@contextmanager
def naming_client(partition: int) -> Iterator[None]:
    """Errors of a task say which client's they are."""
    try:
        yield
    except (DataError, ModelError) as error:
        head, colon, text = str(error).partition("task: ")
        if head or not colon or text.startswith("client "):
            raise
        raise type(error)(f"task: client {partition}: {text}") from error.__cause__


class DeviceParts:
    """A client's samples by part; each is opened when it is first asked for, and kept.

    `outputs` is the width of the model: class labels must be below it. `partition` names the client in errors.
    """

    def __init__(
        self, settings: Settings, task: Task, source: ClientSource, partition: int, outputs: int, device: torch.device
    ) -> None:
        self._source, self._partition, self._outputs = source, partition, outputs
        local = settings.local
        self._reading = Reading(
            task.collate or default_collate, DTYPES[settings.dtype], device, local.workers, local.held_bytes, partition
        )
        self._targets = task.targets
        self._held: dict[Part, Samples] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the parts opened so far hold."""
        return sum(samples.nbytes for samples in self._held.values())

    def part(self, name: Part) -> Samples:
        """The samples of a part, which may be none.

        Raises
        ------
        DataError
            If a label does not fit the classes, or the task's data cannot be read.
        """
        if name not in self._held:
            with naming_client(self._partition):
                self._held[name] = self._open(name)
        return self._held[name]

    def some(self, name: Part) -> Samples | None:
        """As `part`; None where it is empty."""
        return self.part(name) if self._source.count(name) else None

    def _open(self, name: Part) -> Samples:
        source = self._source
        if isinstance(source, OwnData):
            return read_samples(source.of(name), self._reading)
        if isinstance(source, StoredData):
            return self._stored(source.of(name, self._reading.dtype))
        x, y = getattr(source, f"x_{name}"), getattr(source, f"y_{name}")
        self._check(y)
        inputs = to_model_input(x, self._reading.dtype).to(self._reading.device)
        dtype = target_dtype(self._targets, self._reading.dtype)
        return HeldSamples((inputs, torch.tensor(y, dtype=dtype, device=self._reading.device)))

    def _stored(self, part: StoredPart) -> Samples:
        for y in part.target_pieces():
            self._check(y)
        return read_samples(part, replace(self._reading, collate=as_it_is))

    def _check(self, y: Any) -> None:
        """Whether labels fit the model."""
        if self._targets not in ("classes", "places"):
            return
        least = 0 if self._targets == "classes" else -1
        if y.size and not least <= y.min() <= y.max() < self._outputs:
            raise DataError(
                f"labels from {y.min()} to {y.max()} in the data of client {self._partition}; {self._outputs} "
                f"classes allow 0..{self._outputs - 1}; set num-classes"
            )


Opened = Callable[[Part], Samples | None]
"""The samples of a part that is not trained on, None where it is empty."""
