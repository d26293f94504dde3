"""A ServerApp that Flower starts again, after its SuperLink was lost, goes on where it was.

Flower starts it with the same run id and the same run config, so the run config cannot say that there is a beginning
already. The output folder does: it names the run that last wrote there.
"""

from __future__ import annotations

import os
from logging import INFO, WARNING
from pathlib import Path

from flwr.common.logger import log

from dqnfed_flwr.config import Settings, check_for_nodes
from dqnfed_flwr.engine.run_folder import held_by, prepare_output
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import CHECKPOINT

RUN_ID = "run-id"
OUTPUT, METRICS = "DQNFED_OUTPUT", "DQNFED_METRICS"
"""Environment variables: where runs go that name no output, each into a folder called after its id; where they write
their metrics."""


def with_folders(settings: Settings, run_id: int) -> Settings:
    """`settings` of the run config with the server's folders, where it names none itself."""
    if not settings.output and os.environ.get(OUTPUT):
        settings = _with(settings, output=str(Path(os.environ[OUTPUT]) / str(run_id)))
    if not settings.metrics and os.environ.get(METRICS):
        settings = _with(settings, metrics=os.environ[METRICS])
    return settings


def settings_of_run(settings: Settings, run_id: int) -> Settings:
    """`settings` with `resume` where this very run left a checkpoint before; else a free output folder is made its own.

    Parameters
    ----------
    settings : Settings
        From `with_folders`; nobody else may be at work in the output folder.
    run_id : int
        Flower's.

    Raises
    ------
    ConfigError
        If the output folder cannot be written, a run is to be resumed without one, or the settings ask for what only
        the in-process engine does; or if another run's results or checkpoint lie there, and it is not to be resumed.
    """
    check_for_nodes(settings)
    output = prepare_output(settings)
    if output is None:
        log(WARNING, "No output folder: a run that is interrupted begins anew. Set output, or %s on the server", OUTPUT)
        return settings
    if _last_run(output) != str(run_id):
        if not settings.resume and (run := held_by(output)):
            raise ConfigError(
                f"output: {output} holds {run}; resume goes on with it; name another folder, or move that one away"
            )
        _claim(output, run_id)
    elif not settings.resume and (output / CHECKPOINT).exists():
        log(INFO, "This run was here before; it goes on from %s", output / CHECKPOINT)
        return _with(settings, resume=True)
    return settings


def _claim(output: Path, run_id: int) -> None:
    """Note that `run_id` writes to `output`."""
    temporary = output / f".{RUN_ID}"
    temporary.write_text(f"{run_id}\n")
    temporary.replace(output / RUN_ID)


def _last_run(output: Path) -> str:
    try:
        return (output / RUN_ID).read_text().strip()
    except OSError:
        return ""


def _with(settings: Settings, **changes: str | bool) -> Settings:
    return Settings.from_mapping({**settings.flat(), **changes})
