"""Opening a client's data set: whether it is the same each time, and whether it is held in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dqnfed_flwr.client.reading import Reader, Reading
from dqnfed_flwr.client.samples import HeldSamples, Samples, StreamedSamples
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Batch
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks.batches import all_tensors, same, tensors

_TRIED = 8
"""Samples that are read twice, from the first to the last."""
_States = tuple[Any, ...]


def read_samples(dataset: MapStyle, reading: Reading) -> Samples:
    """The samples of a data set: held where they fill at most `reading.most` bytes, else read in every pass.

    Held are batches of tensors that torch's own collate makes, or a data set that gives whole batches; what a `collate`
    of the user's makes of all samples at once may be another thing than what it makes of a few.

    Raises
    ------
    DataError
        If it has no length, draws random numbers, or its samples are not the same each time.
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
                "sample's number"
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
