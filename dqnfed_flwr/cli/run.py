"""`dqnfed run` and `export`: one configuration, one run, its results, and its model as files for others."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import (
    Config,
    EndedEarly,
    Engine,
    Interrupted,
    LeftOut,
    Overrides,
    Strict,
    command_line,
    reported,
)
from dqnfed_flwr.cli.dry_run import DryRunOption, show_run
from dqnfed_flwr.cli.ray import RayOfClients, clients_on
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, ModelError, RunError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, MODEL, PLOT, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.engine.result import RunResult


@reported
def run(
    config: Config,
    overrides: Overrides = None,
    engine: Annotated[
        Engine,
        typer.Option(
            show_default=False,
            help="Run all clients in this process (the default), or under Flower's simulation engine.",
        ),
    ] = Engine.IN_PROCESS,
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
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write settings and figures as JSON; - is stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
    ray: RayOfClients = "",
    dry: DryRunOption = False,
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
      dqnfed run mine.yaml --dry-run
      dqnfed run mine.yaml --output runs/mine
      dqnfed run mine.yaml --output runs/mine --resume
      dqnfed run digits --quiet --json - | python -m json.tool

    Exit status: 0 the run ended, 1 it failed, 2 settings, data, model or checkpoint are at fault, 3 --strict found
    clients left out, 4 it ended before its rounds were done, as pareto-stationary or line-search-failed (the results
    are written), 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import given_keys, read_settings, tell_without_effect
    from dqnfed_flwr.engine.ending import LEFT_OUT, early_end, left_out
    from dqnfed_flwr.report.table import summary_table

    if resume and overwrite:
        raise ConfigError("--resume goes on with the run in the folder, --overwrite replaces it; give one of the two")
    overrides = overrides or []
    settings = read_settings(config, overrides, output, preset=preset, resume=resume)
    tell_without_effect(given_keys(config, overrides), [settings])
    console = Console(stderr=json_path == "-", quiet=quiet)
    if dry:
        show_run(console, settings, overwrite=overwrite)
        return
    folder = Path(settings.output) if settings.output else None
    before = _checkpoint_of(folder)
    other = engine.value if engine is not Engine.IN_PROCESS else None
    again: dict[str, object] = {
        "--preset": preset or None,
        "--set": overrides,
        "--engine": other,
        "--output": settings.output,
        "--resume": True,
    }
    again |= {"--ray": ray or None, "--json": json_path, "--quiet": quiet, "--strict": strict}
    with tried(json_path), clients_on(ray, engine):
        try:
            result = train(settings, console, settings.title, engine, overwrite=overwrite)
        except (DataError, ModelError, CheckpointError) as error:  # found before the first round
            raise ConfigError(str(error)) from error
        except KeyboardInterrupt:
            raise Interrupted(_advice(settings, before, command_line("run", config, options=again))) from None
        console.print(summary_table({settings.title: result}))
        if folder:
            draw({settings.title: result}, folder / PLOT, console)
            show_files(console, [folder / RUN, folder / MODEL, folder / EVENTS, folder / PLOT])
        if json_path:
            write_json(result.to_json(), json_path)
    if words := early_end(result):
        raise EndedEarly(words)
    if strict and (words := left_out(result)):
        raise LeftOut(f"{LEFT_OUT}{words}")


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


@contextmanager
def tried(json_path: str | None) -> Iterator[None]:
    """Open the file of --json for writing before the work costs time, and remove it if nothing was written."""
    if not json_path or json_path == "-":
        yield
        return
    path = Path(json_path)
    new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json: cannot write to {path} ({error.strerror}); name another file") from None
    try:
        yield
    finally:
        if new and path.is_file() and not path.stat().st_size:
            path.unlink()


def write_json(figures: Mapping[str, object], path: str) -> None:
    """Write figures as JSON to a file, or to stdout for `-`."""
    text = json.dumps(figures, indent=2)
    if path == "-":
        typer.echo(text)
        return
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None


def show_files(console: Console, files: Sequence[Path]) -> None:
    """Say where results lie."""
    for file in files:
        if file.exists():
            console.print(str(file), soft_wrap=True, markup=False, highlight=False)


def _advice(settings: Settings, before: int | None, command: str) -> str:
    """What to do after an interrupt; `before` is the checkpoint that lay there when the run began."""
    if not settings.output or not settings.checkpoint_every:
        return "nothing was kept; with --output DIR a run can be resumed"
    left = _checkpoint_of(Path(settings.output))
    if left is None or (left == before and not settings.resume):
        return "no checkpoint was written yet; the same command begins anew"
    return f"go on with: {command}"


def _checkpoint_of(folder: Path | None) -> int | None:
    """When the checkpoint of a folder was written, in nanoseconds; None where there is none."""
    try:
        return None if folder is None else (folder / CHECKPOINT).stat().st_mtime_ns
    except OSError:
        return None
