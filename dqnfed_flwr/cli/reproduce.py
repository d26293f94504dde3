"""`dqnfed reproduce`: the experiments of a published table, ours and the paper's; `report`: a page about them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import Jobs, OverridesForAll, command_given, reported, show_files
from dqnfed_flwr.cli.compare import CpusPerRun, GpusPerRun, RayAddress, carry_out, carry_out_of
from dqnfed_flwr.errors import ConfigError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.compare.execute import How
    from dqnfed_flwr.compare.plan import Plan
    from dqnfed_flwr.config import Scalar
    from dqnfed_flwr.reproduce.manifests import Reproduction
    from dqnfed_flwr.reproduce.parts import ReproduceOptions
    from dqnfed_flwr.reproduce.schema import Manifest, Part

PIPE = 100
"""Columns of a list where the terminal does not say how many there are."""
RECORD_SECONDS = 10.0
"""How long to wait for another part that is written into the record just now."""


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
    jobs: Jobs = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/reproduce/NAME by default."),
    ] = None,
    overrides: OverridesForAll = None,
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rounds, in place of the manifest's.")] = None,
    ray: RayAddress = "",
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and how many runs, and stop.")
    ] = False,
) -> None:
    """Run the experiments of a published table, and print our figures and the paper's.

    NAME is a table or figure from --list, or a manifest of your own. The same command again goes on where it was
    interrupted. A label at each table says what is smaller than in the paper. docs/reproduce.md says more.

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
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import set_keys, tell_unread
    from dqnfed_flwr.compare.execute import How
    from dqnfed_flwr.reproduce.manifests import Reproduction, load_manifest
    from dqnfed_flwr.reproduce.parts import ReproduceOptions, plan_part

    if listed:
        _list_manifests()
        return
    if not name:
        raise ConfigError("reproduce: name a table or figure; dqnfed reproduce --list shows them")
    elsewhere = carry_out_of(ray, cpus_per_run, gpus_per_run)
    console, manifest = Console(), load_manifest(name)
    possible = _possible_parts(console, name, manifest, part)
    directory = (output or Path("runs/reproduce") / Path(name).stem).expanduser().resolve()
    wish = ReproduceOptions(reduced, methods, seeds, _given(overrides or [], rounds))
    plans = {key: plan_part(one, manifest.seeds, wish, directory / key) for key, one in possible.items()}
    tell_unread(set_keys(overrides or []), (job for plan in plans.values() for job in plan.possible()))
    if dry_run:
        _show_plans(console, manifest, possible, plans, wish)
        return
    failed = []
    for key, plan in plans.items():
        how = How(command_given(*([] if part else ["--part", key])), jobs, elsewhere)
        if not _run_part(console, Reproduction(name, manifest, {key: how.command}), key, plan, how):
            failed.append(key)
    from dqnfed_flwr.report.page import write_report  # slow to load; --list and --dry-run do not need it

    show_files(console, write_report(directory, None))
    if failed:
        raise RunError(f"{', '.join(failed)}: every run failed; the reasons are below the table")


def _given(overrides: list[str], rounds: int | None) -> dict[str, Scalar]:
    """Settings for all runs, by `--set` and `--rounds`."""
    from dqnfed_flwr.cli.overrides import overridden
    from dqnfed_flwr.compare.row_specs import check_overrides
    from dqnfed_flwr.data.own_folder import absolute

    given = absolute(overridden({}, overrides), [Path.cwd()])
    check_overrides(given)
    if rounds is not None:
        if "rounds" in given:
            raise ConfigError("--rounds and --set rounds: give one of the two")
        given["rounds"] = rounds
    return given


def _possible_parts(console: Console, name: str, manifest: Manifest, part: str) -> dict[str, Part]:
    """The parts that can be run here, after a word about what each needs."""
    parts = {part: manifest.part(part)} if part else manifest.parts
    for key, one in parts.items():
        for need in one.needs:
            kind = "needs" if one.runs else "cannot be run here, for it needs"
            console.print(f"{key} {kind}: {need}", soft_wrap=True, markup=False, highlight=False)
    possible = {key: one for key, one in parts.items() if one.runs}
    if not possible:
        raise ConfigError(f"{name}: nothing here can be run; see what it needs above, and docs/reproduce.md")
    return possible


def _list_manifests() -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dqnfed_flwr.reproduce.manifests import load_manifest, manifest_names

    table = Table(title="Published tables and figures", title_justify="left")
    for heading in ("name", "what", "data", "needs", "published methods"):
        table.add_column(heading, no_wrap=heading == "name")
    for name in manifest_names():
        manifest = load_manifest(name)
        parts = list(manifest.parts.values())
        data = dict.fromkeys(str(part.own.get("data", "digits")) for part in parts)
        needs = dict.fromkeys(need for part in parts for need in part.needs)
        methods = dict.fromkeys(row.paper.partition("(")[0] for part in parts for row in part.rows if row.paper)
        lists = [", ".join(words) or "–" for words in (data, needs, methods)]
        table.add_row(*(Text(text) for text in (name, manifest.title, *lists)))
    console = Console()
    (console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE)).print(table)


def _run_part(console: Console, record: Reproduction, key: str, plan: Plan, how: How) -> bool:
    """Carry a part out and show its tables; whether any run came to its end."""
    from dqnfed_flwr.compare.results import reference_of
    from dqnfed_flwr.compare.tables import difference_table
    from dqnfed_flwr.engine.run_folder import directory_lock
    from dqnfed_flwr.report.table import print_tables
    from dqnfed_flwr.reproduce.manifests import write_reproduction
    from dqnfed_flwr.reproduce.tables import paper_table

    part, wanted = record.manifest.part(key), record.manifest.reference
    how = replace(how, select=part.search.select, last=part.last)
    with directory_lock(plan.directory):
        with directory_lock(plan.directory.parent, RECORD_SECONDS):
            write_reproduction(plan.directory.parent, record)
        present = any(spec.method == wanted for spec in plan.specs)
        comparison = carry_out(plan, console, reference_of(plan, wanted if present else None), how).comparison
    shown = [paper_table(part, comparison), difference_table(comparison)]
    print_tables(console, [table for table in shown if table])
    return any(row.good for row in comparison.rows)


def _show_plans(
    console: Console, manifest: Manifest, parts: dict[str, Part], plans: dict[str, Plan], wanted: ReproduceOptions
) -> None:
    """What would run."""
    from rich.table import Table
    from rich.text import Text

    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.report.table import plan_lines
    from dqnfed_flwr.reproduce.parts import config_of

    console.print(f"{manifest.title} ({manifest.source})", soft_wrap=True, markup=False, highlight=False)
    for key, plan in plans.items():
        table = Table(title=Text(f"{key}: {parts[key].title}"), title_justify="left", show_header=False)
        rounds = config_of(parts[key], wanted).get("rounds", Settings().rounds)
        lines = {"scale": plan.note or "as in the manifest", **plan_lines(plan, int(rounds))}
        for name, text in lines.items():
            table.add_row(Text(name), Text(text))
        console.print(table)
    for heading, texts in (("left open by the paper", manifest.open), ("chosen here", manifest.chosen)):
        for text in texts:
            console.print(f"{heading}: {text}", soft_wrap=True, markup=False, highlight=False)


@reported
def report(
    runs: Annotated[Path, typer.Argument(hidden=True)],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The page; report.html in RUNS by default. The Markdown lies next to it, as .md.",
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
    from rich.console import Console

    from dqnfed_flwr.report.page import write_report

    show_files(Console(), write_report(runs.expanduser().resolve(), output))
