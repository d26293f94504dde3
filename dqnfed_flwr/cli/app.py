"""Commands and their help. What they need is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli.failures import reported

app = typer.Typer(
    name="dqnfed",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Engine(StrEnum):
    """Where the clients run."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dqnfed {version('dqnfed-flwr')}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback()
def dqnfed(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Fair federated learning with DQN-Fed on Flower.

    In every round DQN-Fed takes a step along which the training loss of every client falls, so nobody pays for the
    others' progress.

    \b
    Start here:
      dqnfed demo                 ten clients, handwritten digits: DQN-Fed beside FedAvg
      dqnfed run digits           the first of the two alone
      dqnfed run mine.yaml        your own settings
      dqnfed settings             every setting, its default and what it means
    """  # noqa: D301  # \b keeps the lines of a help text apart


@app.command()
@reported
def run(
    config: Annotated[str, typer.Argument(hidden=True)],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting; may be given again and again."),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            show_default=False,
            help="Run all clients in this process (the default), or under Flower's simulation engine.",
        ),
    ] = Engine.IN_PROCESS,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write results, event log, plot and checkpoint to this folder."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the output folder.")] = False,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write settings and figures as JSON; - is stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    """Train one federation and show how fair it came out.

    CONFIG is a shipped experiment, such as digits, or a YAML file of your own; dqnfed settings lists its keys.

    \b
    Examples:
      dqnfed run digits
      dqnfed run digits --set rounds=100 --set split.alpha=0.1
      dqnfed run digits --set method=fedavg --set local.lr=0.1
      dqnfed run mine.yaml --output runs/mine
      dqnfed run mine.yaml --output runs/mine --resume
      dqnfed run digits --quiet --json - | python -m json.tool

    Exit status: 0 the run ended, 1 it failed, 2 the settings are at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.single import run_one

    run_one(config, overrides or [], engine.value, output, resume=resume, json_path=json_path, quiet=quiet)


@app.command()
@reported
def demo(
    output: Annotated[
        Path, typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/demo by default.")
    ] = Path("runs/demo"),
) -> None:
    """Train ten clients on handwritten digits with DQN-Fed and with FedAvg, side by side.

    The digits come with scikit-learn; nothing is downloaded. Takes less than a minute.
    """
    from dqnfed_flwr.cli.demo import run_demo

    run_demo(output)


@app.command()
@reported
def settings() -> None:
    """List every setting with its default and meaning."""
    from rich.console import Console
    from rich.table import Table

    from dqnfed_flwr.config import describe

    table = Table(title="Settings, for YAML files, --set and flwr run --run-config", title_justify="left")
    for heading in ("key", "default", "meaning"):
        table.add_column(heading, no_wrap=heading == "key")
    for key, default, meaning in describe():
        table.add_row(key, str(default).lower() if isinstance(default, bool) else repr(default), meaning)
    Console().print(table, markup=False)
