"""Dataclasses as JSON and named arrays, and back: the one way in which a run's state and events are written.

What a field is follows from its type hint: numbers, text, other dataclasses, lists, tuples, sets, dictionaries, arrays
and tensors. In JSON an array stands by the name under which it lies beside the record, a set by its sorted members, and
the keys of a dictionary are text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import on_host

T = TypeVar("T")
Arrays = Mapping[str, NDArray[np.generic]]
NO_ARRAYS: Arrays = {}
TRANSIENT: Mapping[str, bool] = {"transient": True}
"""Metadata of a field that is not written, and begins with its default again: a clock, a count of the moment."""
_Reader = Callable[[Any, Arrays], Any]


def pack(value: Any, arrays: dict[str, NDArray[np.generic]], path: str = "") -> Any:
    """`value` as JSON can hold it; its arrays are put into `arrays`, under names that begin with `path`."""
    if is_dataclass(value):
        kept = [each.name for each in fields(value) if each.metadata != TRANSIENT]
        return {name: pack(getattr(value, name), arrays, _below(path, name)) for name in kept}
    if isinstance(value, Mapping):
        return {str(key): pack(item, arrays, _below(path, str(key))) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [pack(item, arrays, _below(path, str(place))) for place, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    arrays[path] = on_host(value)
    return path


def unpack(kind: type[T], record: Mapping[str, Any], arrays: Arrays = NO_ARRAYS) -> T:
    """Inverse of `pack` for a dataclass; null in place of a number is NaN.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        Where a field or an array is missing, or is not what its hint says.
    """
    of_any: Any = kind
    found: T = _dataclass_reader(of_any)(record, arrays)
    return found


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


@cache
def _dataclass_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind) if each.metadata != TRANSIENT}

    def read(record: Any, arrays: Arrays) -> Any:
        return kind(**{name: read(record[name], arrays) for name, read in readers.items()})

    return read


def _reader(hint: Any) -> _Reader:
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        made: _Reader = _dataclass_reader(hint)
        return made
    if origin in (Union, UnionType):
        return partial(_optional, _reader(next(each for each in inner if each is not type(None))))
    if origin is Literal:
        return partial(_one_of, inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return partial(_each, [_reader(each) for each in inner])
    if origin in (list, tuple, set, frozenset, Sequence):
        return partial(_many, list if origin is Sequence else origin, _reader(inner[0]))
    if origin in (dict, Mapping):
        return partial(_by_key, inner[0], _reader(inner[1]))
    if origin is np.ndarray:
        return lambda name, arrays: np.asarray(arrays[name])
    return _tensor if getattr(hint, "__name__", "") == "Tensor" else partial(_scalar, hint)


def _optional(read: _Reader, value: Any, arrays: Arrays) -> Any:
    return None if value is None else read(value, arrays)


def _one_of(allowed: tuple[object, ...], value: Any, arrays: Arrays) -> Any:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {allowed}")
    return value


def _each(readers: Sequence[_Reader], values: Any, arrays: Arrays) -> Any:
    return tuple(read(value, arrays) for read, value in zip(readers, values, strict=True))


def _many(kind: Any, read: _Reader, values: Any, arrays: Arrays) -> Any:
    return kind(read(value, arrays) for value in values)


def _by_key(key: Any, read: _Reader, values: Any, arrays: Arrays) -> Any:
    return {key(name): read(value, arrays) for name, value in values.items()}


def _tensor(name: Any, arrays: Arrays) -> Any:
    import torch

    return torch.from_numpy(np.array(arrays[name]))


def _scalar(kind: Any, value: Any, arrays: Arrays) -> Any:
    if kind is float:
        return math.nan if value is None else float(value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
