"""What a client is sent: a task with the model, or a question for its properties; and the memory kept for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientTask, under
from dqnfed_flwr.wire.codecs import (
    BUFFER,
    DIRECTIVE,
    KINDS,
    MEMORY,
    MODEL,
    PROPERTIES,
    TASK,
    Array,
    Buffers,
    of_kind,
    view,
)

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector

TASK_FIELDS = {item.name.replace("_", "-"): item for item in fields(ClientTask) if item.name != "directives"}
"""By their keys; directives have keys of their own."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as a client receives it."""

    task: ClientTask
    theta: Vector
    step: Vector | None
    buffers: Buffers
    vectors: Mapping[str, Vector] = field(default_factory=dict)


def encode_model(
    theta: Vector,
    buffers: Buffers,
    step: Vector | None = None,
    vectors: Mapping[str, Vector] = MappingProxyType({}),
) -> ArrayRecord:
    """The record of a model, of the step through it, and of further vectors that a method sends."""
    record = ArrayRecord()
    KINDS["model"].write(record, theta)
    if step is not None:
        KINDS["step"].write(record, step)
    for name, value in buffers.items():
        record[BUFFER + name] = Array(value)
    for name, vector in vectors.items():
        KINDS["extra"].write(record, vector, name)
    return record


def decode_model(record: ArrayRecord) -> tuple[Vector, Vector | None, Buffers]:
    """Theta, step (or None) and buffers of a model record; `WireError` if theta or a readable array is missing."""
    model, step = KINDS["model"], KINDS["step"]
    if model.key not in record:
        raise WireError("missing-key", f"the model record has no {model.key!r}; make it with wire.encode_model")
    buffers = _as_sent(under(BUFFER, record))
    return model.sent(record), step.sent(record) if step.key in record else None, buffers


def task_record(task: ClientTask) -> ConfigRecord:
    """The record of a task alone."""
    config = {key: getattr(task, item.name) for key, item in TASK_FIELDS.items()}
    return ConfigRecord({**config, **{DIRECTIVE + name: float(value) for name, value in task.directives.items()}})


def read_task(config: ConfigRecord) -> ClientTask:
    """Inverse of `task_record`; `WireError` if a key is missing or not known."""
    directives: dict[str, Any] = {
        key.removeprefix(DIRECTIVE): value for key, value in config.items() if key.startswith(DIRECTIVE)
    }
    values = {key: value for key, value in config.items() if DIRECTIVE not in key}
    if set(values) != set(TASK_FIELDS):
        raise WireError("missing-key", f"task keys {sorted(config)}; need {sorted(TASK_FIELDS)}")
    named: dict[str, Any] = {item.name: values[key] for key, item in TASK_FIELDS.items()}
    return ClientTask(**named, directives=directives)


def encode_task(task: ClientTask, model: ArrayRecord) -> RecordDict:
    """Content of a message to a client."""
    return RecordDict({MODEL: model, TASK: task_record(task)})


def decode_task(content: RecordDict) -> Assignment:
    """Inverse of `encode_task` and `encode_model`; `WireError` if a record or a key is missing."""
    model, config = of_kind(content, ArrayRecord).get(MODEL), of_kind(content, ConfigRecord).get(TASK)
    if model is None or config is None:
        raise WireError("missing-key", f"records {sorted(content)}; need {MODEL!r} and {TASK!r}")
    vectors = {name: KINDS["extra"].sent(model, name) for name in under(KINDS["extra"].key, model)}
    return Assignment(read_task(config), *decode_model(model), vectors)


def encode_properties(properties: Mapping[str, ConfigRecordValues]) -> RecordDict:
    """Content of a query and of its answer."""
    return RecordDict({PROPERTIES: ConfigRecord(dict(properties))})


def decode_properties(content: RecordDict) -> dict[str, Any]:
    """Inverse of `encode_properties`; `WireError` if the record is missing."""
    properties = of_kind(content, ConfigRecord).get(PROPERTIES)
    if properties is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {PROPERTIES!r}")
    return dict(properties)


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


def _as_sent(record: Mapping[str, FlowerArray]) -> dict[str, NDArray[np.generic]]:
    """Arrays of a record, of whatever shape and dtype they say."""
    return {name: view(array, tuple(array.shape), (str(array.dtype),)) for name, array in record.items()}
