"""Objects of the user's on their way to the worker processes of a comparison."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dqnfed_flwr.config.combinations import OBJECT
from dqnfed_flwr.data.objects import holding
from dqnfed_flwr.engine.given import objects_of

WRITER = "cloudpickle"
"""The package that also writes classes and functions of a notebook, where it is installed."""


@dataclass(frozen=True, slots=True)
class Package:
    """What was given, written down, and how the settings name each of them."""

    content: bytes
    names: Mapping[str, str]


def packed(given: Mapping[str, Any], names: Mapping[str, str]) -> Package | None:
    """What was given for `task`, `data` and `model`, for other processes of this machine; None where it cannot be.

    Without `WRITER`, nothing of a notebook or of the script that was started can be written.
    """
    writer = import_module(WRITER) if find_spec(WRITER) else pickle
    if writer is pickle and any(_home(value) == "__main__" for value in given.values()):
        return None
    try:
        return Package(writer.dumps(dict(given)), dict(names))
    except Exception:  # whatever an object says to being written
        return None


@contextmanager
def held_as(package: Package) -> Iterator[None]:
    """Hold what was packed in this process, under the names that the settings have."""
    _, objects = objects_of(**pickle.loads(package.content))
    wished = {key: (package.names[key].removeprefix(OBJECT), value) for key, (_, value) in objects.items()}
    with holding(wished):
        yield


def _home(value: Any) -> str:
    return str(getattr(value, "__module__", None) or type(value).__module__)
