"""A task, data and a model that a caller gives as objects: their names in the settings for as long as a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.objects import holding
from dqnfed_flwr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import nn

    from dqnfed_flwr.tasks._base import Task

    GivenTask = Task | type[Task] | str | None
    GivenData = Mapping[str, Any] | Sequence[Any] | Callable[..., Any] | str | None
    GivenModel = nn.Module | Callable[..., nn.Module] | str | None

_PAIRS = ("x_train", "y_train", "x_test", "y_test")
Objects = dict[str, tuple[str, Any]]
"""For each key of settings the name that an object would like, and what stands for it."""


def objects_of(
    *, task: GivenTask = None, data: GivenData = None, model: GivenModel = None
) -> tuple[dict[str, str], Objects]:
    """What a caller gave: names that go into the settings as they are, and objects.

    Raises
    ------
    ConfigError
        If one is of no form that its key takes, or they do not go together.
    """
    _check_alone(task, data, model)
    given = {"task": task, "data": data, "model": model}
    names = {key: value for key, value in given.items() if isinstance(value, str)}
    found = {key: value for key, value in given.items() if value is not None and key not in names}
    makers: Mapping[str, Callable[[Any], tuple[str, Any]]] = {"task": _task, "data": _data, "model": _model}
    return names, {key: makers[key](value) for key, value in found.items()}


@contextmanager
def settings_with(settings: Settings, names: Mapping[str, str], objects: Objects) -> Iterator[Settings]:
    """The settings that stand for what was given, while this process holds it."""
    with holding(objects) as held:
        yield Settings.from_mapping({**settings.flat(), **names, **held}) if names or held else settings


def _check_alone(task: Any, data: Any, model: Any) -> None:
    """A task of the user's own brings its data and its model."""
    from dqnfed_flwr.tasks.arrays import ArrayTask

    kind = task if isinstance(task, type) else type(task)
    own = task is not None and not isinstance(task, str) and not issubclass(kind, ArrayTask)
    if own and (extra := [key for key, value in (("data", data), ("model", model)) if value is not None]):
        raise ConfigError(
            f"{', '.join(extra)}: given next to the task {kind.__name__}, which says its data and model itself; give "
            "them in its datasets() and model(), or derive it from dqnfed_flwr.tasks.arrays.ArrayTask"
        )


def _task(task: Any) -> tuple[str, Any]:
    from dqnfed_flwr.tasks._base import Task

    if isinstance(task, type) and issubclass(task, Task):
        return task.__name__, task
    if isinstance(task, Task):
        return type(task).__name__, lambda: task
    raise ConfigError(
        f"task: found {type(task).__name__}; give a name, a dqnfed_flwr.tasks.Task, or a class derived from it"
    )


def _model(model: Any) -> tuple[str, Any]:
    from torch import nn

    if isinstance(model, nn.Module):
        return type(model).__name__, lambda input_shape, num_classes: deepcopy(model)
    if callable(model):
        return _called(model), model if _takes_arguments(model) else lambda input_shape, num_classes: model()
    raise ConfigError(
        f"model: found {type(model).__name__}; give a name, a torch.nn.Module, or a function "
        "(input_shape, num_classes) that makes one"
    )


def _data(data: Any) -> tuple[str, Any]:
    if isinstance(data, Mapping):
        return "arrays", {str(key): _array(value, str(key)) for key, value in data.items()}
    if isinstance(data, tuple | list) and len(data) in (2, 4):
        return _data(dict(zip(_PAIRS, data, strict=False)))
    if callable(data):

        @wraps(data)
        def of_client(settings: Mapping[str, Any], partition: int, clients: int) -> object:
            arrays = data(partition, clients, settings["seed"])
            whole = isinstance(arrays, Mapping)
            return {str(key): _array(value, str(key)) for key, value in arrays.items()} if whole else arrays

        return _called(data), of_client
    raise ConfigError(
        f"data: found {_kind_of(data)}; give a name, a mapping of arrays (x_train, y_train, ...), a pair (x, y), four "
        "arrays (x_train, y_train, x_test, y_test), or a function (partition, clients, seed) that returns the mapping "
        "of a client"
    )


def _kind_of(value: Any) -> str:
    """Its type, with its length where it is a sequence."""
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _array(value: Any, key: str) -> Any:
    """An array of whatever holds one; the columns of a table are features, not tokens."""
    try:
        array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data: {key} is a {type(value).__name__} and no array ({error}); give numbers") from None
    if hasattr(value, "columns") and key.startswith("x_"):
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"data: {key}: the columns {', '.join(map(str, value.columns))} are of dtype {array.dtype} together; "
                "give columns of numbers: leave texts out, or encode them"
            )
        return array.astype(np.float32)
    return array


def _takes_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function has to be given something, or can be."""
    parameters = signature(function).parameters.values()
    return any(each.kind is not Parameter.KEYWORD_ONLY and each.default is Parameter.empty for each in parameters)


def _called(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else name
