"""The list protocol of Flower's NumPyClient: tasks as configs of scalars, replies as arrays and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from flwr.common import Scalar as Metric

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import ClientReply, ClientTask

HAS_STEP = "has-step"
_NAMES = {field.name.replace("_", "-"): field for field in fields(ClientTask) if field.name != "directives"}
_DIRECTIVE, _EXTRA = "directive.", "extra."
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "bool": (bool,), "float": (int, float)}


def write_task(task: ClientTask, *, has_step: bool) -> dict[str, Metric]:
    """The fields of `task` in kebab-case, and whether a step comes with the model."""
    values = asdict(task)
    directives = {_DIRECTIVE + name: value for name, value in task.directives.items()}
    return {key: values[field.name] for key, field in _NAMES.items()} | directives | {HAS_STEP: has_step}


def read_task(config: Mapping[str, Any]) -> tuple[ClientTask, bool]:
    """Inverse of `write_task`; absent keys take their default, keys of others are left alone.

    Raises
    ------
    ConfigError
        If `exchange` or `round` is missing, or a value is of the wrong type.
    """
    values: dict[str, Any] = {}
    for key, field in _NAMES.items():
        if key in config:
            kind = _KINDS[str(field.type)]
            value = config[key]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind != (bool,)):
                raise ConfigError(f"{key}: found {value!r}; the task needs {field.type}")
            values[field.name] = value
        elif key in ("exchange", "round"):
            raise ConfigError(f"{key}: missing from the task; send at least exchange and round")
    told = {key: value for key, value in config.items() if key.startswith(_DIRECTIVE)}
    if wrong := [key for key, value in told.items() if not isinstance(value, (int, float))]:
        raise ConfigError(f"{wrong[0]}: found {told[wrong[0]]!r}; a directive is a number")
    values["directives"] = {key.removeprefix(_DIRECTIVE): float(value) for key, value in told.items()}
    return ClientTask(**values), bool(config.get(HAS_STEP, False))


def metrics_of(reply: ClientReply) -> dict[str, Metric]:
    """The figures of a reply; those that the task did not ask for are absent."""
    metrics: dict[str, Metric] = {"seconds": reply.seconds}
    if reply.row is not None:
        metrics |= {"loss": reply.loss, "rate": reply.rate}
        metrics |= {"pairs-kept": reply.pairs_kept, "pairs-rejected": reply.pairs_rejected}
        metrics |= {_EXTRA + name: value for name, value in reply.figures.items()}
    if reply.probe is not None:
        probe = asdict(reply.probe)
        metrics |= {f"probe-loss.{rung}": loss for rung, loss in enumerate(probe.pop("losses"))}
        metrics |= {f"probe-{key.replace('_', '-')}": value for key, value in probe.items() if value is not None}
    for part, counts in (("test", reply.test), ("validation", reply.validation)):
        if counts is not None:
            metrics |= {f"{part}-{key}": value for key, value in asdict(counts).items()}
    return metrics
