"""What is the user's own: objects given from Python, and functions and classes named `module:function`.

A setting holds the name `object:NAME` of an object in place of a name: a task, data, a model. The object itself lives
in this process alone. Another one, such as a node or a later session that resumes the run, must be given it again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import unwrap
from itertools import count
from pathlib import Path
from sysconfig import get_paths
from textwrap import shorten
from traceback import extract_tb
from typing import Any

from dqnfed_flwr.config.combinations import OBJECT
from dqnfed_flwr.errors import DQNFedError

_PACKAGE = Path(__file__).parents[1]
_STDLIB = Path(get_paths()["stdlib"])
_LONGEST = 500
_TO_BE_FOUND = "put its file next to that of the settings; nodes need it installed, or its folder on PYTHONPATH"
_TO_BE_MENDED = "its file was found: see to what it does, and what it imports, when it is loaded"
"""Letters of what an error of the user's code says."""
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
    there = _HELD.get((key, name.removeprefix(OBJECT)))
    return there.number if there and is_object(name) else 0


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


def imported(name: str, key: str, error: type[DQNFedError]) -> Callable[..., object]:
    """The function or class called `name`; arguments and errors are those of `call_function`."""
    if is_object(name):
        return held_or_raise(key, name, error)  # type: ignore[no-any-return]
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as cause:  # whatever the module does when it is imported
        missing = isinstance(cause, ModuleNotFoundError) and f"{module_name}.".startswith(f"{cause.name}.")
        raise error(
            f"{key}: {name!r} names a function or class, but module {module_name!r} cannot be imported "
            f"({_words(cause)}); {_TO_BE_FOUND if missing else _TO_BE_MENDED}"
        ) from cause
    function = getattr(module, function_name, None)
    if not callable(function):
        names = sorted(each for each, value in vars(module).items() if _own(value, module_name))
        raise error(
            f"{key}: module {module_name!r} has no {function_name!r}; its functions and classes are: {_listed(names)}"
        )
    return function  # type: ignore[no-any-return]


def _listed(names: Sequence[str]) -> str:
    return shorten(", ".join(names), _LONGEST, placeholder=" ...") or "none"


def _own(value: object, module_name: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module_name


def call_function(name: str, key: str, error: type[DQNFedError], *arguments: object) -> object:
    """Import the function called `name`, which the setting `key` names, and call it.

    It raises `error`, in one line: that the module cannot be imported or has no such function, or what the function
    raised, and where. Errors of this package stay as they are.
    """
    function = imported(name, key, error)
    try:
        return function(*arguments)
    except DQNFedError:
        raise
    except Exception as cause:  # whatever a user's function does
        raise error(f"{key}: {name} raised {_words(cause)}{_line(cause) or _beginning(function)}") from cause


def told(cause: Exception) -> str:
    """Type and text of what code of the user's raised, in one line, and the line of his file where it went wrong."""
    return _words(cause)[:_LONGEST] + _line(cause)


def _line(cause: Exception) -> str:
    """The last line on the way to an error that lies in no library; empty where there is none."""
    own = [frame for frame in extract_tb(cause.__traceback__) if _is_own(frame.filename)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _is_own(file: str) -> bool:
    """Whether a file of code is neither ours nor that of an installed library."""
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts) or file.startswith("<")
    return not installed and _PACKAGE not in path.parents and _STDLIB not in path.parents


def _words(cause: Exception) -> str:
    """Type and text of an error, in one line."""
    return " ".join(f"{type(cause).__name__}: {cause}".split())


def _beginning(function: Callable[..., object]) -> str:
    """Where a function begins, for a call that does not fit it."""
    code = getattr(unwrap(function), "__code__", None)
    return "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
