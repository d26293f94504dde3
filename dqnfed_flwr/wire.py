"""Messages: the one file that knows record keys. Encoders and decoders are inverses of each other.

| message | record | keys |
|---|---|---|
| server to client | ArrayRecord `model` | `theta`, `step` (when the client needs the line), `buffer.<name>` |
| | ConfigRecord `task` | the fields of `ClientTask`, kebab-case; `directive.<name>` |
| client to server | ArrayRecord `vectors` | `gradient`, `extra.<name>`, `buffer.<name>` |
| | MetricRecord `figures` | see `_reply_figures` |
| both ways of `query` | ConfigRecord `properties` | the client's properties |

What comes from a client is checked here before anything else sees it: keys, dtype, shape, size, finiteness and range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, MetricRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.arrays import Array, size, view
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, Extras, FloatArray, Probe

MODEL, TASK, VECTORS, FIGURES, PROPERTIES = "model", "task", "vectors", "figures", "properties"
MEMORY = "memory"
BUFFER, EXTRA, DIRECTIVE = "buffer.", "extra.", "directive."
VARIANCE = "running_var"
"""Ends the name of torch's buffer of variances."""
FLOATS = ("float32", "float64")
MAX_EXAMPLES = 10**9
Buffers = Mapping[str, NDArray[np.generic]]
_TASK_FIELDS = {item.name.replace("_", "-"): item.name for item in fields(ClientTask) if item.name != "directives"}
_Record = TypeVar("_Record", ArrayRecord, MetricRecord, ConfigRecord)


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What the server expects of a reply: the form of its model.

    Attributes
    ----------
    dim : int
        D.
    buffers : Mapping[str, NDArray]
        The model's buffers: names, shapes and dtypes; empty where local work does not change them.
    extras : Extras
        What comes beside the gradient.
    """

    dim: int
    buffers: Buffers
    extras: Extras = field(default_factory=Extras)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as a client receives it."""

    task: ClientTask
    theta: FloatArray
    step: FloatArray | None
    buffers: Buffers


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
    arrays = {key: view(array, tuple(array.shape), (str(array.dtype),)) for key, array in record.items()}
    buffers = {key.removeprefix(BUFFER): value for key, value in arrays.items() if key.startswith(BUFFER)}
    return _floats(arrays["theta"]), _floats(arrays["step"]) if "step" in arrays else None, buffers


def encode_task(task: ClientTask, model: ArrayRecord) -> RecordDict:
    """Content of a message to a client."""
    config = {key: getattr(task, name) for key, name in _TASK_FIELDS.items()}
    config |= {DIRECTIVE + name: float(value) for name, value in task.directives.items()}
    return RecordDict({MODEL: model, TASK: ConfigRecord(config)})


def decode_task(content: RecordDict) -> Assignment:
    """Inverse of `encode_task` and `encode_model`.

    Raises
    ------
    WireError
        If a record or a key is missing.
    """
    model, config = _of_kind(content, ArrayRecord).get(MODEL), _of_kind(content, ConfigRecord).get(TASK)
    if model is None or config is None:
        raise WireError("missing-key", f"records {sorted(content)}; need {MODEL!r} and {TASK!r}")
    directives: dict[str, Any] = {
        key.removeprefix(DIRECTIVE): value for key, value in config.items() if key.startswith(DIRECTIVE)
    }
    values: dict[str, Any] = {
        _TASK_FIELDS.get(key, key): value for key, value in config.items() if DIRECTIVE not in key
    }
    if set(values) != set(_TASK_FIELDS.values()):
        raise WireError("missing-key", f"task keys {sorted(config)}; need {sorted(_TASK_FIELDS)}")
    return Assignment(ClientTask(**values, directives=directives), *decode_model(model))


