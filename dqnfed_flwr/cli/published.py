"""The commands about published experiments: `reproduce` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli.failures import reported
from dqnfed_flwr.errors import ConfigError


def add_commands(app: typer.Typer) -> None:
    """Put the commands to the others."""
    app.command()(reproduce)
    app.command()(report)


@reported
def reproduce(
    name: Annotated[str, typer.Argument(hidden=True)] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the tables and figures, and what each needs.")] = False,
    part: Annotated[str, typer.Option(metavar="PART", help="One of its setups; by default all.")] = "",
    reduced: Annotated[
        bool, typer.Option("--reduced", help="The form for two cores: fewer rounds, clients, smaller network.")
    ] = False,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Rows, by the paper's name or ours; others are added; or all.")
    ] = "",
    seeds: Annotated[str, typer.Option(metavar="0,1,...", help="In place of those of the manifest.")] = "",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at a time; by default one a core.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/reproduce/NAME by default."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting for all; may be given again and again."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rounds, in place of the manifest's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and how many runs, and stop.")
    ] = False,
) -> None:
    """Run the experiments of a published table, and print our figures beside the paper's.

    NAME is a table or figure from --list, or a manifest of your own. The same command again goes on where it was
    interrupted. Whatever is smaller than in the paper is said wherever a figure stands. docs/reproduce.md says more.

    \b
    Examples:
      dqnfed reproduce --list
      dqnfed reproduce table1 --dry-run
      dqnfed reproduce table9
      dqnfed reproduce table1 --part setup1 --methods DQN-Fed,FedAvg --rounds 200
      dqnfed reproduce table4 --reduced --jobs 2

    Exit status: 0 some run of every part ended, 1 all runs of some part failed, 2 the settings are at fault,
    130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.reproduce import Options, list_manifests
    from dqnfed_flwr.cli.reproduce import reproduce as carry_out

    if listed:
        list_manifests()
        return
    if not name:
        raise ConfigError("reproduce: name a table or figure; dqnfed reproduce --list shows them")
    carry_out(Options(name, part, reduced, methods, seeds, jobs or 0, output, tuple(overrides or ()), rounds, dry_run))


@reported
def report(
    runs: Annotated[Path, typer.Argument(hidden=True)],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The page; report.html in RUNS by default. The Markdown lies beside it, as .md.",
        ),
    ] = None,
) -> None:
    """Write one page about a comparison, a reproduction or single runs, and the same as Markdown.

    RUNS is the folder that dqnfed reproduce, compare, demo or run wrote, or one that holds several runs of the same
    clients. The page needs no network.

    \b
    Examples:
      dqnfed report runs/reproduce/table9
      dqnfed report runs/compare --output talk.html
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.report import make_report

    make_report(runs, output)
