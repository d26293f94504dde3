"""`dqnfed run`: one configuration, one run, its results."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.console import Console

from dqnfed_flwr.cli.effects import given_keys, tell_without_effect
from dqnfed_flwr.cli.failures import EndedEarly, Interrupted
from dqnfed_flwr.config import Scalar, Settings, flatten, nest
from dqnfed_flwr.config.loading import load_config, parse_scalar
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, ModelError, RunError
from dqnfed_flwr.report.progress import progress_listener
from dqnfed_flwr.report.table import summary_table
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, MODEL, PLOT, RUN

if TYPE_CHECKING:
    from dqnfed_flwr.engine.result import RunResult

EngineName = Literal["in-process", "flower"]


@dataclass(frozen=True)
class Options:
    """What `dqnfed run` was told, as the command line has it."""

    config: str
    overrides: Sequence[str]
    engine: EngineName
    output: Path | None
    resume: bool
    overwrite: bool
    json_path: str | None
    quiet: bool


def run_one(options: Options) -> None:
    """Carry out `dqnfed run`."""
    if options.resume and options.overwrite:
        raise ConfigError("--resume goes on with the run in the folder, --overwrite replaces it; give one of the two")
    settings = read_settings(options.config, options.overrides, options.output, resume=options.resume)
    tell_without_effect(given_keys(options.config, options.overrides), [settings])
    json_path = options.json_path
    console = Console(stderr=json_path == "-", quiet=options.quiet)
    name = settings.title
    folder = Path(settings.output) if settings.output else None
    before = _checkpoint_of(folder)
    with tried(Path(json_path) if json_path and json_path != "-" else None):
        try:
            result = train(settings, console, name, options.engine, overwrite=options.overwrite)
        except (DataError, ModelError, CheckpointError) as error:  # found before the first round
            raise ConfigError(str(error)) from error
        except KeyboardInterrupt:
            raise Interrupted(_how_to_go_on(options, settings, before)) from None
        console.print(summary_table({name: result}))
        if folder:
            draw({name: result}, folder / PLOT, console)
            show_files(console, [folder / RUN, folder / MODEL, folder / EVENTS, folder / PLOT])
        if json_path:
            write_json(result.to_json(), json_path)
    raise_early_end(result)


def raise_early_end(result: RunResult) -> None:
    """Say that a run ended before its rounds were done.

    Raises
    ------
    EndedEarly
        If it did.
    """
    from dqnfed_flwr.engine.ending import early_end

    if words := early_end(result):
        raise EndedEarly(words)


def read_settings(config: str, overrides: Sequence[str], output: Path | None, *, resume: bool = False) -> Settings:
    """Settings of a configuration, with `--set`, `--output` and `--resume` laid over it.

    Raises
    ------
    ConfigError
        Also where an override is no KEY=VALUE.
    """
    flat = flat_config(config, overrides)
    if output is not None:
        flat["output"] = str(output)
    if resume:
        flat["resume"] = True
    if flat.get("output"):
        flat["output"] = str(Path(str(flat["output"])).expanduser().resolve())
    return Settings.from_mapping(flat)


def flat_config(config: str, overrides: Sequence[str]) -> dict[str, Scalar]:
    """Dotted keys of a configuration, unchecked, with `--set` laid over it.

    Raises
    ------
    ConfigError
        If there is no such configuration, or an override is no KEY=VALUE.
    """
    return overridden(flatten(nest(load_config(config))), overrides)


def overridden(flat: Mapping[str, Scalar], overrides: Sequence[str]) -> dict[str, Scalar]:
    """Dotted keys with `--set` laid over them.

    Raises
    ------
    ConfigError
        If an override is no KEY=VALUE.
    """
    found = dict(flat)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set: found {override!r}; give KEY=VALUE, such as --set rounds=50")
        try:
            found[key.strip()] = parse_scalar(value)
        except ConfigError as error:
            raise ConfigError(f"--set {key.strip()}: {error}") from None
    return found


def train(
    settings: Settings, console: Console, label: str, engine: EngineName, *, overwrite: bool = False
) -> RunResult:
    """Run `settings` with progress on `console`, after trying the output folder."""
    from dqnfed_flwr.engine.run import run
    from dqnfed_flwr.engine.run_folder import prepare_output

    prepare_output(settings)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # progress is shown here; what goes wrong still is
    listeners = [] if console.quiet else [progress_listener(console, label)]
    return run(settings, engine=engine, overwrite=overwrite, listeners=listeners)


def draw(results: Mapping[str, RunResult], path: Path, console: Console) -> None:
    """Write the plot; where it cannot be written say so, for the run itself is done."""
    from dqnfed_flwr.report.run_plots import plot_runs

    try:
        plot_runs(results, path)
    except RunError as error:
        console.print(f"no plot: {error}", markup=False, soft_wrap=True)


def try_writing(path: Path) -> None:
    """Open a file for writing before training costs time, leaving what it holds.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json: cannot write to {path} ({error.strerror}); name another file") from None


@contextmanager
def tried(path: Path | None) -> Iterator[None]:
    """Try a file before the work, as `try_writing`, and take it away again where nothing came to be written."""
    if path is None:
        yield
        return
    new = not path.exists()
    try_writing(path)
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


def _how_to_go_on(options: Options, settings: Settings, before: int | None) -> str:
    """Advice after an interrupt; `before` is the checkpoint that lay there when the run began."""
    if not settings.output or not settings.checkpoint_every:
        return "nothing was kept; with --output DIR a run can be resumed"
    left = _checkpoint_of(Path(settings.output))
    if left is None or (left == before and not settings.resume):
        return "no checkpoint was written yet; the same command begins anew"
    command = ["dqnfed", "run", options.config, *(word for item in options.overrides for word in ("--set", item))]
    command += ["--engine", options.engine] if options.engine != "in-process" else []
    command += ["--output", settings.output, "--resume"]
    command += ["--json", options.json_path] if options.json_path else []
    command += ["--quiet"] if options.quiet else []
    return f"go on with: {shlex.join(command)}"


def _checkpoint_of(folder: Path | None) -> int | None:
    """When the checkpoint of a folder was written, in nanoseconds; None where there is none."""
    try:
        return None if folder is None else (folder / CHECKPOINT).stat().st_mtime_ns
    except OSError:
        return None