def encode_reply(reply: ClientReply) -> RecordDict:
    """Content of a client's reply."""
    vectors = ArrayRecord()
    if reply.gradient is not None:
        vectors["gradient"] = Array(reply.gradient)
    for name, vector in reply.vectors.items():
        vectors[EXTRA + name] = Array(vector)
    for name, value in reply.buffers.items():
        vectors[BUFFER + name] = Array(value)
    return RecordDict({VECTORS: vectors, FIGURES: MetricRecord(_reply_figures(reply))})


def change_row(content: RecordDict, change: Callable[[FloatArray], FloatArray]) -> None:
    """Replace the row of a reply, where it brings one, by what `change` makes of it."""
    vectors = _of_kind(content, ArrayRecord).get(VECTORS)
    if vectors is not None and "gradient" in vectors:
        vectors["gradient"] = Array(change(_floats(vectors["gradient"].numpy())))


def decode_reply(content: RecordDict, task: ClientTask, form: ReplyForm) -> ClientReply:
    """Read and check what a client answered to `task`.

    Raises
    ------
    WireError
        With the reason under which the reply is counted: `missing-key`, `extra-key`, `bad-dtype`, `bad-shape`,
        `bad-array`, `not-finite`, `bad-buffer`, `bad-loss`, `bad-rate`, `bad-count`, `bad-figure`, `bad-probe`.

    Notes
    -----
    The vectors are not searched for NaN and Inf here: whoever forms the gradient's norm sees it there for nothing.
    """
    figures = _figures_of(content)
    arrays = _of_kind(content, ArrayRecord)
    _check_keys("array records", set(arrays), {VECTORS})
    _check_keys("metric and config records", set(content) - set(arrays), {FIGURES})
    num_examples = figures.count("num-examples", least=1)
    seconds = figures.number("seconds")
    vectors = arrays[VECTORS]
    probe = _read_probe(figures, task) if task.probe else None
    test = _read_evaluation(figures, "test") if task.evaluate else None
    validation = _read_evaluation(figures, "validation") if task.evaluate and "validation-loss" in figures else None
    if not task.train:
        return ClientReply(num_examples, probe=probe, test=test, validation=validation, seconds=seconds)
    wanted = form.extras
    expected = {"gradient"} | {EXTRA + name for name in wanted.vectors} | {BUFFER + name for name in form.buffers}
    _check_keys("vectors", set(vectors), expected)
    rate = figures.number("rate")
    if rate < 0:
        raise WireError("bad-rate", f"rate {rate}; a rate is not negative")
    return ClientReply(
        num_examples=num_examples,
        gradient=_floats(view(vectors["gradient"], (form.dim,), FLOATS)),
        vectors={name: _floats(view(vectors[EXTRA + name], shape, FLOATS)) for name, shape in wanted.vectors.items()},
        figures={name: figures.within(EXTRA + name, wanted.limits.get(name)) for name in wanted.figures},
        buffers={name: _read_buffer(name, vectors[BUFFER + name], value) for name, value in form.buffers.items()},
        loss=figures.loss("loss"),
        rate=rate,
        probe=probe,
        test=test,
        validation=validation,
        pairs_kept=figures.count("pairs-kept"),
        pairs_rejected=figures.count("pairs-rejected"),
        seconds=seconds,
    )


def decode_probe(content: RecordDict, task: ClientTask) -> Probe | None:
    """What a reply says of the candidate, None if it was not asked; readable even where the rest is unfit.

    A client whose loss is NaN or Inf at the candidate has no gradient there to be of use, yet its word counts most.

    Raises
    ------
    WireError
        If the figures cannot be read.
    """
    return _read_probe(_figures_of(content), task) if task.probe else None


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
    properties = _of_kind(content, ConfigRecord).get(PROPERTIES)
    if properties is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {PROPERTIES!r}")
    return dict(properties)


def payload(content: RecordDict) -> int:
    """Bytes of arrays and figures in a message, without framing."""
    arrays = sum(size(array) for record in _of_kind(content, ArrayRecord).values() for array in record.values())
    values = (value for record in _of_kind(content, MetricRecord).values() for value in record.values())
    figures = sum(len(value) if isinstance(value, list) else 1 for value in values)
    settings = sum(len(record) for record in _of_kind(content, ConfigRecord).values())
    return arrays + 8 * (figures + settings)


