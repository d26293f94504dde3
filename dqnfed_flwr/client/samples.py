"""A client's samples as it computes on them: held whole on its device, or read through a `DataLoader` each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from dqnfed_flwr.errors import DataError, DQNFedError
from dqnfed_flwr.tasks._base import Batch
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks.batches import mapped, on_device, same, tensors

Collate = Callable[[list[Any]], Any]


class Samples(Protocol):
    """Samples in a fixed order, cut into batches; a batch comes with the number of its samples."""

    def __len__(self) -> int: ...

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """All of them, so many at a time."""

    def batches(self, rows: Sequence[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Those named by each of `rows`, int64 [b]."""

    def select(self, rows: Tensor) -> Samples:
        """Those named by `rows`, int64 [b]."""

    def first(self, count: int) -> Batch:
        """At most so many, from the beginning."""


class HeldSamples:
    """All samples as one batch on the device: tensors whose first axis is the sample."""

    def __init__(self, held: Batch) -> None:
        self.held = held
        self._count = len(next(tensors(held)))

    def __len__(self) -> int:
        return self._count

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Views of them."""
        for start in range(0, self._count, size):
            end = min(start + size, self._count)
            yield mapped(self.held, lambda tensor, cut=slice(start, end): tensor[cut]), end - start  # type: ignore[misc]

    def batches(self, rows: Sequence[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Copies of them."""
        for chosen in rows:
            yield mapped(self.held, lambda tensor, of=chosen: tensor[of]), len(chosen)  # type: ignore[misc]

    def select(self, rows: Tensor) -> HeldSamples:
        """Copies of them."""
        return HeldSamples(mapped(self.held, lambda tensor: tensor[rows]))

    def first(self, count: int) -> Batch:
        """Views of them."""
        return mapped(self.held, lambda tensor: tensor[:count])


@dataclass(frozen=True, slots=True)
class Reading:
    """How a data set is read: collate, dtype and device of batches, and the workers that read ahead."""

    collate: Collate
    dtype: torch.dtype
    device: torch.device
    workers: int = 0


class StreamedSamples:
    """Samples of a map-style data set, read anew in every pass; two chunks are held at a time, and those read ahead.

    `DataError` where the data set or its `collate` raises, with the error of the user's own code.
    """

    def __init__(self, dataset: MapStyle, reading: Reading, rows: Tensor | None = None) -> None:
        self._dataset, self._reading = dataset, reading
        self._rows = rows

    def __len__(self) -> int:
        return len(self._dataset) if self._rows is None else len(self._rows)

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Read in order."""
        return self.batches(torch.split(torch.arange(len(self)), size))

    def batches(self, rows: Sequence[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Read in the order of `rows`."""
        chosen = [part.cpu() if self._rows is None else self._rows[part.cpu()] for part in rows]
        reading = self._reading
        loader: DataLoader[Any] = DataLoader(
            _Mapped(self._dataset),
            batch_sampler=[part.tolist() for part in chosen],
            collate_fn=reading.collate,
            num_workers=reading.workers,
            pin_memory=reading.device.type == "cuda",
            generator=torch.Generator(),  # so that torch's own state stays as it is
        )
        move = partial(on_device, dtype=reading.dtype, device=reading.device)
        for batch, part in zip(_ahead(map(move, _named(loader)), reading.device), chosen, strict=True):
            yield batch, len(part)

    def select(self, rows: Tensor) -> StreamedSamples:
        """Read when they are asked for."""
        rows = rows.cpu()
        return StreamedSamples(self._dataset, self._reading, rows if self._rows is None else self._rows[rows])

    def first(self, count: int) -> Batch:
        """Read from the beginning."""
        return next(self.chunks(min(count, len(self))))[0]


class _Mapped(Dataset[Any]):
    """A user's data set as torch's."""

    def __init__(self, inner: MapStyle) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        return self._inner[index]


def _named(batches: DataLoader[Any]) -> Iterator[Batch]:
    """The batches; what reading them raises becomes a `DataError`."""
    try:
        yield from batches
    except DQNFedError:
        raise
    except Exception as cause:  # whatever a data set of the user's does
        words = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise DataError(f"task: reading the data set raised {words[:500]}") from cause


def _ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """On a GPU, the next batch is copied while this one is computed on."""
    if device.type != "cuda":
        yield from batches
        return
    waiting = list(islice(batches, 1))
    for batch in batches:
        following, waiting = waiting, [batch]
        yield from following
    yield from waiting


def read_samples(dataset: MapStyle, reading: Reading, most: int) -> Samples:
    """The samples of a data set: held where they fill at most `most` bytes and batch into one, else read each time.

    Raises
    ------
    DataError
        If it has no length, or its samples are not the same each time.
    """
    count = _length(dataset)
    streamed = StreamedSamples(dataset, reading)
    if not count:
        return streamed
    one, again = streamed.first(1), streamed.first(1)
    if not same(one, again):
        raise DataError(
            "task: sample 0 is another one each time it is read; a loss must be a function of the model: leave random "
            "augmentation out"
        )
    size = sum(tensor.nbytes for tensor in tensors(one)) * count
    if size > most or reading.collate is not default_collate:
        return streamed
    whole = streamed.first(count)
    return HeldSamples(whole) if all(len(tensor) == count for tensor in tensors(whole)) else streamed


def _length(dataset: MapStyle) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise DataError(
            f"task: a data set of type {type(dataset).__name__} has no length; give a map-style one, with __len__ and "
            "__getitem__"
        ) from None
