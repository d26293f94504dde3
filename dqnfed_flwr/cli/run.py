"""`dqnfed run`, `demo` and `export`: a configuration, its run and results, and the model as files for others."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import (
    Config,
    DryRunOption,
    EndedEarly,
    Engine,
    EngineOption,
    Interrupted,
    JsonPath,
    LeftOut,
    LineOption,
    Overrides,
    Stalled,
    Strict,
    command_given,
    line_of,
    reported,
    show_files,
    tried,
    write_json,
)
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, ModelError, RunError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, MODEL, PLOT, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.engine.dry_run import DryRun, Line
    from dqnfed_flwr.engine.result import RunResult

RAY_ADDRESS = "RAY_ADDRESS"
"""Where Ray, and so Flower's engine, looks for a cluster."""
DEMO = {"DQN-Fed": "digits", "FedAvg": "digits-fedavg"}


@reported
def run(
    config: Config,
    overrides: Overrides = None,
    engine: EngineOption = Engine.IN_PROCESS,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Settings by name, under --set: paper for the paper's Algorithm 1, paper-safeguarded.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write results, event log, plot and checkpoint to this folder."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the output folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that the output folder holds.")
    ] = False,
    json_path: JsonPath = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
    ray: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="With --engine flower: spread the clients over a running Ray cluster, auto or HOST:PORT.",
        ),
    ] = "",
    dry: DryRunOption = False,
    line: LineOption = "",
    strict: Strict = False,
) -> None:
    """Train one federation and show how fair it came out.

    CONFIG is a shipped experiment, such as digits, or a YAML file of your own; dqnfed settings lists its keys.

    \b
    Examples:
      dqnfed run digits
      dqnfed run digits --set rounds=100 --set split.alpha=0.1
      dqnfed run digits --set method=fedavg --set local.lr=0.1
      dqnfed run digits --preset paper
      dqnfed run mine.yaml --dry-run --line 10Mbit
      dqnfed run mine.yaml --output runs/mine
      dqnfed run mine.yaml --output runs/mine --resume
      dqnfed run digits --quiet --json - | python -m json.tool

    Exit status: 0 the run ended, 1 it failed, 2 settings, data, model or checkpoint are at fault, 3 --strict found
    clients left out, 4 it ended before its rounds were done, as pareto-stationary, line-search-failed or budget-spent
    (the results are written), 5 it stalled: its model did not move any more, or never did (the results are written),
    130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import given_keys, read_settings, tell_without_effect

    if resume and overwrite:
        raise ConfigError("--resume goes on with the run in the folder, --overwrite replaces it; give one of the two")
    overrides, on_line = overrides or [], line_of(line, dry=dry)
    settings = read_settings(config, overrides, output, preset=preset, resume=resume)
    tell_without_effect(given_keys(config, overrides), [settings])
    console = Console(stderr=json_path == "-", quiet=quiet)
    if dry:
        _show_dry(console, settings, on_line, overwrite=overwrite)
        return
    with tried(json_path), _clients_on(ray, engine):
        result = _train_or_advise(settings, console, engine, overwrite=overwrite)
        _show(console, settings, result)
        if json_path:
            write_json(result.to_json(), json_path)
    _conclude(result, strict=strict)


def _train_or_advise(settings: Settings, console: Console, engine: Engine, *, overwrite: bool) -> RunResult:
    """Train; an interrupt says how to go on, and what is at fault before the first round is a `ConfigError`."""
    before = _checkpoint_of(settings)
    try:
        return train(settings, console, settings.title, engine, overwrite=overwrite)
    except (DataError, ModelError, CheckpointError) as error:
        raise ConfigError(str(error)) from error
    except KeyboardInterrupt:
        raise Interrupted(_advice(settings, before)) from None


def _show(console: Console, settings: Settings, result: RunResult) -> None:
    """The table, and where files lie."""
    from dqnfed_flwr.report.table import summary_table

    console.print(summary_table({settings.title: result}))
    if settings.output:
        folder = Path(settings.output)
        draw({settings.title: result}, folder / PLOT, console)
        show_files(console, [folder / RUN, folder / MODEL, folder / EVENTS, folder / PLOT])


def _conclude(result: RunResult, *, strict: bool) -> None:
    """`Stalled` or `EndedEarly` where the run was; `LeftOut` if it is to be `strict` and clients had no part."""
    from dqnfed_flwr.engine.notices import LEFT_OUT, early_end, left_out
    from dqnfed_flwr.strategy.state import STALLED

    if words := early_end(result):
        raise Stalled(words) if result.status == STALLED else EndedEarly(words)
    if strict and (words := left_out(result)):
        raise LeftOut(f"{LEFT_OUT}{words}")


@reported
def demo(
    output: Annotated[
        Path, typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/demo by default.")
    ] = Path("runs/demo"),
) -> None:
    """Train ten clients on handwritten digits with DQN-Fed and with FedAvg, side by side.

    The digits come with scikit-learn; nothing is downloaded. Takes less than a minute.
    """
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import read_settings
    from dqnfed_flwr.engine.notices import early_end
    from dqnfed_flwr.report.table import summary_table

    folder = output.expanduser().resolve()
    console = Console()
    console.print(
        "Ten clients hold real handwritten digits, each with its own mix of classes. They train one model together "
        "without showing each other their data: once with DQN-Fed, once with FedAvg.\n"
    )
    results = {
        name: train(read_settings(config, [], folder / config), console, name, Engine.IN_PROCESS, overwrite=True)
        for name, config in DEMO.items()
    }
    console.print(summary_table(results))
    console.print("\n".join(verdict(*results.values())), highlight=False)
    for name, result in results.items():
        if words := early_end(result):
            console.print(f"{name}: {words}", highlight=False)
    console.print()
    draw(results, folder / PLOT, console)
    show_files(
        console, [folder / PLOT, *(folder / config / file for config in DEMO.values() for file in (RUN, EVENTS))]
    )


def verdict(ours: RunResult, theirs: RunResult) -> list[str]:
    """What the figures of DQN-Fed and FedAvg say, in plain sentences; every one follows from the results given."""
    return [
        f"DQN-Fed: {_losses(ours)}. FedAvg: {_losses(theirs)}.",
        f"The worst client is right on {_percent(ours, 'worst')} of its test digits with DQN-Fed and on "
        f"{_percent(theirs, 'worst')} with FedAvg; on average over clients it is {_percent(ours, 'mean')} and "
        f"{_percent(theirs, 'mean')}.",
    ]


def _losses(result: RunResult) -> str:
    totals = result.totals
    moved = f"{totals.judged} rounds"
    if totals.moved < totals.rounds:
        moved += f" that moved the model, of {totals.rounds}"
    if risen := totals.judged - totals.improved:
        harmed = sum(bool(event.harmed) for event in result.events if event.moved)
        above = "never above" if not harmed else f"in {harmed} of them above"
        entitled = f", {above} what it is entitled to" if harmed < risen else ""
        return f"the training loss of some client rose in {risen} of {moved}{entitled}"
    fell = all(
        after < before
        for event in result.events
        if event.moved
        for before, after in zip(event.losses_before, event.losses_after, strict=True)
        if after == after
    )
    return f"the training loss of every client {'fell' if fell else 'fell or stayed'} in each of {moved}"


def _percent(result: RunResult, key: str) -> str:
    return f"{100 * result.final[key]:.1f}%"


@reported
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a finished run.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where the files go; by default the run's folder.")
    ] = None,
) -> None:
    """Write a run's model as model.safetensors, model.pt2 and MODEL_CARD.md.

    The weights need safetensors to be read, the program (torch.export) torch; neither needs this package. The card
    says what the model was trained on and how fair it came out; fill in its licence and its use.

    Exit status: 0 written, 1 not a finished run, or something is missing.
    """
    from dqnfed_flwr.engine.export import export_run

    for path in export_run(run, to or run):
        typer.echo(str(path))


def train(settings: Settings, console: Console, label: str, engine: Engine, *, overwrite: bool = False) -> RunResult:
    """Run `settings` with progress on `console`, after trying the output folder."""
    from flwr.common.logger import update_console_handler

    from dqnfed_flwr.engine import run as engine_run
    from dqnfed_flwr.engine.run_folder import prepare_output
    from dqnfed_flwr.report.progress import progress_listener

    prepare_output(settings)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # progress is shown here; what goes wrong still is
    update_console_handler(colored=sys.stderr.isatty())  # Flower colours its messages in a pipe, too
    listeners = [] if console.quiet else [progress_listener(console, label)]
    return engine_run.run(settings, engine=engine.value, overwrite=overwrite, listeners=listeners)


def draw(results: Mapping[str, RunResult], path: Path, console: Console) -> None:
    """Write the plot; without matplotlib say what is missing, for the run itself is done."""
    from dqnfed_flwr.report.run_plots import plot_runs

    try:
        plot_runs(results, path)
    except RunError as error:
        console.print(f"no plot: {error}", markup=False, soft_wrap=True)


def measured(settings: Settings) -> DryRun:
    """What a run would be; `ConfigError` if settings, data or model are at fault."""
    from dqnfed_flwr.engine.dry_run import dry_run

    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        return dry_run(settings)
    except (DataError, ModelError) as error:
        raise ConfigError(str(error)) from error


def _show_dry(console: Console, settings: Settings, line: Line | None, *, overwrite: bool) -> None:
    """What `--dry-run` shows of a run; `ConfigError` if its folder is at fault, too."""
    from dqnfed_flwr.engine.run_folder import guard_output
    from dqnfed_flwr.report.table import run_table

    folder = Path(settings.output) if settings.output else None
    if not settings.resume and not overwrite:
        guard_output(folder)
    where = f"{folder}" if folder else "none: nothing is written without --output"
    console.print(run_table("Nothing was run", measured(settings), where, line))


@contextmanager
def _clients_on(address: str, engine: Engine) -> Iterator[None]:
    """Have Flower's engine use a Ray cluster meanwhile; nothing where none is asked for."""
    if not address:
        yield
        return
    if engine is not Engine.FLOWER:
        raise ConfigError("run --ray spreads the clients of Flower's engine; give --engine flower too")
    before = os.environ.get(RAY_ADDRESS)
    os.environ[RAY_ADDRESS] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[RAY_ADDRESS]
        else:
            os.environ[RAY_ADDRESS] = before


def _advice(settings: Settings, before: int | None) -> str:
    """What to do after an interrupt; `before` is the checkpoint that lay there when the run began."""
    if not settings.output or not settings.checkpoint_every:
        return "nothing was kept; with --output DIR a run can be resumed"
    left = _checkpoint_of(settings)
    if left is None or (left == before and not settings.resume):
        return "no checkpoint was written yet; the same command begins anew"
    return f"go on with: {command_given('--resume', without=('--resume', '--overwrite'))}"


def _checkpoint_of(settings: Settings) -> int | None:
    """When the checkpoint of a run was written, in nanoseconds; None where there is none."""
    try:
        return (Path(settings.output) / CHECKPOINT).stat().st_mtime_ns if settings.output else None
    except OSError:
        return None
