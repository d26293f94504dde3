"""Functions of the user's own, named `module:function` in the settings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import extract_tb

from dqnfed_flwr.errors import DQNFedError


def imported(name: str, key: str, error: type[DQNFedError]) -> Callable[..., object]:
    """The function or class called `name`; arguments and errors are those of `call_function`."""
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as cause:  # whatever the module does when it is imported
        raise error(
            f"{key}: {name!r} names a function, but module {module_name!r} cannot be imported ({_words(cause)}); "
            "put its file next to that of the settings; nodes need it installed, or its folder on PYTHONPATH"
        ) from cause
    function = getattr(module, function_name, None)
    if not callable(function):
        raise error(f"{key}: module {module_name!r} has no function {function_name!r}; write module:function")
    return function  # type: ignore[no-any-return]


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
        raise error(f"{key}: {name} raised {_words(cause)}{_place(function, cause)}") from cause


def _words(cause: Exception) -> str:
    """Type and text of an error, in one line."""
    return " ".join(f"{type(cause).__name__}: {cause}".split())


def _place(function: Callable[..., object], cause: Exception) -> str:
    """The line of the user's file in which the call went wrong; for a call that does not fit, the function itself."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    lines = [frame.lineno for frame in extract_tb(cause.__traceback__) if frame.filename == code.co_filename]
    return f" ({Path(code.co_filename).name}, line {lines[-1] if lines else code.co_firstlineno})"
