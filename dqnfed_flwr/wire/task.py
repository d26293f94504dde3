"""What a client is asked: a task with the model, or its properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientTask, FloatArray
from dqnfed_flwr.wire.model import decode_model
from dqnfed_flwr.wire.records import DIRECTIVE, MODEL, PROPERTIES, TASK, Buffers, of_kind

_FIELDS = {item.name.replace("_", "-"): item.name for item in fields(ClientTask) if item.name != "directives"}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as a client receives it."""

    task: ClientTask
    theta: FloatArray
    step: FloatArray | None
    buffers: Buffers


def encode_task(task: ClientTask, model: ArrayRecord) -> RecordDict:
    """Content of a message to a client."""
    config = {key: getattr(task, name) for key, name in _FIELDS.items()}
    config |= {DIRECTIVE + name: float(value) for name, value in task.directives.items()}
    return RecordDict({MODEL: model, TASK: ConfigRecord(config)})


def decode_task(content: RecordDict) -> Assignment:
    """Inverse of `encode_task` and `encode_model`.

    Raises
    ------
    WireError
        If a record or a key is missing.
    """
    model, config = of_kind(content, ArrayRecord).get(MODEL), of_kind(content, ConfigRecord).get(TASK)
    if model is None or config is None:
        raise WireError("missing-key", f"records {sorted(content)}; need {MODEL!r} and {TASK!r}")
    directives: dict[str, Any] = {
        key.removeprefix(DIRECTIVE): value for key, value in config.items() if key.startswith(DIRECTIVE)
    }
    values: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in config.items() if DIRECTIVE not in key}
    if set(values) != set(_FIELDS.values()):
        raise WireError("missing-key", f"task keys {sorted(config)}; need {sorted(_FIELDS)}")
    return Assignment(ClientTask(**values, directives=directives), *decode_model(model))


def encode_properties(properties: Mapping[str, ConfigRecordValues]) -> RecordDict:
    """Content of a query and of its answer."""
    return RecordDict({PROPERTIES: ConfigRecord(dict(properties))})


def decode_properties(content: RecordDict) -> dict[str, Any]:
    """Inverse of `encode_properties`.

    Raises
    ------
    WireError
        If the record is missing.
    """
    properties = of_kind(content, ConfigRecord).get(PROPERTIES)
    if properties is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {PROPERTIES!r}")
    return dict(properties)
