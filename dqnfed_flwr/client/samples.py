"""A client's samples as it computes on them: held whole on its device, or read anew in every pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from dqnfed_flwr.client.heap import give_freed_memory_back
from dqnfed_flwr.client.reading import Reader
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.tasks._base import Batch
from dqnfed_flwr.tasks.batches import mapped, same, tensors

MOST_BATCH_BYTES = 1 << 28
"""A batch may fill so much even where less is held."""


class Samples(Protocol):
    """Samples in a fixed order, cut into batches; a batch comes with the number of its samples.

    Who lets go of a batch before it asks for the next one has one of them in memory at a time.
    """

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
