"""`dqnfed data`: which sets are there, what every client of a run would get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import Config, Overrides, PlainTyper, reported, show_files
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.tasks._base import Task

HISTOGRAMS, PICTURE, TARGETS = "classes.csv", "classes.png", "targets.csv"

app = PlainTyper()


@app.callback()
def data() -> None:
    """Data sets: which are there, and how a run deals them out."""


@app.command(name="list")
@reported
def list_sets() -> None:
    """List the sets known by name, and where each lies or belongs."""
    from rich.console import Console
    from rich.table import Table

    from dqnfed_flwr.data.sources import catalogue
    from dqnfed_flwr.data.store import data_root

    table = Table(title=f"Sets by name; folder {data_root()} (DQNFED_DATA)", title_justify="left")
    for heading in ("name", "present", "where, or how to get it"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for entry in catalogue():
        table.add_row(entry.name, entry.state, entry.where)
    Console().print(table, markup=False)
    typer.echo("any other: FORM:PATH, an .npz file, or module:function; docs/data.md says more")


@app.command()
@reported
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Sets, as the setting data names them.")],
) -> None:
    """Fetch or decode sets now, and say where they lie.

    \b
    Examples:
      dqnfed data fetch mnist cifar10
      dqnfed data fetch folder:/srv/cinic-10,train=train+valid

    A transfer that is cut off goes on where it was when the command is given again.

    Exit status: 0 all are there, 1 one cannot be had.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.data.sources import source_of

    for name in names:
        typer.echo(f"{name}: {source_of(name).fetch()}")


@app.command()
@reported
def describe(
    config: Config,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Write {HISTOGRAMS} and {PICTURE}, or {TARGETS}, here."),
    ] = None,
) -> None:
    """Show how many samples of each class every client of a run gets; nothing is trained.

    CONFIG is a shipped experiment, such as digits, or a YAML file of your own. Where a task has no classes, samples are
    counted and their targets summed up.

    \b
    Examples:
      dqnfed data describe digits
      dqnfed data describe digits --set split.alpha=0.1 --output runs/classes
      dqnfed data describe mine.yaml --set noise.kind=symmetric

    Exit status: 0 shown, 1 the data cannot be had or dealt out so, 2 the settings are at fault.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import read_settings
    from dqnfed_flwr.tasks import task_of

    settings = read_settings(config, overrides or [], None)
    task, console = task_of(settings), Console()
    task.source.tell(task.targets)
    if task.targets == "classes" and task.source.kind != "task":
        _describe_classes(settings, task, output, console)
    else:
        _describe_targets(settings, task, output, console)


def _describe_classes(settings: Settings, task: Task, output: Path | None, console: Console) -> None:
    """Samples of each client by class."""
    from dqnfed_flwr.data.clients import summarise
    from dqnfed_flwr.report import class_table

    clients, dealt = summarise(settings), task.source.dealt_by(settings.partition)
    title = f"{settings.data}, {dealt}, seed {settings.seed}: training samples by client and class"
    class_table.print_classes(console, clients, title)
    if clients[0].class_names:
        console.print(class_table.names_table(clients))
    _say(console, class_table.notes(clients, dealt))
    if output is not None:
        from dqnfed_flwr.report.run_plots import plot_classes

        _make(output)
        table = class_table.write_csv(clients, output / HISTOGRAMS)
        show_files(console, [table, plot_classes(clients, title, output / PICTURE)])


def _describe_targets(settings: Settings, task: Task, output: Path | None, console: Console) -> None:
    """Samples of each client, and what is known of their targets: nothing of a task with data sets of its own."""
    from dqnfed_flwr.client.parts import count_samples
    from dqnfed_flwr.data.clients import summarise_targets
    from dqnfed_flwr.report import class_table

    if task.source.kind != "task":
        clients = summarise_targets(settings, task.targets)
        whence = f"{settings.data}, {task.source.dealt_by(settings.partition)}"
    else:
        clients, whence = count_samples(settings), "data sets of the task"
    title = f"{whence}, seed {settings.seed}, task {settings.task}: samples by client, and training targets"
    class_table.print_targets(console, clients, title)
    _say(console, class_table.target_notes(clients))
    if output is not None:
        _make(output)
        show_files(console, [class_table.write_targets(clients, output / TARGETS)])


def _say(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _make(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output: {output} cannot be made ({error.strerror}); name another folder") from None
