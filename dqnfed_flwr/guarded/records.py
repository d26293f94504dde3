"""Models as Flower's records of named arrays, which array is which, and what the wrapper and the mod exchange.

Beside the records of the strategy and of the user's functions there are these:

| message | record | content |
|---|---|---|
| server to client | ConfigRecord `dqnfed.task` | the fields of `ClientTask` |
| | ConfigRecord `dqnfed.model` | `key`: name of the record that holds the model |
| | ArrayRecord `dqnfed.before` | the model that the step leads from, where the client may be asked for other lengths |
| | ConfigRecord `dqnfed.judge` | the fields of `HeldOutTerms`, where clients judge by their held-out parts |
| client to server | ArrayRecord `dqnfed.vectors` | `gradient`: the row, float32 [D] |
| | MetricRecord `dqnfed.figures` | as in `wire.reply` |
| | ConfigRecord `dqnfed.parameters` | `names`: of the arrays that the row is about, in its order |

Each side takes the records off again before the user's function, or the strategy, sees the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from dqnfed_flwr import wire
from dqnfed_flwr.client.held_out import HeldOutTerms
from dqnfed_flwr.errors import ModelError, ShapeError, WireError
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray

Arrays = Mapping[str, NDArray[np.generic]]
"""The arrays of a model by name."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a strategy hands it over, and its arrays."""

    record: ArrayRecord
    arrays: Arrays

    @classmethod
    def of(cls, record: ArrayRecord) -> Model:
        """The model in a record."""
        return cls(record, read(record))

    @classmethod
    def made(cls, arrays: Arrays) -> Model:
        """The model of some arrays."""
        return cls(write(arrays), arrays)

    def toward(self, end: Model, share: float) -> Model:
        """The model that lies a `share` of the way to another, at most 1: that other itself at 1."""
        return end if share == 1 else Model.made(between(self.arrays, end.arrays, share, ()))


