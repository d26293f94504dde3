"""`dqnfed compare`: several methods, several seeds, one table."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dqnfed_flwr.cli.effects import set_keys, tell_unread, tell_unread_of_rows
from dqnfed_flwr.cli.failures import Interrupted
from dqnfed_flwr.cli.single import EngineName, flat_config, show_files, tried, write_json
from dqnfed_flwr.compare.plan import Plan, make_plan
from dqnfed_flwr.compare.record import Select
from dqnfed_flwr.compare.results import Comparison, compare_rows, reference_of
from dqnfed_flwr.compare.row_specs import check_overrides
from dqnfed_flwr.errors import ConfigError, RunError


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    config: str
    methods: str
    seeds: str
    output: Path
    jobs: int
    overrides: Sequence[str]
    grids: Sequence[str]
    grid_rounds: int | None
    grid_seed: int | None
    select: Select
    reference: str | None
    last: int
    engine: EngineName
    json_path: str | None


def run_comparison(options: Options) -> None:
    """Carry out `dqnfed compare`.

    Raises
    ------
    ConfigError
        Before anything runs.
    RunError
        If no run came to its end, or the results cannot be written.
    """
    from dqnfed_flwr.compare.execute import execute
    from dqnfed_flwr.engine.run import usable_cores
    from dqnfed_flwr.engine.run_folder import directory_lock
    from dqnfed_flwr.report.compare_progress import CompareProgress

    since = time.perf_counter()
    check_overrides(set_keys(options.overrides))
    json_path = options.json_path
    console = Console(stderr=json_path == "-")
    directory = options.output.expanduser().resolve()
    with tried(Path(json_path) if json_path and json_path != "-" else None), directory_lock(directory):
        plan = _plan(options, directory)
        reference = reference_of(plan, options.reference)
        for method, reason in plan.skipped.items():
            console.print(f"{method} is left out: {reason}", soft_wrap=True, markup=False, highlight=False)
        possible = plan.possible()
        tell_unread(set_keys(options.overrides), possible)
        tell_unread_of_rows(possible)
        try:
            with CompareProgress(console, plan.most_runs) as progress:
                rows = execute(
                    plan,
                    progress,
                    workers=options.jobs or usable_cores(),
                    engine=options.engine,
                    select=options.select,
                    last=options.last,
                )
        except KeyboardInterrupt:
            raise Interrupted(f"finished runs are kept; go on with: {_command(options, directory)}") from None
        comparison = compare_rows(plan, rows, reference, options.select, options.last)
        _show(comparison, options, directory, console, time.perf_counter() - since)
    if not any(row.good for row in rows):
        raise RunError("every run failed; the reasons are in the table")


def _plan(options: Options, directory: Path) -> Plan:
    if not options.grids and (options.grid_rounds is not None or options.grid_seed is not None):
        raise ConfigError("--grid-rounds and --grid-seed say how --grid is searched; give --grid KEY=V1,V2 too")
    return make_plan(
        flat_config(options.config, options.overrides),
        options.methods,
        options.seeds,
        directory,
        options.grids,
        options.grid_rounds,
        options.grid_seed,
    )


def _show(comparison: Comparison, options: Options, directory: Path, console: Console, seconds: float) -> None:
    from dqnfed_flwr.compare.files import as_json, write_files
    from dqnfed_flwr.compare.tables import print_tables, tables
    from dqnfed_flwr.report.comparison_plots import plot_comparison

    found = tables(comparison)
    figures = as_json(comparison, _command(options, directory), seconds)
    files = write_files(directory, comparison, figures, found)
    print_tables(console, found)
    try:
        files += plot_comparison(comparison, directory)
    except RunError as error:
        console.print(f"no plots: {error}", markup=False, soft_wrap=True)
    show_files(console, files)
    if options.json_path:
        write_json(figures, options.json_path)


def _command(options: Options, directory: Path) -> str:
    """The same command, for a shell."""
    words = ["dqnfed", "compare", options.config, "--methods", options.methods, "--seeds", options.seeds]
    words += [word for item in options.overrides for word in ("--set", item)]
    words += [word for item in options.grids for word in ("--grid", item)]
    given = {
        "--grid-rounds": options.grid_rounds,
        "--grid-seed": options.grid_seed,
        "--select": options.select if options.select != "mean" else None,
        "--reference": options.reference,
        "--last": options.last if options.last > 1 else None,
        "--jobs": options.jobs or None,
        "--engine": options.engine if options.engine != "in-process" else None,
        "--json": options.json_path,
    }
    words += [word for key, value in given.items() if value is not None for word in (key, str(value))]
    return shlex.join([*words, "--output", str(directory)])
