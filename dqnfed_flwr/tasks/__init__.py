"""Tasks by name: what a federation trains. `Task` is the class to derive a task of your own from."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from inspect import isabstract, signature
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.config import resolve
from dqnfed_flwr.data.user import call_function, imported, number_of
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.tasks._base import Datasets as Datasets
    from dqnfed_flwr.tasks._base import Task as Task

_SHIPPED = {
    "classification": "classification:CrossEntropy",
    "regression": "arrays:Regression",
    "huber-regression": "arrays:HuberRegression",
    "multi-label": "arrays:MultiLabel",
    "segmentation": "classification:Segmentation",
    "next-token": "classification:NextToken",
}
TASKS = tuple(_SHIPPED)


def task_of(settings: Settings) -> Task:
    """The task of a run: one that comes with the package, or the user's.

    Raises
    ------
    ConfigError
        If there is no such task, or the class named is none.
    """
    return _task_of(settings, number_of("task", settings.task))


@lru_cache(maxsize=8)
def _task_of(settings: Settings, number: int) -> Task:
    """The same, made once; `number` tells an object from an earlier one of its name."""
    del number
    if settings.task in _SHIPPED:
        module, _, name = _SHIPPED[settings.task].partition(":")
        shipped: Task = getattr(import_module(f"{__name__}.{module}"), name)(settings)
        return shipped
    task = _own(settings)
    check_floor(task.floor, f"task: {settings.task}: floor")
    _check_methods(task.floor, settings)
    return task


def check_floor(floor: object, what: str) -> None:
    """Refuse what is no least value of a loss, a finite number, or None where it is not known: `ConfigError`."""
    if floor is None or (isinstance(floor, int | float) and not isinstance(floor, bool) and math.isfinite(floor)):
        return
    raise ConfigError(f"{what}: found {floor!r}; give the least value of the loss, a finite number, or None")


def _check_methods(floor: float | None, settings: Settings) -> None:
    """Refuse methods that cannot do with losses below 0, where the task says that it has such."""
    for part in resolve(settings).parts if floor is not None and floor < 0 else ():
        if why := part.method.nonnegative(part, floor=True):
            raise ConfigError(
                f"task: {settings.task} has losses down to {floor:g}, but {part.method.name} {why}, which takes losses "
                "from 0; add a constant to the loss, or use another method"
            )


def _own(settings: Settings) -> Task:
    from dqnfed_flwr.tasks._base import Task

    if ":" not in settings.task:
        raise ConfigError(f"task: found {settings.task!r}; allowed: {', '.join(TASKS)}, or module:Class")
    kind: Any = imported(settings.task, "task", ConfigError)
    if isabstract(kind):
        missing = ", ".join(f"{name}()" for name in sorted(kind.__abstractmethods__))
        raise ConfigError(f"task: {settings.task} does not say {missing}; a task has model(), datasets() and losses()")
    arguments = [settings] if signature(kind).parameters else []
    task = call_function(settings.task, "task", ConfigError, *arguments)
    if not isinstance(task, Task):
        raise ConfigError(f"task: {settings.task} gave {type(task).__name__}; it must be a dqnfed_flwr.tasks.Task")
    return task.bound(settings)


def __getattr__(name: str) -> Any:
    """`Task` and its kin, imported when they are asked for: settings must not need torch."""
    if name in ("Datasets", "Task"):
        return getattr(import_module(f"{__name__}._base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
