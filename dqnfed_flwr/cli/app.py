"""The command `dqnfed`. What commands need is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from dqnfed_flwr.cli import data, deploy
from dqnfed_flwr.cli.audit import audit
from dqnfed_flwr.cli.command import PlainTyper
from dqnfed_flwr.cli.compare import compare
from dqnfed_flwr.cli.demo import demo
from dqnfed_flwr.cli.monitoring import dashboard, exporter
from dqnfed_flwr.cli.new import new
from dqnfed_flwr.cli.remote import logs, runs, stop, submit
from dqnfed_flwr.cli.reproduce import report, reproduce
from dqnfed_flwr.cli.run import export, run
from dqnfed_flwr.cli.settings import settings

app = PlainTyper("dqnfed")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from dqnfed_flwr.version import package_version

        typer.echo(f"dqnfed {package_version()}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback()
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
      dqnfed settings             every setting, its default and what it means
    """  # noqa: D301  # \b keeps the lines of a help text apart


COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, compare, demo, new, settings, reproduce, report, audit, export),
    *(submit, runs, logs, stop, exporter, dashboard),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
