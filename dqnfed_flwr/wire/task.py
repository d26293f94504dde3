"""What a client is sent: a task with the model, or a question for its properties; and the memory kept for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    CHECKED,
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
from dqnfed_flwr.wire.rounding import Parts

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector

TASK_FIELDS = {item.name.replace("_", "-"): item for item in fields(ClientTask) if item.name != "directives"}
"""By their keys; directives have keys of their own."""
DIGESTS, PATH = "digests", "path."
"""Keys of a course: the digests of its models, and the factors along each of its steps."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as a client receives it."""

    task: ClientTask
    theta: Vector
    step: Vector | None
    buffers: Buffers
    vectors: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leg:
    """A step as it is sent, no `parts` where the receiver has it, and the factors of the points on the way along it.

    The first point is seen from the model at which the step begins, each further one from the one before, by
    `params.line_point`.
    """

    path: tuple[float, ...]
    parts: Parts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Course:
    """The way to the candidate, from a model that a client has, in place of the candidate itself.

    Attributes
    ----------
    digests : tuple[int, ...]
        `params.digest` of the models at which the legs begin, in their order, and of the candidate: one more than legs.
    legs : tuple[Leg, ...]
        Steps that were taken, and last the pending one, if there is any.
    theta : FloatArray | None
        The first of the models [D]; None where the client has one of them.
    """

    digests: tuple[int, ...]
    legs: tuple[Leg, ...] = ()
    theta: Vector | None = None


Follow = Callable[[Course, bool], "tuple[Vector, Vector | None]"]
"""Makes the candidate and the step through it of a course; told whether its last step is pending."""


def encode_course(
    course: Course, buffers: Buffers, vectors: Mapping[str, Vector] = MappingProxyType({})
) -> ArrayRecord:
    """The record of a course in place of a model; see `encode_model`."""
    record = ArrayRecord() if course.theta is None else encode_model(course.theta, {})
    record[DIGESTS] = Array(np.array(course.digests, np.uint64))
    for number, leg in enumerate(course.legs):
        record[f"{PATH}{number}"] = Array(np.array(leg.path))
        KINDS["step"].write(record, leg.parts, f".{number}")
    _write_further(record, buffers, vectors)
    return record


def _decode_course(record: ArrayRecord) -> Course:
    """Inverse of `encode_course`; `WireError` if an array is missing."""
    arrays = _as_sent(record)
    digests = tuple(int(digest) for digest in arrays[DIGESTS])
    if lacking := {f"{PATH}{number}" for number in range(len(digests) - 1)} - arrays.keys():
        raise WireError("missing-key", f"the model record has no {sorted(lacking)}; make it with wire.encode_course")
    step = KINDS["step"].key
    legs = (
        Leg(tuple(map(float, arrays[f"{PATH}{n}"])), {f".{end}": v for end, v in under(f"{step}.{n}.", arrays).items()})
        for n in range(len(digests) - 1)
    )
    theta = KINDS["model"].sent(record) if KINDS["model"].key in record else None
    return Course(digests, tuple(legs), theta)


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
    _write_further(record, buffers, vectors)
    return record


def _write_further(record: ArrayRecord, buffers: Buffers, vectors: Mapping[str, Vector]) -> None:
    for name, value in buffers.items():
        record[BUFFER + name] = Array(value)
    for name, vector in vectors.items():
        KINDS["extra"].write(record, vector, name)


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


def decode_task(content: RecordDict, follow: Follow | None = None) -> Assignment:
    """Inverse of `encode_task` and `encode_model`; `WireError` if a record or a key is missing.

    Where a course stands in place of the model, `follow` makes the model of it.
    """
    model, config = of_kind(content, ArrayRecord).get(MODEL), of_kind(content, ConfigRecord).get(TASK)
    if model is None or config is None:
        raise WireError("missing-key", f"records {sorted(content)}; need {MODEL!r} and {TASK!r}")
    vectors = {name: KINDS["extra"].sent(model, name) for name in under(KINDS["extra"].key, model)}
    task = read_task(config)
    if follow is None or DIGESTS not in model:
        return Assignment(task, *decode_model(model), vectors)
    theta, step = follow(_decode_course(model), task.factor > 0)
    return Assignment(task, theta, step, under(BUFFER, _as_sent(model)), vectors)


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


def encode_checked(run: int, outputs: int, state: RecordDict) -> None:
    """Note there, too, that a model with so many outputs was found to be in order in this run."""
    state[CHECKED] = ConfigRecord({"run": run, "outputs": outputs})


def decode_checked(run: int, state: RecordDict) -> int:
    """Outputs of the model that was found to be in order in this run; 0 for none."""
    found = of_kind(state, ConfigRecord).get(CHECKED, ConfigRecord())
    outputs = found.get("outputs")
    return outputs if found.get("run") == run and isinstance(outputs, int) else 0


def _as_sent(record: Mapping[str, FlowerArray]) -> dict[str, NDArray[np.generic]]:
    """Arrays of a record, of whatever shape and dtype they say."""
    return {name: view(array, tuple(array.shape), (str(array.dtype),)) for name, array in record.items()}
