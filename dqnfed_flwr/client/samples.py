"""A client's samples as it computes on them: held whole on its device, or read anew; and how many at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from dqnfed_flwr.client.device import give_freed_memory_back
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.reading import Reader, Reading
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.batches import Batch, all_tensors, mapped, same, tensors

MOST_BATCH_BYTES = 1 << 28
"""A batch may fill so much even where less is held."""
_TRIED = 8
"""Samples that are read twice, from the first to the last."""
_States = tuple[Any, ...]
CHUNK_BYTES = {"cpu": 32 * 2**20}
MOST_CHUNK_BYTES = 256 * 2**20
"""Activations kept for one backward pass when the chunk is left to choose, by kind of device and on any other.

Larger ones are no faster on a processor, and a device at the edge has little memory.
"""
CUDA_PART = 32
"""On CUDA that part of the card's memory counts, where it is more.

A large card waits for its kernels to be started: on an H200 a gradient of 512 samples of ResNet-18 took 162 ms in
chunks of 32 and 80 in one; with bf16 790 ms in chunks of 8 and 20 in one (`benchmarks/chunks.py --device cuda`).
"""
MAX_CHUNK = 4096
FEWEST = 16
"""Samples of a chunk that may fill `MOST_CHUNK_BYTES` on any device.

Every chunk reads all parameters and adds a gradient of their size: four samples of ResNet-18 at a time take a quarter
longer than sixteen (`benchmarks/chunks.py`).
"""


class Samples(Protocol):
    """Samples in a fixed order, cut into batches; a batch comes with the number of its samples.

    Who lets go of a batch before it asks for the next one has one of them in memory at a time.

    Attributes
    ----------
    counted : bool
        Whether `len` is known before a pass. Where it is not, `chunks` gives the batches as they come, `first` the
        first of them, and none can be picked.
    """

    counted: bool

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """All of them, so many at a time."""

    def batches(self, rows: Iterable[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Those named by each of `rows`, int64 [b]."""

    def select(self, rows: Tensor) -> Samples:
        """Those named by `rows`, int64 [b]."""

    def first(self, count: int) -> tuple[Batch, int]:
        """At most so many, from the beginning; fewer where a batch of them would be too large."""


class HeldSamples:
    """All samples as one batch on the device: tensors whose first axis is the sample."""

    counted = True

    def __init__(self, held: Batch) -> None:
        self.held = held
        self._count = len(next(tensors(held)))
        self._flat = type(held) is tuple and all(isinstance(part, Tensor) for part in held)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(tensor.nbytes for tensor in tensors(self.held))

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Views of them."""
        for start in range(0, self._count, size):
            end = min(start + size, self._count)
            yield self._cut(slice(start, end)), end - start

    def batches(self, rows: Iterable[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Copies of them."""
        for chosen in rows:
            yield self._cut(chosen), len(chosen)

    def select(self, rows: Tensor) -> HeldSamples:
        """Copies of them."""
        return HeldSamples(self._cut(rows))

    def first(self, count: int) -> tuple[Batch, int]:
        """Views of them."""
        return self._cut(slice(count)), min(count, self._count)

    def _cut(self, rows: slice | Tensor) -> Batch:
        """Some of them; the usual pair of tensors goes without `mapped`, which costs as much as a small batch."""
        if self._flat:
            return tuple([tensor[rows] for tensor in self.held])
        return mapped(self.held, lambda tensor: tensor[rows])


