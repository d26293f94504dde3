"""`run`: one call from a configuration to a result, on either engine.

A task, data and a model may be given as objects, which have names in the settings for as long as the run goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.frames import arrays_of, in_order
from dqnfed_flwr.data.own_folder import own_settings
from dqnfed_flwr.data.user import holding
from dqnfed_flwr.engine.flower import run_flower
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run_folder import TAKEOVER_SECONDS, directory_lock, guard_output
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.telemetry.events import Listener

if TYPE_CHECKING:
    from torch import nn

    from dqnfed_flwr.tasks._base import Task

    GivenTask = Task | type[Task] | str | None
    GivenData = Mapping[str, Any] | Sequence[Any] | Callable[..., Any] | str | None
    GivenModel = nn.Module | Callable[..., nn.Module] | str | None

_PAIRS = ("x_train", "y_train", "x_test", "y_test")
Objects = dict[str, tuple[str, Any]]
"""For each key of settings the name that an object would like, and what stands for it."""
Engine = Literal["in-process", "flower"]
logger = logging.getLogger("flwr")


def run(
    config: Settings | Mapping[str, Any] | str | Path,
    *,
    engine: Engine = "in-process",
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 0,
    listeners: Sequence[Listener] = (),
    task: GivenTask = None,
    data: GivenData = None,
    model: GivenModel = None,
) -> RunResult:
    """Run a federation to its end.

    Parameters
    ----------
    config : Settings | Mapping | str | Path
        Settings, keys and values, the name of a shipped experiment, or a YAML file, whose folder is then on the import
        path and where its relative paths begin.
    engine : {"in-process", "flower"}
        All clients in this process, or Flower's simulation engine (needs the extra `simulation`).
    resume : bool
        Continue from the checkpoint in the output directory.
    overwrite : bool
        Replace the run that the output directory holds; without it and `resume`, such a directory is refused.
    jobs : int
        Clients that compute at the same time in this process; 0 chooses. Bits do not depend on it.
    listeners : Sequence[Listener]
        Called for every round.
    task : Task | type[Task] | str | None
        What to train, in place of the setting; an object of a class derived from `dqnfed_flwr.tasks.Task`, or the
        class.
    data : Mapping | tuple | Callable | str | None
        Arrays by name (`x_train`, `y_train`, ...); a pair (x, y) of arrays or tables, or four of them
        (x_train, y_train, x_test, y_test); or a function (partition, clients, seed) that returns the arrays of one
        client by name.
    model : nn.Module | Callable | str | None
        A module, which is copied and whose weights are the start, or a function (input_shape, num_classes) that makes
        one.

    Notes
    -----
    Objects live in this process alone: `settings` and files of the run name them `object:NAME`. To resume such a run,
    give the objects again. Flower's engine and nodes need names that they can import, `module:name`.

    Returns
    -------
    RunResult
        Final model, history and figures.

    Raises
    ------
    DQNFedError
        If the configuration is at fault, or the run does not finish.
    """
    if engine not in get_args(Engine):
        raise ConfigError(f"engine: found {engine!r}; allowed: {', '.join(get_args(Engine))}")
    names, objects = objects_of(task=task, data=data, model=model)
    with settings_with(as_settings(config), names, objects) as settings:
        return _run(settings, engine, listeners, resume=resume, overwrite=overwrite, jobs=jobs)


def _run(
    settings: Settings, engine: Engine, listeners: Sequence[Listener], *, resume: bool, overwrite: bool, jobs: int
) -> RunResult:
    if resume and not settings.resume:
        settings = settings.model_copy(update={"resume": True})
    _warn_of_copies(settings)
    tell_of_tables(settings)
    if engine == "flower":
        return run_flower(settings, overwrite=overwrite, listeners=listeners)
    return run_in_process(settings, overwrite=overwrite, jobs=jobs, listeners=listeners)


def as_settings(config: Settings | Mapping[str, Any] | str | Path) -> Settings:
    """Settings from any form that `run` takes."""
    if isinstance(config, Settings):
        return config
    return Settings.from_mapping(own_settings(config))


def _warn_of_copies(settings: Settings) -> None:
    """Warn where all clients of one machine would be the same client, each with the whole file."""
    from dqnfed_flwr.data.sources import FILE
    from dqnfed_flwr.tasks import task_of

    if settings.clients > 1 and task_of(settings).source.dealt_by(settings.partition) == FILE:
        logger.warning(
            "partition: file gives each of the %d clients the whole of %s, since nodes with files of their own are a "
            "matter of deployment; choose another partition (iid, dirichlet, ...) to deal it out",
            settings.clients,
            settings.data,
        )


def tell_of_tables(settings: Settings) -> None:
    """Warn of what is worth knowing of the tables of a new run."""
    from dqnfed_flwr.tasks import task_of

    if not settings.resume:
        task = task_of(settings)
        task.source.tell(task.targets)


def run_in_process(
    settings: Settings, *, overwrite: bool = False, jobs: int = 0, listeners: Sequence[Listener] = ()
) -> RunResult:
    """Run with the in-process grid; another process in the output directory is waited for only to resume its run."""
    from dqnfed_flwr.client.app import app, compute_together, forget_clients
    from dqnfed_flwr.client.reading import end_processes
    from dqnfed_flwr.engine.adversary import with_hostile
    from dqnfed_flwr.engine.in_process import Groups, OneSourceGrid
    from dqnfed_flwr.engine.server_run import serve
    from dqnfed_flwr.tasks import task_of

    output = output_directory(settings)
    with directory_lock(output, TAKEOVER_SECONDS if settings.resume else 0.0):
        if not settings.resume and not overwrite:
            guard_output(output)
        forget_clients()  # their data may have been replaced since
        grid = OneSourceGrid(
            with_hostile(app, settings),
            settings.clients,
            settings.flat(),
            jobs=jobs or choose_jobs(settings, usable_cores()),
            groups=Groups(settings.local.together, compute_together) if settings.local.together > 1 else None,
        )
        try:
            return serve(grid, settings, listeners=listeners, fingerprint=task_of(settings).source.fingerprint())
        finally:
            end_processes()


def choose_jobs(settings: Settings, cores: int) -> int:
    """As many clients at the same time as there are cores for their threads.

    One, where clients use all cores by themselves or a GPU; and where an exchange may close before the last reply,
    because clients that ran ahead would then have worked for nothing.
    """
    import torch

    on_gpu = settings.device not in ("cpu", "auto") or (settings.device == "auto" and torch.cuda.is_available())
    if on_gpu or settings.local.threads == 0 or settings.quorum < 1:
        return 1
    return max(1, min(cores // settings.local.threads, settings.sampled))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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

    from dqnfed_flwr.models.making import own_copy

    if isinstance(model, nn.Module):
        return type(model).__name__, lambda input_shape, num_classes: own_copy(model)
    if callable(model):
        return _called(model), model if _takes_arguments(model) else lambda input_shape, num_classes: model()
    raise ConfigError(
        f"model: found {type(model).__name__}; give a name, a torch.nn.Module, or a function "
        "(input_shape, num_classes) that makes one"
    )


def _data(data: Any) -> tuple[str, Any]:
    if isinstance(data, Mapping):
        return "arrays", arrays_of({str(key): value for key, value in data.items()})
    if isinstance(data, tuple | list) and len(data) in (2, 4):
        return _data(dict(zip(_PAIRS, in_order(data) if len(data) == 4 else data, strict=False)))
    if callable(data):

        @wraps(data)
        def of_client(settings: Mapping[str, Any], partition: int, clients: int) -> object:
            arrays = data(partition, clients, settings["seed"])
            whole = isinstance(arrays, Mapping)
            return arrays_of({str(key): value for key, value in arrays.items()}) if whole else arrays

        return _called(data), of_client
    raise ConfigError(
        f"data: found {_kind_of(data)}; give a name, a mapping of arrays (x_train, y_train, ...), a pair (x, y), four "
        "arrays (x_train, y_train, x_test, y_test), or a function (partition, clients, seed) that returns the mapping "
        "of a client"
    )


def _kind_of(value: Any) -> str:
    """Its type, with its length where it is a sequence."""
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _takes_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function has to be given something, or can be."""
    parameters = signature(function).parameters.values()
    return any(each.kind is not Parameter.KEYWORD_ONLY and each.default is Parameter.empty for each in parameters)


def _called(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else name
