"""How a command fails: the reason on stderr and an exit status, no traceback for what a user can cause."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import NoReturn, ParamSpec

import typer

from dqnfed_flwr.errors import ConfigError, DQNFedError

FAILED, MISUSED, ENDED_EARLY, INTERRUPTED = 1, 2, 4, 130

Parameters = ParamSpec("Parameters")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; the text says how to go on."""


class EndedEarly(Exception):  # the run did not fail
    """A run came to an end before its rounds were done; the text says why. Its results are written."""


def reported(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that errors of this package end it with a message and a status."""

    @wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except DQNFedError as error:
            typer.echo(f"dqnfed: {error}", err=True)
            raise typer.Exit(MISUSED if isinstance(error, ConfigError) else FAILED) from None
        except EndedEarly as end:
            typer.echo(f"dqnfed: {end}", err=True)
            raise typer.Exit(ENDED_EARLY) from None
        except KeyboardInterrupt as interrupt:
            typer.echo(f"\ndqnfed: interrupted{f'; {interrupt}' if str(interrupt) else ''}", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return wrapper


def ended_whole(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that SIGTERM and SIGHUP end the program that it waits for, too, with a status of 128 and more.

    A signal that is ignored, as SIGHUP is below `nohup`, stays so.
    """

    @wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
        for number in taken:
            signal.signal(number, _leave)
        try:
            command(*args, **kwargs)
        finally:
            for number in taken:
                signal.signal(number, signal.SIG_DFL)

    return wrapper


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