class StreamedSamples:
    """Samples of a data set, read anew in every pass: one chunk of them is in memory, and those that are read ahead.

    The bits are those of `HeldSamples`, whatever the number of processes that read. From the first of them on, the
    process gives freed memory back at once (`heap`).

    Parameters
    ----------
    reader : Reader
        Of the data set.
    first : Batch
        Its sample 0, which is looked at again before every pass.
    rows : Tensor | None
        Those taken, int64 [n]; None for all.

    Raises
    ------
    DataError
        While it is read: if the data set or its `collate` raises, the data set is not the same any more, or a batch
        fills more bytes than may be held.
    """

    counted = True

    def __init__(self, reader: Reader, first: Batch, rows: Tensor | None = None) -> None:
        give_freed_memory_back()
        self._reader, self._first, self._rows = reader, first, rows
        self._count = len(reader.dataset) if rows is None else len(rows)
        self._sample_bytes = sum(tensor.nbytes for tensor in tensors(first))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the one that is held."""
        return self._sample_bytes

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Read in order."""
        if self._rows is None:
            self._look_again()
        starts = range(0, self._count, size)
        yield from self.batches(torch.arange(start, min(start + size, self._count)) for start in starts)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[tuple[Batch, int]]:
        """Read in the order of `rows`, of which only the next few are asked for."""
        return self._reader.batches(self._numbers(part.cpu()) for part in rows)

    def select(self, rows: Tensor) -> StreamedSamples:
        """Read when they are asked for."""
        rows = rows.cpu()
        return StreamedSamples(self._reader, self._first, rows if self._rows is None else self._rows[rows])

    def first(self, count: int) -> tuple[Batch, int]:
        """Read from the beginning."""
        count = min(count, self._count, max(1, MOST_BATCH_BYTES // max(1, self._sample_bytes)))
        return self._reader.few(self._numbers(torch.arange(count))), count

    def _numbers(self, rows: Tensor) -> Tensor:
        """Where these are in the data set."""
        reading = self._reader.reading
        size, most = len(rows) * self._sample_bytes, max(reading.most, MOST_BATCH_BYTES)
        if size > most and len(rows) > 1:
            raise DataError(
                f"task: client {reading.client}: a batch of {len(rows)} samples fills {size} bytes, more than {most}; "
                "set local.batch-size (0 takes all samples at once), local.gradient-batch or local.chunk lower, or "
                "raise local.held-bytes"
            )
        return rows if self._rows is None else self._rows[rows]

    def _look_again(self) -> None:
        reader, client = self._reader, self._reader.reading.client
        if (found := len(reader.dataset)) != self._count:
            raise DataError(
                f"task: client {client}: the data set had {self._count} samples and has {found} now; it must stay as "
                "it is during a run"
            )
        if not same(self._first, reader.few(torch.zeros(1, dtype=torch.int64))):
            raise DataError(
                f"task: client {client}: sample 0 is another one than in the pass before; the data set must stay as it "
                "is during a run"
            )


def read_samples(dataset: MapStyle, reading: Reading) -> Samples:
    """The samples of a data set: held where they fill at most `reading.most` bytes, else read in every pass.

    Held are batches of tensors that torch's own collate makes, or a data set that gives whole batches; what a `collate`
    of the user's makes of all samples at once may be another thing than what it makes of a few. `DataError` if it has
    no length, draws random numbers, or its samples are not the same each time.
    """
    count = length_of(dataset, f"client {reading.client}: a data set")
    if not count:
        return HeldSamples(torch.empty(0))
    first, quiet = _try_out(dataset, reading, count)
    reader = Reader(dataset, reading, quiet=quiet)
    streamed = StreamedSamples(reader, first)
    size = sum(tensor.nbytes for tensor in tensors(first)) * count
    if size > reading.most or not reading.whole or not all_tensors(first):
        return streamed
    whole = reader.few(torch.arange(count))
    return HeldSamples(whole) if all(len(tensor) == count for tensor in tensors(whole)) else streamed


def length_of(dataset: MapStyle, what: str) -> int:
    """Samples of a data set; `DataError`, which calls it `what`, if it has no length."""
    if isinstance(dataset, DataLoader) or (isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__")):
        raise DataError(f"task: {what} is a {type(dataset).__name__}; give the map-style data set, and a collate")
    try:
        return len(dataset)
    except TypeError:
        raise DataError(
            f"task: {what}, of type {type(dataset).__name__}, has no length; give a map-style one, with __len__ and "
            "__getitem__"
        ) from None


def _try_out(dataset: MapStyle, reading: Reading, count: int) -> tuple[Batch, bool]:
    """Sample 0, and whether reading a few samples leaves the global generators alone; they are as before afterwards."""
    reader, quiet = Reader(dataset, reading), True
    for row in dict.fromkeys(np.linspace(0, count - 1, _TRIED).round().astype(int).tolist()):
        (one, *states), (again, *others) = (_read_under(seed, reader, row) for seed in (0, 1))
        moved = [before != after for before, after in zip(*states, strict=True)]
        drawn = any(m and one != other for m, one, other in zip(moved, states[1], others[1], strict=True))
        if drawn or not same(one, again):
            raise DataError(
                f"task: client {reading.client}: sample {row} draws random numbers, or is another one each time it is "
                "read; a loss must be a function of the model: leave random augmentation out, or seed it by the "
                "sample's number, and change no stored sample in place"
            )
        quiet = quiet and not any(moved)
    return Reader(dataset, reading, quiet=quiet).few(torch.tensor([0])), quiet


def _read_under(seed: int, reader: Reader, row: int) -> tuple[Batch, _States, _States]:
    """A sample, read while the global generators draw from streams of `seed`; their states before and after."""
    with _all_seeded(seed):
        before = _states()
        return reader.few(torch.tensor([row])), before, _states()


@contextmanager
def _all_seeded(seed: int) -> Iterator[None]:
    """Have torch, NumPy and Python draw from streams of `seed` within, and as before afterwards."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with seeded(seed):
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def _states() -> _States:
    """Of the global generators."""
    _, numbers, place, *_ = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), np.asarray(numbers).tobytes(), place, random.getstate()


def choose_chunk(model: FlatModel, samples: Samples, task: Task) -> int:
    """Samples that fill at most the bytes of the device: a power of two, at most `MAX_CHUNK`.

    `FEWEST` samples, or as many of them as fit, may fill `MOST_CHUNK_BYTES` instead. Counted are `bytes_of_one`.
    """
    size, device = bytes_of_one(model, samples, task), model.theta.device
    most = CHUNK_BYTES.get(device.type, MOST_CHUNK_BYTES)
    if device.type == "cuda":
        most = max(most, torch.cuda.get_device_properties(device).total_memory // CUDA_PART)
    chunk = MAX_CHUNK
    while chunk > 1 and chunk * size > (most if chunk > FEWEST else max(most, MOST_CHUNK_BYTES)):
        chunk //= 2
    return chunk


def bytes_of_one(model: FlatModel, samples: Samples, task: Task) -> int:
    """What one sample more leaves behind for the backward pass, or its own bytes where they are more.

    What all samples share does not count: the parameters, and their copies in bfloat16. So two samples are compared
    with one, where there are two.
    """
    one = samples.first(1)
    left = _left_behind(model, task, *one)
    two = samples.first(2)
    if two[1] == 2:
        left = _left_behind(model, task, *two) - left
    return max(left, sum(tensor.nbytes for tensor in tensors(one[0])))


def _left_behind(model: FlatModel, task: Task, batch: Batch, count: int) -> int:
    """Bytes saved for the backward pass of a batch of `count` samples, without the model's own."""
    batch = mapped(batch, lambda tensor: tensor.clone())  # a view's storage would be that of all samples
    own = (*model.module.parameters(), *model.module.buffers())
    shared = {tensor.untyped_storage().data_ptr() for tensor in own if tensor.layout is torch.strided}
    saved: dict[int, torch.UntypedStorage] = {}  # held, so that no other takes its place, and the count is the same

    def keep(tensor: Tensor) -> None:  # a hook that gave the tensor back would tie a knot that is never freed
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            saved[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        task.summed(model.module, batch, count)
    return sum(storage.nbytes() for storage in saved.values())
