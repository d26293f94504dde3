"""The model on its way to a client, and the memory that Flower keeps for one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.arrays import Array, view
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.records import BUFFER, MEMORY, Buffers, floats, of_kind


def encode_model(theta: FloatArray, buffers: Buffers, step: FloatArray | None = None) -> ArrayRecord:
    """The record of a model, and of the step through it."""
    record = ArrayRecord()
    record["theta"] = Array(theta)
    if step is not None:
        record["step"] = Array(step)
    for name, value in buffers.items():
        record[BUFFER + name] = Array(value)
    return record


def decode_model(record: ArrayRecord) -> tuple[FloatArray, FloatArray | None, Buffers]:
    """Theta, step (or None) and buffers of a model record.

    Raises
    ------
    WireError
        If theta is missing or an array cannot be read.
    """
    if "theta" not in record:
        raise WireError("missing-key", "the model record has no 'theta'; make it with wire.encode_model")
    arrays = _as_sent(record)
    buffers = {key.removeprefix(BUFFER): value for key, value in arrays.items() if key.startswith(BUFFER)}
    return floats(arrays["theta"]), floats(arrays["step"]) if "step" in arrays else None, buffers


def encode_memory(memory: Mapping[str, NDArray[np.generic]], state: RecordDict) -> None:
    """Put a client's memory into the state that Flower keeps for it between messages."""
    record = ArrayRecord()
    for name, values in memory.items():
        record[name] = Array(values)
    state[MEMORY] = record


def memory_record(state: RecordDict) -> ArrayRecord | None:
    """The record that `encode_memory` put into `state`, if any."""
    return of_kind(state, ArrayRecord).get(MEMORY)


def decode_memory(state: RecordDict) -> dict[str, NDArray[np.generic]]:
    """Inverse of `encode_memory`; empty when there is none yet."""
    return _as_sent(memory_record(state) or ArrayRecord())


def _as_sent(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """The arrays of a record, of whatever shape and dtype they say."""
    return {name: view(array, tuple(array.shape), (str(array.dtype),)) for name, array in record.items()}