class _Figures:
    """Figures of a reply, read with their range checked."""

    def __init__(self, record: MetricRecord) -> None:
        self._record = record

    def __contains__(self, key: str) -> bool:
        return key in self._record

    def scalar(self, key: str) -> float:
        if key not in self._record:
            raise WireError("missing-key", f"figures {sorted(self._record)[:20]}; need {key!r}")
        value = self._record[key]
        if isinstance(value, list):
            raise WireError("bad-shape", f"{key} is a list of {len(value)}; need one number")
        return float(value)

    def number(self, key: str) -> float:
        value = self.scalar(key)
        if not math.isfinite(value):
            raise WireError("not-finite", f"{key} is {value}")
        return value

    def within(self, key: str, limits: tuple[float, float] | None) -> float:
        value = self.number(key)
        if limits is not None and not limits[0] <= value <= limits[1]:
            raise WireError("bad-figure", f"{key} is {value}; need {limits[0]:g} to {limits[1]:g}")
        return value

    def loss(self, key: str) -> float:
        return _not_negative(key, self.number(key))

    def any_loss(self, key: str) -> float:
        """Infinite where the model diverges."""
        value = self.scalar(key)
        return _not_negative(key, value) if math.isfinite(value) else math.inf

    def losses(self, key: str) -> list[float]:
        """Infinite where the model diverges."""
        if key not in self._record:
            raise WireError("missing-key", f"figures {sorted(self._record)[:20]}; need {key!r}")
        value = self._record[key]
        found = [float(number) for number in value] if isinstance(value, list) else [float(value)]
        return [_not_negative(key, number) if math.isfinite(number) else math.inf for number in found]

    def count(self, key: str, least: int = 0) -> int:
        value = self.number(key)
        if value != int(value) or not least <= value <= MAX_EXAMPLES:
            raise WireError("bad-count", f"{key} is {value}; need a whole number from {least} to {MAX_EXAMPLES}")
        return int(value)

    def flag(self, key: str) -> bool:
        value = self.number(key)
        if value not in (0, 1):
            raise WireError("bad-count", f"{key} is {value}; need 0 or 1")
        return value == 1


def _not_negative(key: str, loss: float) -> float:
    if loss < 0:
        raise WireError("bad-loss", f"{key} is {loss}; cross-entropy and ridge are not negative")
    return loss


def _figures_of(content: RecordDict) -> _Figures:
    figures = _of_kind(content, MetricRecord).get(FIGURES)
    if figures is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {VECTORS!r} and {FIGURES!r}")
    return _Figures(figures)


def _of_kind(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """The records of one kind; Flower's own views of them are dictionaries built and checked anew at every look."""
    return {key: record for key, record in content.items() if isinstance(record, kind)}


def _reply_figures(reply: ClientReply) -> dict[str, int | float | list[int] | list[float]]:
    figures: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": reply.num_examples,
        "seconds": reply.seconds,
    }
    if reply.gradient is not None:
        figures |= {"loss": reply.loss, "rate": reply.rate}
        figures |= {"pairs-kept": reply.pairs_kept, "pairs-rejected": reply.pairs_rejected}
        figures |= {EXTRA + name: value for name, value in reply.figures.items()}
    if reply.probe is not None:
        figures |= {"probe-loss": reply.probe.loss, "probe-holds": int(reply.probe.holds)}
        if reply.probe.grown_holds is not None:
            figures["probe-grown-holds"] = int(reply.probe.grown_holds)
        if reply.probe.back_factor is not None and reply.probe.back_loss is not None:
            figures |= {"probe-back-factor": reply.probe.back_factor, "probe-back-loss": reply.probe.back_loss}
        if reply.probe.behind_loss is not None:
            figures["probe-behind-loss"] = reply.probe.behind_loss
        if reply.probe.losses:
            figures["probe-losses"] = list(reply.probe.losses)
    for part, counts in (("test", reply.test), ("validation", reply.validation)):
        if counts is not None:
            figures |= {f"{part}-correct": counts.correct, f"{part}-examples": counts.examples}
            figures[f"{part}-loss"] = counts.loss
    return figures


