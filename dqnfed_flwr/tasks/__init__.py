"""Tasks by name: what a federation trains. `Task` is the class to derive a task of your own from."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from inspect import isabstract, signature
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.data.objects import number_of
from dqnfed_flwr.data.user import call_function, imported
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.tasks._base import Datasets as Datasets
    from dqnfed_flwr.tasks._base import Task as Task

_SHIPPED = {
    "classification": "classification:CrossEntropy",
    "regression": "regression:Regression",
    "huber-regression": "regression:HuberRegression",
    "multi-label": "multi_label:MultiLabel",
    "segmentation": "places:Segmentation",
    "next-token": "places:NextToken",
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


def has_own_data(settings: Settings) -> bool:
    """Whether the task of a run brings its data sets, so that the setting `data` is not read; raises as `task_of`."""
    from dqnfed_flwr.tasks.arrays import ArrayTask

    return not isinstance(task_of(settings), ArrayTask)


@lru_cache(maxsize=8)
def _task_of(settings: Settings, number: int) -> Task:
    """The same, made once; `number` tells an object from an earlier one of its name."""
    del number
    if settings.task in _SHIPPED:
        module, _, name = _SHIPPED[settings.task].partition(":")
        shipped: Task = getattr(import_module(f"{__name__}.{module}"), name)(settings)
        return shipped
    return _own(settings)


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
