"""The parts of a client's data on one device, by the task: arrays, held or where they are stored, or its own sets."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.reading import Reading, as_it_is
from dqnfed_flwr.client.samples import HeldSamples, Samples, length_of, read_samples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.data.client_part import ClientPart, find_part
from dqnfed_flwr.data.clients import Part, TargetSummary, each_usable, power_of_ten, take, take_part, with_faults
from dqnfed_flwr.data.dataset import (
    Array,
    IntArray,
    TargetForm,
    sample_kind,
    sample_shape,
    to_model_input,
    used_targets,
)
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import ClientDataError, DataError, DQNFedError, ModelError
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Datasets, Task
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks.arrays import ArrayTask

_LOOKED_AT = 256
"""Training samples that say how large features are."""
_AT_A_TIME = 4096
_PIECE_BYTES = 1 << 24
logger = logging.getLogger("flwr")
Opened = Callable[[Part], Samples | None]
"""The samples of a part that is not trained on, None where it is empty."""


@dataclass(frozen=True)
class StoredPart:
    """A map-style data set of samples as the model takes them: inputs and targets, the bits of `to_model_input`.

    Attributes
    ----------
    x, y : Array, Array
        Inputs and targets as they are stored.
    samples, targets : IntArray, IntArray
        Where this part's samples lie in `x` [n], and in `y` [n].
    form : TargetForm
        Of `y`.
    dtype : torch.dtype
        Of inputs that are no tokens, and of targets that are no classes.
    name : str
        Of the set, for errors.
    """

    x: Array
    y: Array
    samples: IntArray
    targets: IntArray
    form: TargetForm
    dtype: torch.dtype
    name: str

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.__getitems__([row])
        return inputs[0], targets[0]

    def __getitems__(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch; `DataError` where features are not finite."""
        inputs = to_model_input(take(self.x, self.samples[rows], self.name), self.dtype)
        return inputs, torch.tensor(self._targets(rows), dtype=target_dtype(self.form, self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as the model takes them."""
        return sum(tensor.nbytes for tensor in self.__getitems__([0])) * len(self) if len(self) else 0

    def input_pieces(self) -> Iterator[Array]:
        """All inputs as they are stored, some at a time; at least one piece. `DataError` as for a batch."""
        one = max(1, self.x.nbytes // max(1, len(self.x)))
        step = max(1, min(_AT_A_TIME, _PIECE_BYTES // one))
        for start in range(0, max(1, len(self)), step):
            yield take(self.x, self.samples[start : start + step], self.name)

    def target_pieces(self) -> Iterator[Array]:
        """All targets, a few thousand at a time; at least one piece."""
        for start in range(0, max(1, len(self)), _AT_A_TIME):
            yield self._targets(range(start, min(start + _AT_A_TIME, len(self))))

    def _targets(self, rows: Sequence[int]) -> Array:
        return used_targets(np.asarray(self.y)[self.targets[rows]], self.form)


@dataclass(frozen=True)
class StoredData:
    """A client's samples where they are stored; in memory are their numbers, and class labels."""

    part: ClientPart

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model sees it, channels first for images."""
        return sample_shape(self.part.data.x_train)

    @property
    def input_kind(self) -> str:
        """`images`, `features` or `tokens`."""
        return sample_kind(self.part.data.x_train)

    @property
    def num_classes(self) -> int:
        """Of the whole set, as far as the data or the settings say."""
        return self.part.data.num_classes

    @property
    def feature_scale(self) -> float:
        """As `ClientData.feature_scale`, by some of the training samples."""
        x, train = self.part.data.x_train, self.part.train
        if self.input_kind != "features":
            return 0.0
        seen = train[:: math.ceil(len(train) / _LOOKED_AT)]
        return power_of_ten(max(float(np.abs(x[sample], dtype=np.float64).max(initial=0.0)) for sample in seen))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        part = self.part
        held = (part.train, part.validation, part.test, part.noisy)
        return sum(array.nbytes for array in held if array is not None)

    def count(self, part: Part) -> int:
        """Samples of a part."""
        return len({"train": self.part.train, "validation": self.part.validation, "test": self.part.test}[part])

    def of(self, part: Part, dtype: torch.dtype) -> StoredPart:
        """The data set of a part, in the model's dtype."""
        data, found = self.part.data, self.part
        if part == "test":
            x, y, samples = found.x_test, found.y_test, found.test
        else:
            x, y, samples = data.x_train, data.y_train, found.train if part == "train" else found.validation
        targets = samples
        if part == "train" and found.noisy is not None:
            y, targets = found.noisy, np.arange(len(samples))
        return StoredPart(x, y, samples, targets, data.targets, dtype, data.name)


def target_dtype(form: TargetForm, dtype: torch.dtype) -> torch.dtype:
    """Of targets as a model of `dtype` is compared with them."""
    return torch.int64 if form in ("classes", "places") else dtype


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

    `ConfigError` if there is no such task, `DataError` if data or partition cannot be used, as `load_client`;
    `ClientDataError` where it is this client's own fault.
    """
    task = task_of(settings)
    if isinstance(task, ArrayTask):
        part = find_part(settings, partition, data_path, task.targets)
        with part.at_fault():
            return _stored_or_taken(settings, part)
    with naming_client(partition):
        return _own_data(task, settings, partition)


def count_samples(settings: Settings) -> list[TargetSummary]:
    """Samples of every client of a run by part, in their order; why, where a client's data cannot be used."""

    def counted(partition: int) -> TargetSummary:
        source = open_client(settings, partition)
        return TargetSummary(source.count("train"), source.count("validation"), source.count("test"))

    return with_faults(*each_usable(counted, settings.clients))


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
    if not length_of(found.train, "the train data set"):
        raise DataError("task: the train data set has no sample; give it at least one")
    if not length_of(found.test, "the test data set"):
        logger.warning("task: client %d: the test data set has no sample: it trains, and has no figure", partition)
    return OwnData(found)


@contextmanager
def naming_client(partition: int) -> Iterator[None]:
    """Errors of a task say which client's they are; those of data are the client's own."""
    try:
        yield
    except (DataError, ModelError) as error:
        kind = ModelError if isinstance(error, ModelError) else ClientDataError
        head, colon, text = str(error).partition("task: ")
        unnamed = bool(colon) and not head and not text.startswith("client ")
        if not unnamed and isinstance(error, kind):
            raise
        raise kind(f"task: client {partition}: {text}" if unnamed else str(error)) from error.__cause__


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

        `DataError` if a label does not fit the classes, or the task's data cannot be read.
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
