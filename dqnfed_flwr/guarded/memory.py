"""What a strategy of somebody's remembers, and the figures of its rounds, so that a guarded run can be resumed."""

from __future__ import annotations

import json
import types
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.guarded.wrapped import strategies_in

Arrays = dict[str, NDArray[np.generic]]
RECORD = "record"
_RECORDS = {kind.__name__: kind for kind in (ConfigRecord, MetricRecord)}
_MANY = {kind.__name__: kind for kind in (list, tuple, set)}
_PAIRS = {kind.__name__: kind for kind in (dict, OrderedDict)}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial, type)


class StrategyMemory:
    """What a `strategy` keeps in its attributes, and those that it wraps in theirs, where it changed since the start.

    That is numbers, text, arrays, Flower's records, lists and dictionaries of them, and whatever has `state_dict` and
    `load_state_dict`, as a strategy itself may. What is of another kind, and no function, is named once in the log: a
    resumed run begins with it anew. So it does with what never changed, such as a learning rate. The `configs` that a
    strategy is given, and may change, belong to its memory.
    """

    def __init__(self, strategy: Strategy, configs: Mapping[str, ConfigRecord]) -> None:
        self._strategy, self._configs = strategy, configs
        self._named: set[str] = set()
        self._at_start = {place: _digest(held, arrays) for place, held, arrays in self._held()}

    def export_state(self) -> Arrays:
        """Copies, so that the strategy may go on."""
        record: list[Any] = []
        found: Arrays = {}
        for place, held, arrays in self._held():
            if _digest(held, arrays) != self._at_start.get(place):
                record.append([*place, len(record), held])
                found |= {f"{len(record) - 1}/{name}": values for name, values in arrays.items()}
        kinds = [type(each).__name__ for each in strategies_in(self._strategy)]
        text = json.dumps({"kinds": kinds, "held": record})
        return {RECORD: np.frombuffer(text.encode(), np.uint8), **found}

    def restore_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put back what `export_state` gave; `CheckpointError` where it is of another strategy."""
        record = json.loads(state[RECORD].tobytes())
        strategies = list(strategies_in(self._strategy))
        then, now = record["kinds"], [type(each).__name__ for each in strategies]
        if then != now:
            raise CheckpointError(
                f"the checkpoint belongs to a run of {' around '.join(then)}, this is {' around '.join(now)}"
            )
        for number, name, place, held in record["held"]:
            arrays = {key.partition("/")[2]: each for key, each in state.items() if key.startswith(f"{place}/")}
            value = _decoded(held, arrays)
            if number < 0:
                self._configs[name].clear()
                self._configs[name].update(value)
                continue
            owner: Any = strategies[number]
            thing: Any = getattr(owner, name, None) if name else owner
            if _says_itself(thing):
                thing.load_state_dict(value)
            else:
                setattr(owner, name, value)

    def _held(self) -> Iterator[tuple[tuple[int, str], Any, Arrays]]:
        """Each thing that is remembered: whose it is, with its name, as JSON, and its arrays."""
        arrays: Arrays
        for name, config in self._configs.items():
            yield (-1, name), _encoded(config, arrays := {}), arrays
        for number, strategy in enumerate(strategies_in(self._strategy)):
            if _says_itself(strategy):
                yield (number, ""), _encoded(strategy.state_dict(), arrays := {}), arrays  # type: ignore[attr-defined]
                continue
            for name, value in vars(strategy).items():
                if isinstance(value, (Strategy, *_FUNCTIONS)):
                    continue
                try:
                    held = _encoded(value.state_dict() if _says_itself(value) else value, arrays := {})
                except TypeError:
                    self._say(f"{name} ({type(value).__name__}) of {type(strategy).__name__}")
                else:
                    yield (number, name), held, arrays

    def _say(self, what: str) -> None:
        if what not in self._named:
            self._named.add(what)
            text = "A checkpoint does not hold %s: a resumed run begins with it anew. Give state_dict, load_state_dict"
            log(WARNING, text, what)


def figures_of(result: Result) -> list[dict[int, dict[str, Any]]]:
    """The figures of all rounds so far, as JSON can hold them, whatever functions of the user's made them."""
    return [
        {
            number: {name: np.asarray(value).tolist() for name, value in figures.items()}
            for number, figures in part.items()
        }
        for part in _parts(result)
    ]


def restore_figures(result: Result, figures: list[dict[str, dict[str, Any]]]) -> None:
    """Inverse of `figures_of`."""
    for part, found in zip(_parts(result), figures, strict=True):
        part.update({int(number): MetricRecord(each) for number, each in found.items()})


def _parts(result: Result) -> list[dict[int, MetricRecord]]:
    return [result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp]


def _says_itself(thing: object) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def _digest(held: Any, arrays: Arrays) -> tuple[str, int]:
    total = 0
    for values in arrays.values():
        total = zlib.crc32(np.ascontiguousarray(values).tobytes(), total)
    return json.dumps([held, [[str(values.dtype), values.shape] for values in arrays.values()]]), total


def _encoded(value: Any, arrays: Arrays) -> Any:
    """`value` as JSON, its arrays put into `arrays`; TypeError where it is of another kind."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": _encoded(np.frombuffer(value, np.uint8), arrays)}
    if isinstance(value, np.ndarray | np.generic) or type(value) is torch.Tensor:
        kind = "tensor" if isinstance(value, torch.Tensor) else "scalar" if isinstance(value, np.generic) else "array"
        name = str(len(arrays))
        arrays[name] = np.array(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)
        if arrays[name].dtype.hasobject:
            raise TypeError("an array of objects")
        return {kind: name}
    if isinstance(value, ArrayRecord):
        return {"ArrayRecord": [[key, _encoded(item.numpy(), arrays)] for key, item in value.items()]}
    for name, record in (_RECORDS | _PAIRS).items():
        if type(value) is record:
            return {name: [[_encoded(key, arrays), _encoded(item, arrays)] for key, item in value.items()]}
    for name, many in _MANY.items():
        if type(value) is many:
            return {name: [_encoded(item, arrays) for item in value]}
    raise TypeError(f"{type(value).__name__} cannot be kept")


def _decoded(value: Any, arrays: Mapping[str, NDArray[np.generic]]) -> Any:
    """Inverse of `_encoded`; KeyError where an array is missing."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind in ("array", "scalar", "tensor"):
        found = np.array(arrays[held])
        return torch.from_numpy(found) if kind == "tensor" else found[()] if kind == "scalar" else found
    if kind == "bytes":
        return _decoded(held, arrays).tobytes()
    if kind in _MANY:
        return _MANY[kind](_decoded(item, arrays) for item in held)
    pairs = {_decoded(key, arrays): _decoded(item, arrays) for key, item in held}
    if kind == "ArrayRecord":
        return ArrayRecord({key: Array(item) for key, item in pairs.items()})
    return (_RECORDS | _PAIRS)[kind](pairs)