def _read_probe(figures: _Figures, task: ClientTask) -> Probe:
    probe = _read_test(figures, task)
    wanted = len(task.rungs)
    if not wanted:
        return probe
    losses = figures.losses("probe-losses")
    if len(losses) != wanted:
        raise WireError("bad-probe", f"probe-losses are {len(losses)}; the task asks for {wanted} rungs")
    return replace(probe, losses=tuple(losses))


def _read_test(figures: _Figures, task: ClientTask) -> Probe:
    if figures.flag("probe-holds"):
        grown = figures.flag("probe-grown-holds") if "probe-grown-holds" in figures else None
        return Probe(figures.loss("probe-loss"), True, grown)
    loss = figures.any_loss("probe-loss")
    behind = figures.any_loss("probe-behind-loss") if "probe-behind-loss" in figures else None
    if "probe-back-factor" not in figures:
        return Probe(loss, False, behind_loss=behind)
    back = figures.number("probe-back-factor")
    if back not in [task.factor * 0.5**rung for rung in range(1, task.halvings + 1)]:
        raise WireError("bad-probe", f"probe-back-factor {back} is none of {task.halvings} halvings of {task.factor}")
    back_loss = figures.loss("probe-back-loss")
    return Probe(loss, False, back_factor=back, back_loss=back_loss, behind_loss=behind)


def _read_evaluation(figures: _Figures, part: str) -> Evaluation:
    examples = figures.count(f"{part}-examples")
    correct = figures.count(f"{part}-correct")
    if correct > examples:
        raise WireError("bad-count", f"{part}: {correct} right of {examples}")
    return Evaluation(correct, examples, figures.loss(f"{part}-loss"))


def _read_buffer(name: str, array: FlowerArray, current: NDArray[np.generic]) -> NDArray[np.generic]:
    values = view(array, current.shape, (str(current.dtype),))
    if not np.isfinite(values).all():
        raise WireError("not-finite", "a buffer of the model holds NaN or Inf")
    if name.endswith(VARIANCE) and (np.minimum(values, 0) != 0).any():
        raise WireError("bad-buffer", f"{name} holds {np.min(values):.3g}; a variance is not negative")
    return values


def _check_keys(what: str, found: set[str], expected: set[str]) -> None:
    if missing := expected - found:
        raise WireError("missing-key", f"{what} without {sorted(missing)[:8]}")
    if extra := found - expected:
        raise WireError("extra-key", f"{what} with {sorted(extra)[:8]}")


def _floats(values: NDArray[np.generic]) -> FloatArray:
    if values.dtype.kind != "f":
        raise WireError("bad-dtype", f"dtype {values.dtype}; need a float")
    return cast(FloatArray, values)


def encode_memory(memory: Mapping[str, NDArray[np.generic]], state: RecordDict) -> None:
    """Put a client's memory into the state that Flower keeps for it between messages."""
    record = ArrayRecord()
    for name, values in memory.items():
        record[name] = Array(values)
    state[MEMORY] = record


def memory_record(state: RecordDict) -> ArrayRecord | None:
    """The record that `encode_memory` put into `state`, if any."""
    return _of_kind(state, ArrayRecord).get(MEMORY)


def decode_memory(state: RecordDict) -> dict[str, NDArray[np.generic]]:
    """Inverse of `encode_memory`; empty when there is none yet."""
    record = memory_record(state) or ArrayRecord()
    return {name: view(array, tuple(array.shape), (str(array.dtype),)) for name, array in record.items()}
