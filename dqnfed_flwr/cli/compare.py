"""`dqnfed compare`: several methods, several seeds, one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import (
    Config,
    DryRunOption,
    Engine,
    EngineOption,
    Interrupted,
    Jobs,
    JsonPath,
    LeftOut,
    LineOption,
    OverridesForAll,
    Stalled,
    Strict,
    command_given,
    line_of,
    reported,
    show_files,
    tried,
    write_json,
)
from dqnfed_flwr.errors import ConfigError, DataError, ModelError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.compare.call import Compared
    from dqnfed_flwr.compare.execute import CarryOut, How
    from dqnfed_flwr.compare.plan import Job, Plan
    from dqnfed_flwr.compare.results import Comparison
    from dqnfed_flwr.compare.row_specs import RowSpec
    from dqnfed_flwr.engine.dry_run import Line


class Select(StrEnum):
    """What a grid chooses by."""

    MEAN = "mean"
    WORST10 = "worst10"


RayAddress = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        show_default=False,
        help="Carry out the runs on a running Ray cluster: auto, HOST:PORT or ray://HOST:PORT.",
    ),
]
CpusPerRun = Annotated[
    float, typer.Option(metavar="N", show_default=False, help="Cores that a run takes of the cluster; 1 by default.")
]
GpusPerRun = Annotated[
    float,
    typer.Option(metavar="N", show_default=False, help="GPUs that a run takes, such as 0.25; 0 by default."),
]


@reported
def compare(
    config: Config,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Methods or presets, each with settings of its own behind @ where it has any; or all.",
        ),
    ] = "dqn-fed,fedavg",
    seeds: Annotated[str, typer.Option(metavar="0,1,...", help="One run of every method for each seed.")] = "0,1,2",
    jobs: Jobs = None,
    grids: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=V1,V2", help="Choose a setting by validation accuracy; repeatable."),
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
    overrides: OverridesForAll = None,
    json_path: JsonPath = None,
    engine: EngineOption = Engine.IN_PROCESS,
    ray: RayAddress = "",
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: GpusPerRun = 0.0,
    dry: DryRunOption = False,
    line: LineOption = "",
    strict: Strict = False,
) -> None:
    """Compare methods on the same clients over several seeds.

    CONFIG is a shipped experiment, such as digits, or a YAML file of your own; its method is ignored. The same command
    again goes on where it was interrupted, and runs nothing twice. docs/compare.md says more.

    \b
    Examples:
      dqnfed compare digits
      dqnfed compare digits --methods all --seeds 0,1,2 --set rounds=20
      dqnfed compare digits --methods dqn-fed,paper,paper-safeguarded,fedavg
      dqnfed compare mine.yaml --methods dqn-fed,dqn-fed@dqn-fed.form=one-sided,fedavg
      dqnfed compare mine.yaml --methods fedavg,q-ffl --grid local.lr=0.03,0.1,0.3 --grid-rounds 20
      dqnfed compare mine.yaml --last 5 --output runs/mine --jobs 4
      dqnfed compare mine.yaml --output /shared/mine --ray auto --gpus-per-run 0.25

    Exit status: 0 some run of every row ended, 1 all runs of some row failed, 2 the settings are at fault, 3 --strict
    found clients left out, 5 a run stalled: its model did not move any more, or never did, 130 interrupted. The tables
    are written with 0, 1, 3 and 5.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import flat_config, set_keys
    from dqnfed_flwr.compare.execute import How
    from dqnfed_flwr.compare.plan import make_plan
    from dqnfed_flwr.compare.results import reference_of
    from dqnfed_flwr.compare.row_specs import check_overrides

    elsewhere = carry_out_of(ray, cpus_per_run, gpus_per_run)
    how = How(command_given(), jobs, elsewhere, engine.value, select=select.value, last=last)
    overrides, grids, on_line = overrides or [], grids or [], line_of(line, dry=dry)
    check_overrides(set_keys(overrides))
    if not grids and (grid_rounds is not None or grid_seed is not None):
        raise ConfigError("--grid-rounds and --grid-seed say how --grid is searched; give --grid KEY=V1,V2 too")
    console = Console(stderr=json_path == "-")
    directory = output.expanduser().resolve()
    with nullcontext() if dry else _taken(json_path, directory):
        flat = flat_config(config, overrides)
        plan = make_plan(flat, methods, seeds, directory, grids, grid_rounds, grid_seed)
        against = reference_of(plan, reference)
        possible = plan.possible()
        _tell_of_plan(console, plan, possible, overrides)
        if dry:
            _show_dry(console, plan, how, on_line)
            return
        _tell_of_models(console, possible)
        compared = carry_out(plan, console, against, how)
        _show(console, compared)
        if json_path:
            write_json(compared.figures, json_path)
    _conclude(compared.comparison, strict=strict)


