"""Whether an output folder holds a run already, which nobody may lose by starting another."""

from __future__ import annotations

import json
from pathlib import Path

from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from dqnfed_flwr.strategy.checkpoint import read_record


def check_free(output: Path | None) -> None:
    """Refuse a directory that holds a run.

    Raises
    ------
    ConfigError
        It says which run, and what to do.
    """
    if output is not None and (run := held_by(output)):
        resume = "--resume (in Python resume=True) goes on with it; " if (output / CHECKPOINT).exists() else ""
        raise ConfigError(
            f"output: {output} holds {run}; {resume}name another folder, or --overwrite (overwrite=True) to lose it"
        )


def held_by(directory: Path) -> str:
    """The run in a folder, such as `a run of 5 rounds (finished)`; empty where there is none.

    A folder with an event log alone holds none: without a checkpoint nobody could go on with it.
    """
    if (directory / RUN).exists():
        return _told(_recorded(directory / RUN), "rounds")
    if (directory / CHECKPOINT).exists():
        return _told(_saved(directory / CHECKPOINT), "round")
    return ""


def _told(record: dict[str, object], key: str) -> str:
    if key not in record or "status" not in record:
        return "a run that cannot be read"
    return f"a run of {record[key]} rounds ({record['status']})"


def _recorded(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _saved(path: Path) -> dict[str, object]:
    try:
        return read_record(path)
    except CheckpointError:
        return {}