def read(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """The arrays of a record, in its order; `ModelError` where one cannot be read."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError) as error:
        raise ModelError(f"a model whose arrays cannot be read ({error}); send NumPy or torch arrays") from None


def write(arrays: Arrays) -> ArrayRecord:
    """Inverse of `read`."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def check_alike(what: str, found: Arrays, model: Arrays) -> None:
    """Raise `ShapeError` unless `found` has the names and shapes of `model`."""
    if list(found) != list(model) and set(found) != set(model):
        different = sorted(set(found).symmetric_difference(model))
        raise ShapeError(f"{what} has other arrays than the model: {different[:8]}; both need the same names")
    for name, values in found.items():
        if values.shape != model[name].shape:
            raise ShapeError(f"{what}: {name!r} has shape {values.shape}; the model's has {model[name].shape}")


def between(before: Arrays, ahead: Arrays, share: float, parameters: Collection[str]) -> Arrays:
    """The model that lies a share of the way from `before` to `ahead`: `ahead` itself at 1.

    Server and client call this one function, so that both speak of the same model to the last bit. Arrays of floats,
    real or complex, that are no parameters, such as running statistics, go along from 0 to 1 and no further, since
    nothing is known of them elsewhere. Other arrays, such as counters, are those of `ahead`, as are the dtypes.
    """
    if share == 1:
        return ahead
    inside = min(max(share, 0.0), 1.0)

    def at(name: str, end: NDArray[np.generic]) -> NDArray[np.generic]:
        start = before[name]
        kinds = {start.dtype.kind, end.dtype.kind}
        if not kinds <= {"f", "c"}:
            return end
        exact = np.complex128 if "c" in kinds else np.float64
        first, last = start.astype(exact), end.astype(exact)
        way = np.subtract(last, first, out=np.zeros_like(last), where=first != last)  # two infinities are no way apart
        part = share if name in parameters else inside
        return np.asarray((first + part * way).astype(end.dtype))

    return {name: at(name, end) for name, end in ahead.items()}


def flatten(arrays: Arrays, names: Sequence[str]) -> FloatArray:
    """The named arrays as one float64 vector [D]."""
    return np.concatenate([arrays[name].reshape(-1).astype(np.float64) for name in names])


def moved(arrays: Arrays, names: Sequence[str], by: FloatArray) -> Arrays:
    """`arrays` with `by` [D] added to the named ones; their dtypes stay."""
    found, start = dict(arrays), 0
    for name in names:
        values = arrays[name]
        part = by[start : start + values.size].reshape(values.shape)
        found[name] = np.asarray((values.astype(np.float64) + part).astype(values.dtype))
        start += values.size
    return found


NAMED = 4
"""Names of either side that a message gives."""
_MARKS = 100
"""Whole numbers that every type of floating point holds."""
Shapes = Mapping[str, tuple[int, ...]]
Load = Callable[[nn.Module, dict[str, Tensor]], object]
"""Puts arrays into a model."""


def matched(arrays: Arrays, shapes: Shapes, trained: Collection[str]) -> dict[str, str]:
    """The model's names by those of the arrays received, which may be a part of the model.

    The names are the same, or the arrays are all in their order, or one name is the other without some of its parts, as
    `peft` leaves out the name of its adapter and wrappers put theirs in front. Where several of the model's would do,
    it is a trained one, then one with more parts than the array's, then the one with the fewest more. `shapes` are
    those of the model's state, `trained` its names that are trained; `ModelError` if there is no match one to one.
    """
    if arrays.keys() <= shapes.keys():
        return {name: name for name in arrays}
    if len(arrays) == len(shapes) and not arrays.keys() & shapes.keys():
        found = dict(zip(arrays, shapes, strict=True))
        if all(arrays[key].shape == shapes[name] for key, name in found.items()):
            return found
    found = {key: name for key, values in arrays.items() if (name := _nearest(key, values.shape, shapes, trained))}
    if len(found) < len(arrays) or max(Counter(found.values()).values()) > 1:
        left = [key for key in arrays if key not in found or Counter(found.values())[found[key]] > 1]
        raise ModelError(
            f"{len(left)} of the {len(arrays)} arrays received, such as {_some(left)}, are none of the "
            f"{len(shapes)} of the local model, such as {_some(list(shapes))}; build the same model, or say how they "
            "are put into it: LocalTask(..., load=set_peft_model_state_dict)"
        )
    return found


def _nearest(key: str, shape: tuple[int, ...], shapes: Shapes, trained: Collection[str]) -> str | None:
    """The one name that suits best; None where there is none or a draw."""
    if key in shapes:
        return key
    parts = key.split(".")
    ranks = {
        name: (name not in trained, len(own) < len(parts), abs(len(own) - len(parts)))
        for name, have in shapes.items()
        if have == shape and (own := name.split("."))[-1] == parts[-1] and (_within(parts, own) or _within(own, parts))
    }
    best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    return best[0] if len(best) == 1 else None


def _within(few: Sequence[str], many: Sequence[str]) -> bool:
    """Whether `few` is `many` without some of its parts."""
    left = iter(many)
    return all(part in left for part in few)


def matched_by_loading(arrays: Arrays, load: Load, model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, str]:
    """As `matched`, for the trained parameters alone: `load` shows where it puts arrays that are marked.

    The model's values are others afterwards. `ModelError` if it changes a trained parameter by no array, or by several.
    """
    before = {name: tensor.detach().clone() for name, tensor in trained.items()}
    numbers = {name: [0] * len(_digits(len(arrays))) for name in trained}
    for place, base in enumerate(_digits(len(arrays))):
        marked = {
            key: torch.full_like(torch.tensor(values), 1 + number // base % _MARKS)
            for number, (key, values) in enumerate(arrays.items())
        }
        load(model, marked)
        for name, tensor in trained.items():
            first = tensor.detach().reshape(-1)[:1]
            numbers[name][place] = int(first.item()) if first.numel() and bool((tensor == first).all()) else 0
    touched = [name for name, tensor in trained.items() if not torch.equal(tensor.detach(), before[name])]
    found, keys = dict[str, str](), list(arrays)
    for name in touched:
        number = sum((mark - 1) * base for mark, base in zip(numbers[name], _digits(len(arrays)), strict=True))
        if 0 not in numbers[name] and 0 <= number < len(keys) and arrays[keys[number]].size == trained[name].numel():
            found[keys[number]] = name
    if len(found) < len(touched):
        left = sorted(set(touched) - set(found.values()))
        raise ModelError(
            f"load makes {_some(left)} of no single array received; have each trained parameter travel whole"
        )
    return found


def _digits(count: int) -> list[int]:
    """What the places of a number below `count` are worth."""
    found = [1]
    while found[-1] * _MARKS < count:
        found.append(found[-1] * _MARKS)
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names[:NAMED])


PREFIX = "dqnfed."
_TASK, _MODEL, _BEFORE = PREFIX + "task", PREFIX + "model", PREFIX + "before"
_NAMES, _JUDGE = PREFIX + "parameters", PREFIX + "judge"
MOST_NAMES = 100_000
ARMIJO = 0.0
"""Of a client's test, on both sides: a loss need not fall, only not rise above its ceiling."""


@dataclass(frozen=True, slots=True)
class GuardRequest:
    """What the mod finds in a message."""

    task: ClientTask
    arrays: Arrays  # the model received
    before: Arrays | None  # the model before the step that leads there
    terms: HeldOutTerms | None = None  # how it judges by its held-out part, where it shall


def plain(content: RecordDict) -> RecordDict:
    """`content` without the records of this package."""
    return RecordDict({key: record for key, record in content.items() if not key.startswith(PREFIX)})


def model_key(content: RecordDict, model: ArrayRecord) -> str | None:
    """The name of the record of `content` that holds the model; None where none does."""
    records = {key: record for key, record in content.items() if isinstance(record, ArrayRecord)}
    same = [key for key, record in records.items() if record is model]
    return next(iter(same or [key for key, record in records.items() if record == model]), None)


def with_task(
    content: RecordDict, task: ClientTask, key: str, before: ArrayRecord | None, terms: HeldOutTerms | None = None
) -> RecordDict:
    """`content`, whose record `key` is the model, with a task for the mod; a new record."""
    added: dict[str, ArrayRecord | ConfigRecord] = {_TASK: wire.task_record(task), _MODEL: ConfigRecord({"key": key})}
    if before is not None:
        added[_BEFORE] = before
    if terms is not None:
        added[_JUDGE] = ConfigRecord(asdict(terms))
    return RecordDict({**content, **added})


def read_request(content: RecordDict) -> GuardRequest | None:
    """What the wrapper asks for, `WireError` if it is not whole; None where the strategy is not wrapped."""
    task, where = content.get(_TASK), content.get(_MODEL)
    if task is None:
        return None
    if not isinstance(task, ConfigRecord) or not isinstance(where, ConfigRecord):
        raise WireError("missing-key", f"records {sorted(content)}; need {_TASK!r} and {_MODEL!r}")
    model, before, terms = content.get(str(where.get("key"))), content.get(_BEFORE), content.get(_JUDGE)
    if not isinstance(model, ArrayRecord):
        raise WireError("missing-key", f"records {sorted(content)}; need the model {where.get('key')!r}")
    return GuardRequest(
        wire.read_task(task),
        read(model),
        read(before) if isinstance(before, ArrayRecord) else None,
        HeldOutTerms(**terms) if isinstance(terms, ConfigRecord) else None,  # type: ignore[arg-type]
    )


def with_reply(content: RecordDict, reply: ClientReply, names: tuple[str, ...]) -> RecordDict:
    """The user's reply with what the mod adds to it."""
    added = {PREFIX + key: record for key, record in wire.encode_reply(reply).items()}
    return RecordDict({**content, **added, _NAMES: ConfigRecord({"names": list(names)})})


def has_reply(content: RecordDict) -> bool:
    """Whether the mod added anything."""
    return any(key.startswith(PREFIX) for key in content)


def reply_part(content: RecordDict) -> RecordDict:
    """What the mod added, as `wire.decode_reply` reads it."""
    names = {key.removeprefix(PREFIX): record for key, record in content.items() if key.startswith(PREFIX)}
    return RecordDict({key: record for key, record in names.items() if PREFIX + key != _NAMES})


def read_names(content: RecordDict, model: Arrays) -> tuple[str, ...]:
    """Names of the arrays of `model` that the row is about; `WireError` if some are no arrays of floats of it."""
    record = content.get(_NAMES)
    names = record.get("names") if isinstance(record, ConfigRecord) else None
    if not isinstance(names, list) or not 0 < len(names) <= MOST_NAMES or len(set(names)) < len(names):
        raise WireError("missing-key", "no list of the parameters that the gradient is about")
    for name in names:
        if not isinstance(name, str) or name not in model or model[name].dtype.kind != "f":
            raise WireError("extra-key", f"a gradient of {str(name)[:60]!r}, which is no array of floats of the model")
    return tuple(str(name) for name in names)
