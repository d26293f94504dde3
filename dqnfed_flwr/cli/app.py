"""Commands and their help. What they need is imported when they run, so that `--help` answers at once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli import data, deploy, monitoring, published, remote
from dqnfed_flwr.cli.export import export
from dqnfed_flwr.cli.failures import reported
from dqnfed_flwr.cli.plain import PlainTyper

app = PlainTyper("dqnfed")


class Engine(StrEnum):
    """Where the clients run."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


class Select(StrEnum):
    """What a grid chooses by."""

    MEAN = "mean"
    WORST10 = "worst10"


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

    In every round DQN-Fed takes a step along which the training loss of every client falls, so nobody pays for the
    others' progress.

    \b
    Start here:
      dqnfed demo                 ten clients, handwritten digits: DQN-Fed beside FedAvg
      dqnfed run digits           the first of the two alone
      dqnfed run mine.yaml        your own settings
      dqnfed compare mine.yaml    several methods and seeds side by side
      dqnfed reproduce --list     the tables of the papers, ours beside theirs
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that the output folder holds.")
    ] = False,
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

    Exit status: 0 the run ended, 1 it failed, 2 settings, data, model or checkpoint are at fault, 4 it ended before its
    rounds were done, as pareto-stationary or line-search-failed (the results are written), 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.single import Options, run_one

    run_one(
        Options(
            config=config,
            overrides=overrides or [],
            engine=engine.value,
            output=output,
            resume=resume,
            overwrite=overwrite,
            json_path=json_path,
            quiet=quiet,
        )
    )


@app.command()
@reported
def compare(
    config: Annotated[str, typer.Argument(hidden=True)],
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,...", help="Methods, each with settings of its own behind @ where it has any; or all."
        ),
    ] = "dqn-fed,fedavg",
    seeds: Annotated[str, typer.Option(metavar="0,1,...", help="One run of every method for each seed.")] = "0,1,2",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at a time; by default one a core.")
    ] = None,
    grids: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", metavar="KEY=V1,V2", help="Choose a setting by validation accuracy; may be given again and again."
        ),
    ] = None,
    grid_rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="R", help="Rounds of a run of the grid; by default those of the final runs."),
    ] = None,
    grid_seed: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="Seed of the grid; by default the first.")
    ] = None,
    select: Annotated[
        Select, typer.Option(help="Choose by the mean over clients, or by the worst 10 % of them.")
    ] = Select.MEAN,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Compare the others with this one; by default dqn-fed without settings of its own."
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=1, metavar="N", help="Average the figures of the last N evaluations.")] = 1,
    output: Annotated[
        Path, typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/compare by default.")
    ] = Path("runs/compare"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting for all; may be given again and again."),
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON; - is stdout.")
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(show_default=False, help="In this package's own processes, or under Flower's simulation engine."),
    ] = Engine.IN_PROCESS,
) -> None:
    """Compare methods on the same clients over several seeds.

    CONFIG is a shipped experiment, such as digits, or a YAML file of your own; its method is ignored. The same command
    again goes on where it was interrupted, and runs nothing twice. docs/compare.md says more.

    \b
    Examples:
      dqnfed compare digits
      dqnfed compare digits --methods all --seeds 0,1,2 --set rounds=20
      dqnfed compare mine.yaml --methods dqn-fed,dqn-fed@dqn-fed.form=one-sided,fedavg
      dqnfed compare mine.yaml --methods fedavg,q-ffl --grid local.lr=0.03,0.1,0.3 --grid-rounds 20
      dqnfed compare mine.yaml --last 5 --output runs/mine --jobs 4

    Exit status: 0 some run ended, 1 all failed, 2 the settings are at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.compare import Options, run_comparison

    run_comparison(
        Options(
            config=config,
            methods=methods,
            seeds=seeds,
            output=output,
            jobs=jobs or 0,
            overrides=overrides or [],
            grids=grids or [],
            grid_rounds=grid_rounds,
            grid_seed=grid_seed,
            select=select.value,
            reference=reference,
            last=last,
            engine=engine.value,
            json_path=json_path,
        )
    )


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


published.add_commands(app)
app.command()(export)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
remote.add_commands(app)
monitoring.add_commands(app)
