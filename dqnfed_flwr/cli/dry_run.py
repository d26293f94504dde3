"""What `--dry-run` shows of a run, of a comparison, and of a run elsewhere. Nothing is written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.compare.plan import Plan
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.engine.dry_run import DryRun

DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Build model and data, show sizes, bytes and seconds of a round, and stop."),
]


def show_run(console: Console, settings: Settings, *, overwrite: bool) -> None:
    """A run in this process; `ConfigError` if settings, data, model or folder are at fault."""
    from dqnfed_flwr.engine.run_folder import guard_output
    from dqnfed_flwr.report.dry_run import run_table

    folder = Path(settings.output) if settings.output else None
    if not settings.resume and not overwrite:
        guard_output(folder)
    where = f"{folder}" if folder else "none: nothing is written without --output"
    console.print(run_table("Nothing was run", _measured(settings), where))


def show_comparison(console: Console, plan: Plan, workers: int) -> None:
    """A comparison; `ConfigError` if data or model of a row are at fault."""
    from dqnfed_flwr.report.dry_run import comparison_tables

    found = [_measured(plan.final(spec, spec.points[0])[0].settings) for spec in plan.specs]
    for table in comparison_tables(plan, found, workers):
        console.print(table)


def show_elsewhere(console: Console, settings: Settings) -> None:
    """A run on a SuperLink, as far as it is known here: where data or model are on the nodes alone, that is said."""
    from dqnfed_flwr.report.dry_run import run_table

    where = settings.output or "by default one for each run, on the server"
    try:
        found = _measured(settings)
    except ConfigError as error:
        text = f"The settings are sound. Sizes are not known here, for data or model are not: {error}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    console.print(run_table("Nothing was submitted; seconds and samples are those of this machine", found, where))


def _measured(settings: Settings) -> DryRun:
    from dqnfed_flwr.engine.dry_run import dry_run

    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        return dry_run(settings)
    except (DataError, ModelError) as error:
        raise ConfigError(str(error)) from error
