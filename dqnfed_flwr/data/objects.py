"""Objects that the user gives from Python in place of a name: a task, data, a model.

A setting holds the name `object:NAME`; the object itself lives in this process alone. Another one, such as a node or a
later session that resumes the run, must be given it again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from dqnfed_flwr.config.combinations import OBJECT
from dqnfed_flwr.errors import DQNFedError

_HELD: dict[tuple[str, str], Held] = {}
_LOCK = threading.Lock()
_NUMBERS = count(1)


@dataclass(slots=True)
class Held:
    """An object, the running number under which it was taken in, and how many runs use it now."""

    value: Any
    number: int
    users: int = 0


def is_object(name: str) -> bool:
    """Whether a setting names an object."""
    return name.startswith(OBJECT)


@contextmanager
def holding(objects: Mapping[str, tuple[str, Any]]) -> Iterator[dict[str, str]]:
    """Take in an object for each key of settings, with the name it would like; the names that the settings hold.

    Objects stay after the run, so that its model can be exported, until others take their names. Where a run goes on
    with another object of that name, a number is added.
    """
    with _LOCK:
        taken = {key: _take(key, name, value) for key, (name, value) in objects.items()}
    try:
        yield {key: OBJECT + name for key, name in taken.items()}
    finally:
        with _LOCK:
            for key, name in taken.items():
                _HELD[key, name].users -= 1


def _take(key: str, wished: str, value: Any) -> str:
    plain = re.sub(r"[^\w-]", "", wished) or "given"
    for place in count(1):
        name = plain if place == 1 else f"{plain}-{place}"
        there = _HELD.get((key, name))
        if there is None or not there.users or there.value is value:
            if there is None or there.value is not value:
                _HELD[key, name] = there = Held(value, next(_NUMBERS))
            there.users += 1
            return name
    raise LookupError(plain)  # not reached: there is no last number


def number_of(key: str, name: str) -> int:
    """Tells an object from an earlier one of the same name; 0 where there is none."""
    there = _HELD.get((key, name.removeprefix(OBJECT))) if is_object(name) else None
    return there.number if there else 0


def held(key: str, name: str) -> Any:
    """The object that a setting names; None where this process was given none."""
    there = _HELD.get((key, name.removeprefix(OBJECT)))
    return there.value if there else None


def held_or_raise(key: str, name: str, error: type[DQNFedError]) -> Any:
    """The same; an error of that type where this process was given none."""
    found = held(key, name)
    if found is None:
        raise error(
            f"{key}: {name!r} is an object that was given to run or compare, and this process was not given it: give "
            f"it again, run(..., {key}=...), or put it into a module that is installed here and name module:name"
        )
    return found
