"""Functions and classes of the user's own, named `module:function` in the settings, or given as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from sysconfig import get_paths
from textwrap import shorten
from traceback import extract_tb

from dqnfed_flwr.data.objects import held_or_raise, is_object
from dqnfed_flwr.errors import DQNFedError

_PACKAGE = Path(__file__).parents[1]
_STDLIB = Path(get_paths()["stdlib"])
_LONGEST = 500
"""Letters of what an error of the user's code says."""


def imported(name: str, key: str, error: type[DQNFedError]) -> Callable[..., object]:
    """The function or class called `name`; arguments and errors are those of `call_function`."""
    if is_object(name):
        return held_or_raise(key, name, error)  # type: ignore[no-any-return]
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as cause:  # whatever the module does when it is imported
        raise error(
            f"{key}: {name!r} names a function or class, but module {module_name!r} cannot be imported "
            f"({_words(cause)}); put its file next to that of the settings; nodes need it installed, or its folder on "
            "PYTHONPATH"
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
    """Import the function called `name` and call it.

    Parameters
    ----------
    name : str
        `module:function`; the module must be importable where the client or server runs.
    key : str
        The setting that named it, for the error text.
    error : type[DQNFedError]
        What to raise.
    arguments
        Of the call.

    Raises
    ------
    DQNFedError
        Of the type `error`, in one line: that the module cannot be imported or has no such function, or what the
        function raised, and where. Errors of this package stay as they are.
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
