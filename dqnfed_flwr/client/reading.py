"""Reading a map-style data set in batches: through torch's `DataLoader`, in this process or ahead in others.

Processes that read ahead stay for the next pass: to start them takes ten times as long as to call on them again. Those
of the few data sets that were read last are kept, until their data sets are let go of.
"""

from __future__ import annotations

import signal
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from dqnfed_flwr.errors import DataError, DQNFedError
from dqnfed_flwr.randomness import at_rest, seeded
from dqnfed_flwr.tasks._base import Sequence as MapStyle
from dqnfed_flwr.tasks.batches import Batch, in_dtype, on_device, tensors

Collate = Callable[[list[Any]], Any]

MOST_KEPT = 12
"""Data sets whose processes stay between passes."""
_KEPT: dict[int, _Loader] = {}
"""Loaders between passes by the number of their reader, the one read last at the end."""
_KEEPING = threading.RLock()
_NUMBERS = count()
_NO_MORE: Any = object()


@dataclass(frozen=True, slots=True)
class Reading:
    """How a client's data sets are read.

    Attributes
    ----------
    collate : Callable[[list], Any]
        Makes a batch of samples.
    dtype : torch.dtype
        Of floating-point tensors in batches.
    device : torch.device
        Where batches go.
    workers : int
        Processes that read ahead, each by one batch; 0 for none.
    most : int
        Bytes up to which a data set is held in memory, and the most that one batch may fill.
    client : int
        Number of the client, for errors.
    """

    collate: Collate
    dtype: torch.dtype
    device: torch.device
    workers: int = 0
    most: int = 1 << 30
    client: int = 0

    @property
    def whole(self) -> bool:
        """Whether a batch of all samples holds the very rows of smaller ones."""
        return self.collate in (default_collate, as_it_is)


def as_it_is(batch: Any) -> Any:
    """The `collate` of a data set that gives whole batches."""
    return batch


class Reader:
    """A data set, read in batches.

    `quiet` says that reading leaves torch's generators alone; else they are given back as they were.
    """

    def __init__(self, dataset: MapStyle, reading: Reading, *, quiet: bool = True) -> None:
        self.dataset, self.reading = dataset, reading
        self._quiet = quiet
        self._key = next(_NUMBERS)
        weakref.finalize(self, _let_go, self._key)

    def batches(self, parts: Iterator[Tensor]) -> Iterator[tuple[Batch, int]]:
        """The samples named by each of `parts`, int64 [b], on the device, with their number.

        Raises
        ------
        DataError
            If the data set or `collate` raises anything, or a process that reads ahead ends.
        """
        device = self.reading.device
        if device.type == "cuda":
            return _copied_ahead(self._collated(parts), device)
        return _moved(self._collated(parts), device)

    def few(self, rows: Tensor) -> Batch:
        """A few samples on the device, read in this process; `DataError` as in `batches`."""
        with nullcontext() if self._quiet else seeded(0):
            batch = _Fetch(self.dataset, self.reading).__getitems__(rows.tolist())
        return on_device(self._checked(batch), self.reading.device)

    def _collated(self, parts: Iterator[Tensor]) -> Iterator[tuple[Batch, int]]:
        """The batches as they are read, on the CPU."""
        kept = _taken(self._key)
        loader, usable = kept or self._make(), True
        try:
            loader.order.begin(parts)
            batches = iter(loader.torchs) if kept else _started(loader)
            while (batch := self._next(batches)) is not _NO_MORE:
                yield self._checked(batch), loader.order.counts.popleft()
                del batch
        except (RuntimeError, OSError) as cause:  # of the loader itself: what the data set raises comes as a batch
            usable = False
            raise DataError(
                f"task: client {self.reading.client}: reading ahead failed ({_one_line(cause)}); a process of "
                "local.workers may have been ended for want of memory, or by a decoder: try local.workers 0"
            ) from cause
        finally:
            loader.order.end()
            if usable:
                _put_back(self._key, loader)

    def _next(self, batches: Iterator[Any]) -> Any:
        with nullcontext() if self._quiet or self.reading.workers else seeded(0):
            return next(batches, _NO_MORE)

    def _checked(self, batch: Batch | _Failed) -> Batch:
        if isinstance(batch, _Failed):
            raise DataError(f"task: client {self.reading.client}: {batch.text}")
        return batch

    def _make(self) -> _Loader:
        reading, order = self.reading, _Order()
        loader: DataLoader[Any] = DataLoader(
            cast(Any, _Fetch(self.dataset, reading)),
            batch_sampler=order,
            collate_fn=as_it_is,
            num_workers=reading.workers,
            prefetch_factor=1 if reading.workers else None,
            persistent_workers=reading.workers > 0,
            pin_memory=reading.device.type == "cuda",
            generator=torch.Generator(),  # so that torch's own state stays as it is
        )
        return _Loader(loader, order)


