"""`dqnfed diagnose`: what limits a run, by the losses of its clients along its steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import Engine, Overrides, reported, show_files, write_json
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import EVENTS

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.engine.result import RunResult
    from dqnfed_flwr.report.diagnosis import Diagnosis

PLOT, FIGURES = "diagnosis.png", "diagnosis.json"
MEASURED = 10
"""Rounds of a run whose steps are measured, where nothing else is said."""
EVERY = "step.diagnose-every"


@reported
def diagnose(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run, or a configuration to train.")],
    overrides: Overrides = None,
    every: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="Measure each N-th round; by default ten of them in all."
        ),
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Folder of the files; by default that of the run."),
    ] = None,
) -> None:
    """Show what limits a run: how far each client would let its steps go, and who holds whom up.

    A configuration is trained, and along the steps of some rounds every client reports its losses; that costs some
    forward passes and changes nothing else. Of a finished run the losses along its steps are read where it was trained
    with --set step.diagnose-every=N. Writes diagnosis.png and diagnosis.json.

    \b
    Examples:
      dqnfed diagnose mine.yaml --output runs/diagnosis
      dqnfed diagnose digits --set rounds=20 --every 2 --output runs/digits
      dqnfed diagnose runs/digits

    Exit status: 0 shown, 1 no finished run there, or it failed, 2 the settings are at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.config import resolve
    from dqnfed_flwr.report.diagnosis import diagnose as diagnosed

    console = Console()
    folder = output
    if (Path(run) / EVENTS).is_file():
        if overrides or every:
            raise ConfigError(f"{run} is a run that was trained; --set and --every go with a configuration")
        result, folder = _read(Path(run)), output or Path(run)
    else:
        result = _trained(run, overrides or [], every, output, console)
    found = diagnosed(result.events, tested=resolve(result.settings).rule.judged_by == "test")
    _show(console, found, result, folder)


def _read(folder: Path) -> RunResult:
    from dqnfed_flwr.engine.result import read_result

    return read_result(folder)


def _trained(config: str, overrides: list[str], every: int, output: Path | None, console: Console) -> RunResult:
    """Train the configuration, with the measurement of every so many rounds."""
    from dqnfed_flwr.cli.overrides import read_settings
    from dqnfed_flwr.cli.run import train

    settings = read_settings(config, overrides, output)
    if every or not settings.step.diagnose_every:
        every = every or max(1, settings.rounds // MEASURED)
        settings = read_settings(config, [*overrides, f"{EVERY}={every}"], output)
    return train(settings, console, settings.title, Engine.IN_PROCESS)


def _show(console: Console, found: Diagnosis, result: RunResult, folder: Path | None) -> None:
    """Tables and sentences, and the files where there is a folder for them."""
    from dqnfed_flwr.report.diagnosis_plots import plot_diagnosis, rises_table, rounds_table

    if found.rounds:
        console.print(rounds_table(found))
    console.print(rises_table(found))
    if not found.rounds:
        console.print(
            f"No round of this run was measured: train it with dqnfed diagnose, or with --set {EVERY}=N, to see how "
            "far each client would let its steps go.",
        )
    for words in found.findings:
        console.print(f"- {words}", highlight=False)
    if folder is None:
        return
    write_json(found.to_json(), str(folder / FIGURES))
    if found.rounds:
        plot_diagnosis(found, result.events, folder / PLOT)
    show_files(console, [folder / FIGURES, folder / PLOT])
