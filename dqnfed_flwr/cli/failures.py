"""How a command fails: the reason on stderr and an exit status, no traceback for what a user can cause."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from dqnfed_flwr.errors import ConfigError, DQNFedError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

Parameters = ParamSpec("Parameters")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; the text says how to go on."""


def reported(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that errors of this package end it with a message and a status."""

    @wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except DQNFedError as error:
            typer.echo(f"dqnfed: {error}", err=True)
            raise typer.Exit(MISUSED if isinstance(error, ConfigError) else FAILED) from None
        except KeyboardInterrupt as interrupt:
            typer.echo(f"\ndqnfed: interrupted{f'; {interrupt}' if str(interrupt) else ''}", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return wrapper