def carry_out_of(address: str, cpus: float, gpus: float) -> CarryOut | None:
    """What carries out runs on a Ray cluster; None where none is asked for.

    Raises
    ------
    ConfigError
        If a run cannot ask for so much, or asks without a cluster.
    """
    from dqnfed_flwr.compare.on_ray import RayCluster, carry_out_on_ray, check_shares

    if not address:
        if (cpus, gpus) != (1.0, 0.0):
            raise ConfigError("--cpus-per-run and --gpus-per-run are shares of a cluster; give --ray ADDRESS too")
        return None
    check_shares(cpus, gpus)
    return partial(carry_out_on_ray, cluster=RayCluster(address, cpus, gpus))


@contextmanager
def _taken(json_path: str | None, directory: Path) -> Iterator[None]:
    """The file and the folder of the results, tried and kept from others."""
    from dqnfed_flwr.engine.run_folder import directory_lock

    with tried(json_path), directory_lock(directory):
        yield


def carry_out(plan: Plan, console: Console, reference: RowSpec | None, how: How) -> Compared:
    """Carry out the runs of a plan, and show how they go on; an interrupt says how to go on."""
    from dqnfed_flwr.compare.call import carried_out
    from dqnfed_flwr.report.progress import CompareProgress

    try:
        with CompareProgress(console, plan.most_runs) as progress:
            return carried_out(plan, reference, progress, how)
    except KeyboardInterrupt:
        raise Interrupted(f"finished runs are kept; go on with: {how.command}") from None


def _show_dry(console: Console, plan: Plan, how: How, line: Line | None) -> None:
    """What `--dry-run` shows; `ConfigError` if data or model of a row are at fault."""
    from dqnfed_flwr.cli.run import measured
    from dqnfed_flwr.report.table import comparison_tables

    found = [measured(plan.final(spec, spec.points[0])[0].settings) for spec in plan.specs]
    for table in comparison_tables(plan, found, min(how.workers(plan.most_runs), plan.most_runs), line):
        console.print(table)


def _tell_of_plan(console: Console, plan: Plan, jobs: Sequence[Job], overrides: Sequence[str]) -> None:
    """Say which methods are left out, and which settings none of the possible runs `jobs` reads."""
    from dqnfed_flwr.cli.overrides import set_keys, tell_unread, tell_unread_of_rows

    for method, reason in plan.skipped.items():
        console.print(f"{method} is left out: {reason}", soft_wrap=True, markup=False, highlight=False)
    tell_unread(set_keys(overrides), jobs)
    tell_unread_of_rows(jobs)


def _tell_of_models(console: Console, jobs: Iterable[Job]) -> None:
    """Say what is worth knowing of the user's own models; what is wrong with one, its runs say themselves."""
    from dqnfed_flwr.engine.start import form_here, notes_on_model

    told: dict[str, None] = {}
    own = {(job.settings.model, job.spec.method): job.settings for job in jobs if ":" in job.settings.model}
    for settings in own.values():
        with suppress(DataError, ModelError):
            told |= dict.fromkeys(notes_on_model(settings, form_here(settings)))
    for note in told:
        console.print(note, soft_wrap=True, markup=False, highlight=False)


def _conclude(comparison: Comparison, *, strict: bool) -> None:
    """`RunError` if every run of a row failed, `Stalled` if one stalled.

    `LeftOut` if it is to be `strict` and clients had no part in most rounds.
    """
    from dqnfed_flwr.compare.notes import mostly_left_out

    if failed := [row.label for row in comparison.rows if not row.good]:
        raise RunError(f"{', '.join(failed)}: every run failed; the reasons are below the table")
    if stalled := [record.job.name for row in comparison.rows for record in row.good if record.stalled]:
        raise Stalled(f"{len(stalled)} run{'s' * (len(stalled) > 1)} stalled, see the tables: {', '.join(stalled)}")
    if strict and (words := mostly_left_out(comparison)):
        raise LeftOut(f"{len(words)} run{'s' if len(words) > 1 else ''} had clients without a part in most rounds")


def _show(console: Console, compared: Compared) -> None:
    """Print the tables, draw the plots, and say where all files lie."""
    from dqnfed_flwr.compare.tables import tables
    from dqnfed_flwr.report.comparison_plots import plot_comparison
    from dqnfed_flwr.report.table import print_tables

    comparison, files = compared.comparison, compared.files
    print_tables(console, tables(comparison))
    try:
        files += plot_comparison(comparison, comparison.plan.directory)
    except RunError as error:
        console.print(f"no plots: {error}", markup=False, soft_wrap=True)
    show_files(console, files)
