"""What a client trains on and stops by, as one hash: a model that was kept is of these samples, or of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.parts import ClientSource, DeviceParts, OwnData
from dqnfed_flwr.client.stored import StoredData
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.clients import Part
from dqnfed_flwr.data.dataset import Array
from dqnfed_flwr.tasks import task_of

PARTS: tuple[Part, ...] = ("train", "validation")
_PLAIN = (str, bytes, int, float, bool, type(None))


def digest_of(settings: Settings, partition: int, data: ClientSource) -> str:
    """SHA-256 of the samples of these parts, hexadecimal; arrays have the same one wherever they are stored.

    Of data sets of a task's own, tensors, texts and numbers count. `DataError` if samples cannot be read.
    """
    found = hashlib.sha256()
    for part in PARTS:
        if isinstance(data, OwnData):
            pieces = _own(settings, partition, data, part)
        elif isinstance(data, StoredData):
            pieces = _stored(settings, data, part)
        else:
            arrays = {"train": (data.x_train, data.y_train), "validation": (data.x_validation, data.y_validation)}
            pieces = (piece for array in arrays[part] for piece in (_head(array, len(array)), _bytes(array)))
        for piece in pieces:
            found.update(piece)
    return found.hexdigest()


def _stored(settings: Settings, data: StoredData, part: Part) -> Iterator[bytes]:
    """The same bytes as of arrays in memory, read piece by piece."""
    stored = data.of(part, DTYPES[settings.dtype])
    for pieces in (stored.input_pieces, stored.target_pieces):
        for place, array in enumerate(pieces()):
            if not place:
                yield _head(array, len(stored))
            yield _bytes(array)


def _own(settings: Settings, partition: int, data: OwnData, part: Part) -> Iterator[bytes]:
    samples = DeviceParts(settings, task_of(settings), data, partition, 0, torch.device("cpu")).some(part)
    yield f"{data.count(part)}\0".encode()
    for batch, _ in samples.chunks(1) if samples is not None else ():
        yield from _leaves(batch)


def _leaves(value: Any) -> Iterator[bytes]:
    """What a sample holds, in the order in which it holds it."""
    if isinstance(value, torch.Tensor):
        array = value.numpy()
        yield _head(array, len(array)) if array.ndim else _head(array[None], 1)
        yield _bytes(array)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield repr(key).encode()
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()


def _head(array: Array, count: int) -> bytes:
    return f"{array.dtype} {(count, *array.shape[1:])}\0".encode()


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()
