"""What all commands share: help, options, failures without a traceback, files, how a command is given again."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup

from dqnfed_flwr.errors import ConfigError, DQNFedError, writing

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.engine.dry_run import Line

FAILED, MISUSED, LEFT_OUT, ENDED_EARLY, STALLED, INTERRUPTED = 1, 2, 3, 4, 5, 130
Function = TypeVar("Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")
Config = Annotated[str, typer.Argument(hidden=True)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting; repeatable."),
]
OverridesForAll = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting for all; repeatable."),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="End with 3 if a client had no part in most of the rounds in which it was asked."),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Build model and data, show sizes, bytes and seconds of a round, and stop."),
]
LineOption = Annotated[
    str,
    typer.Option(
        "--line",
        metavar="RATE[/UP]",
        show_default=False,
        help="With --dry-run: say how long the messages of a round take on a client's line, such as 10Mbit, or "
        "50Mbit/10Mbit for down and up.",
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at a time; by default one a core.")
]


class Engine(StrEnum):
    """Where the clients run."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; the text says how to go on."""


class EndedEarly(Exception):  # the run did not fail
    """A run came to an end before its rounds were done; the text says why. Its results are written."""


class Stalled(Exception):  # the run did not fail
    """The model of a run stands still; the text has the likeliest causes. Its results are written."""


class LeftOut(Exception):  # the run did not fail
    """Clients had no part in most rounds in which they were asked, and that was asked to be told by the status."""


EngineOption = Annotated[
    Engine,
    typer.Option(show_default=False, help="In this package's own processes, or under Flower's simulation engine."),
]
JsonPath = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write settings and figures as JSON; - is stdout.")
]


class PlainCommand(TyperCommand):
    """A command."""

    def get_help(self, ctx: click.Context) -> str:
        """Its help."""
        return _unescaped(super().get_help(ctx))


class PlainGroup(TyperGroup):
    """A group of commands. What a mistyped one might mean, click says; typer would say it once more."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.suggest_commands = False

    def get_help(self, ctx: click.Context) -> str:
        """Its help."""
        return _unescaped(super().get_help(ctx))


def _unescaped(text: str) -> str:
    """Help without the backslashes that typer puts before brackets for rich, which is not asked to show it."""
    return text.replace("\\[", "[")


class PlainTyper(typer.Typer):
    """A group of plain commands, with the looks that all commands of the package share."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(
            name=name,
            cls=PlainGroup,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )

    def command(self, name: str | None = None, **attributes: Any) -> Callable[[Function], Function]:
        """Make a command of a function."""
        return super().command(name, cls=PlainCommand, **attributes)


def reported(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that errors of this package end it with a message and a status."""

    @wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (DQNFedError, EndedEarly, LeftOut, Stalled) as error:
            typer.echo(f"dqnfed: {error}", err=True)
            kinds = {EndedEarly: ENDED_EARLY, Stalled: STALLED, LeftOut: LEFT_OUT, ConfigError: MISUSED}
            raise typer.Exit(next((s for kind, s in kinds.items() if isinstance(error, kind)), FAILED)) from None
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


def command_given(*more: str, without: Collection[str] = ()) -> str:
    """The command that goes on in this process, for a shell: as it was given, `without` some words, and with `more`."""
    given: tuple[str, ...] = click.get_current_context().find_root().obj
    return shlex.join(["dqnfed", *(word for word in given if word not in without), *more])


def line_of(text: str, *, dry: bool) -> Line | None:
    """The line of `--line`, None where it is not given; `ConfigError` if it is unfit, or the run is not a `dry` one."""
    if not text:
        return None
    from dqnfed_flwr.engine.dry_run import Line

    if not dry:
        raise ConfigError(
            f"--line: found {text!r} without --dry-run; it says how long messages take, give --dry-run too"
        )
    return Line.of(text)


@contextmanager
def tried(json_path: str | None) -> Iterator[None]:
    """Open the file of --json for writing before the work costs time, and remove it if nothing was written."""
    if not json_path or json_path == "-":
        yield
        return
    path = Path(json_path)
    new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json: cannot write to {path} ({error.strerror}); name another file") from None
    try:
        yield
    finally:
        if new and path.is_file() and not path.stat().st_size:
            path.unlink()


def write_json(figures: Mapping[str, object], path: str) -> None:
    """Write figures as JSON to a file, or to stdout for `-`."""
    text = json.dumps(figures, indent=2)
    if path == "-":
        typer.echo(text)
        return
    with writing(Path(path)):
        Path(path).write_text(text + "\n", "utf-8")


def show_files(console: Console, files: Sequence[Path]) -> None:
    """Say where results lie."""
    for file in files:
        if file.exists():
            console.print(str(file), soft_wrap=True, markup=False, highlight=False)
