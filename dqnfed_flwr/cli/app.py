"""The command `dqnfed`. A command is imported when it is called, so that `--help` answers at once."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import click
import typer
from typer.main import get_command

from dqnfed_flwr.cli.command import PlainGroup, PlainTyper

COMMANDS = {
    "run": ("run", "Train one federation and show how fair it came out."),
    "compare": ("compare", "Compare methods on the same clients over several seeds."),
    "diagnose": ("diagnose", "Show what limits a run: how far each client lets its steps go."),
    "demo": ("run", "Train ten clients with DQN-Fed and with FedAvg, side by side."),
    "new": ("new", "Write a task of your own to begin with."),
    "settings": ("settings", "List every setting with its default and meaning."),
    "reproduce": ("reproduce", "Run the experiments of a published table."),
    "report": ("reproduce", "Write one page about a comparison, a reproduction or runs."),
    "audit": ("audit", "Show for every client whether the federated model is worse."),
    "export": ("run", "Write a run's model as files for others, with a card."),
    "submit": ("remote", "Start a run on a SuperLink and follow it to its end."),
    "runs": ("remote", "List the runs of a SuperLink."),
    "logs": ("remote", "Show what a run has logged."),
    "stop": ("remote", "Stop a run; its checkpoint stays."),
    "exporter": ("monitoring", "Serve the metrics of all runs to Prometheus."),
    "dashboard": ("monitoring", "Serve one live page about the runs of a directory."),
    "data": ("data", "Data sets: which are there, and how a run deals them out."),
    "deploy": ("deploy", "Set up a federation on real machines."),
}
"""For each command the file of its function, or of its group's `app`, and what it does in a line."""


class Commands(PlainGroup):
    """All commands, of which only the one that is called is imported. Its context has what was given as `obj`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: click.Command(name, help=words) for name, (_, words) in COMMANDS.items()}

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """The context of a call, before click takes `args` apart."""
        return super().make_context(info_name, args, *more, obj=tuple(args), **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called, with its options."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, imported(name) if name else None, rest


def imported(name: str) -> click.Command:
    """A command, or a group of them."""
    module = import_module(f"dqnfed_flwr.cli.{COMMANDS[name][0]}")
    place: PlainTyper | None = getattr(module, "app", None)
    if place is None:
        place = PlainTyper()
        place.command()(getattr(module, name))
    return get_command(place)


app = PlainTyper("dqnfed")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from dqnfed_flwr.version import package_version

        typer.echo(f"dqnfed {package_version()}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback(cls=Commands)
def dqnfed(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Fair federated learning with DQN-Fed on Flower.

    In every round the clients of DQN-Fed measure a step before it counts, and a step that harms one of them is not
    taken.

    \b
    Start here:
      dqnfed demo                 ten clients, handwritten digits: DQN-Fed next to FedAvg
      dqnfed run digits           the first of the two alone
      dqnfed run mine.yaml        your own settings
      dqnfed new mine             a task of your own to begin with: loss, data, model
      dqnfed compare mine.yaml    several methods and seeds side by side
      dqnfed reproduce --list     the tables of the papers, ours and theirs
      dqnfed settings             what can be set, its default and what it means
    """  # noqa: D301  # \b keeps the lines of a help text apart