class _Order:
    """The samples of each batch of a pass, and how many they are."""

    def __init__(self) -> None:
        self._parts: Iterator[Tensor] = iter(())
        self.counts: deque[int] = deque()

    def begin(self, parts: Iterator[Tensor]) -> None:
        """Another pass."""
        self._parts, self.counts = parts, deque()

    def end(self) -> None:
        """Let go of what is left of a pass: it may hold the samples, which would never be let go of themselves."""
        if isinstance(self._parts, Generator):
            self._parts.close()

    def __iter__(self) -> Iterator[list[int]]:
        for part in self._parts:
            self.counts.append(len(part))
            yield part.tolist()


@dataclass(frozen=True, slots=True)
class _Loader:
    """Torch's loader of a data set, with its processes if it has any, and what it reads."""

    torchs: DataLoader[Any]
    order: _Order


def _started(loader: _Loader) -> Iterator[Any]:
    """The batches of a loader's first pass.

    One thread at a time starts processes, and none draws random numbers meanwhile: a process that another thread forks
    would hold open the pipe by whose end this one's is told, and one would wait for a generator that was in use.
    """
    with at_rest(), _deaths_found_here():
        return iter(loader.torchs)


def _taken(key: int) -> _Loader | None:
    """The loader of a data set for a pass; None where none is kept, or another pass is under way."""
    with _KEEPING:
        return _KEPT.pop(key, None)


def _put_back(key: int, loader: _Loader) -> None:
    """Keep the processes of a loader; those of the data set that was read longest ago end."""
    if not loader.torchs.num_workers:
        return
    with _KEEPING:
        _KEPT[key] = loader
        while len(_KEPT) > MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]


def _let_go(key: int) -> None:
    """End the processes of a data set.

    Loaders are held here and not by what may be collected as part of a circle, where their queues would close before
    they could tell the processes to end.
    """
    with _KEEPING:
        _KEPT.pop(key, None)


def end_processes() -> None:
    """End all processes that are kept for the next pass."""
    with _KEEPING:
        _KEPT.clear()


@dataclass(frozen=True, slots=True)
class _Failed:
    """What stands in for a batch where reading raised something, in whichever process."""

    text: str


class _Fetch:
    """Reads and collates batches: what torch calls a data set."""

    def __init__(self, dataset: MapStyle, reading: Reading) -> None:
        self._dataset, self._collate, self._dtype = dataset, reading.collate, reading.dtype
        self._many: Callable[[Sequence[int]], Any] | None = getattr(dataset, "__getitems__", None)

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """A batch, or what went wrong."""
        at = f"samples {rows[0]} to {rows[-1]}"
        try:
            items = self._many(rows) if self._many else []
            for row in [] if self._many else rows:
                at = f"sample {row}"
                items.append(self._dataset[row])
            at = f"collate, for {len(rows)} samples from {rows[0]},"
            return in_dtype(self._collate(items), self._dtype)
        except DQNFedError as known:
            return _Failed(str(known))
        except Exception as error:  # whatever a data set of the user's does
            return _Failed(f"{at} raised {_one_line(error)}{_place(error)}")


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _place(error: Exception) -> str:
    """The line of the user's own code, the first below ours."""
    frames = traceback.extract_tb(error.__traceback__)[1:2]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames)


@contextmanager
def _deaths_found_here() -> Iterator[None]:
    """Leave the handler of SIGCHLD as it is.

    Torch's own raises wherever the main thread is when a process ends, which may be the server's work. Without it, the
    next batch that is waited for tells.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


def _moved(batches: Iterator[tuple[Batch, int]], device: torch.device) -> Iterator[tuple[Batch, int]]:
    """On a processor: nothing is held of a batch while the next one is read."""
    for batch, number in batches:
        yield on_device(batch, device), number
        del batch


def _copied_ahead(batches: Iterator[tuple[Batch, int]], device: torch.device) -> Iterator[tuple[Batch, int]]:
    """On a GPU: the next batch is copied on a stream of its own while this one is computed on."""
    cuda: Any = torch.cuda
    stream = cuda.Stream(device)
    waiting: tuple[Batch, int, torch.cuda.Event] | None = None
    for batch, number in batches:
        this = waiting
        with cuda.stream(stream):
            waiting = on_device(batch, device), number, cuda.Event()
            waiting[-1].record(stream)
        if this is not None:
            yield _arrived(*this, device)
        del this
    if waiting is not None:
        yield _arrived(*waiting, device)


def _arrived(batch: Batch, count: int, copied: torch.cuda.Event, device: torch.device) -> tuple[Batch, int]:
    """A batch that the device's work may use from now on."""
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in tensors(batch):
        tensor.record_stream(current)  # its memory is not given away while that work is under way
    return batch, count
