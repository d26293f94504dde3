"""Functions of the user's own, named `module:function` in the settings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dqnfed_flwr.errors import DQNFedError


def import_function(name: str, key: str, error: type[DQNFedError]) -> Callable[..., object]:
    """Import the function called `name`.

    Parameters
    ----------
    name : str
        `module:function`; the module must be importable where the client or server runs.
    key : str
        The setting that named it, for the error text.
    error : type[DQNFedError]
        What to raise.

    Raises
    ------
    DQNFedError
        Of the type `error`, if the module cannot be found or has no such function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except (ImportError, ValueError) as cause:
        raise error(
            f"{key}: {name!r} names a function, but module {module_name!r} cannot be imported ({cause}); install it "
            "on every node, or put its folder on PYTHONPATH"
        ) from cause
    function = getattr(module, function_name, None)
    if not callable(function):
        raise error(f"{key}: module {module_name!r} has no function {function_name!r}; write module:function")
    return function  # type: ignore[no-any-return]
