"""What lies in the folders of a comparison already: whether it is of the runs that are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.compare.files import JSON
from dqnfed_flwr.config import KNOWN, Scalar, Settings, retired_in, without_retired
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from dqnfed_flwr.compare.plan import Job


def foreign(jobs: Sequence[Job]) -> list[str]:
    """Tell which folders hold a finished or unfinished run of other settings or on other data, and how it differs.

    Data are looked at only if a run is there that noted their fingerprint.

    Parameters
    ----------
    jobs : Sequence[Job]
        What is to be run.

    Raises
    ------
    ConfigError
        If a result is there that cannot be read.
    """
    there = [(job, found) for job in jobs if (found := _found(job)) is not None]
    data = dict.fromkeys(job.settings.data for job, found in there if found.get("fingerprint"))
    now = {name: _fingerprint(name) for name in data}
    texts = [_other_settings(job, found) or _other_data(job, found, now) for job, found in there]
    return [text for text in texts if text]


def foreign_figures(directory: Path, config: Mapping[str, Scalar]) -> list[str]:
    """Tell whether figures of other runs than these would be overwritten: of rows that share other settings.

    Parameters
    ----------
    directory : Path
        Of the comparison.
    config : Mapping[str, Scalar]
        What its rows share.
    """
    path = directory / JSON
    try:
        found = json.loads(path.read_text("utf-8"))
        changed = _changed(dict(found["settings"]), config)
        kept = any(run["status"] != "failed" for row in found["methods"] for run in row["runs"])
    except (OSError, ValueError, LookupError, TypeError):
        return []  # nothing that anybody could still read
    return [f"{path} has figures of runs of other settings; {'; '.join(changed)}"] if changed and kept else []


def _other_settings(job: Job, found: Mapping[str, Any]) -> str:
    changed = _changed(found.get("settings", {}), job.settings.flat())
    return f"{job.folder} holds a run of other settings; {'; '.join(changed)}" if changed else ""


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    retired = retired_in(then)
    then, now = ({**Settings().flat(), **given} for given in (without_retired(then), now))
    changed = [
        f"{key}: {then.get(key)!r} there, {now.get(key)!r} now"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key) and not (key in KNOWN and KNOWN[key].changes == "nothing")
    ]
    return [*(f"{key}: set there, no longer a setting" for key in retired), *changed]


def _other_data(job: Job, found: Mapping[str, Any], fingerprints: Mapping[str, str | None]) -> str:
    from dqnfed_flwr.strategy.origin import differ

    then, now = found.get("fingerprint"), fingerprints.get(job.settings.data)
    if not differ(then, now):
        return ""
    return f"{job.folder} holds a run on other data; fingerprint of {job.settings.data}: {then} there, {now} now"


def _fingerprint(data: str) -> str | None:
    """Of the data as they are now; None where they cannot be read, so that no run on them can come to be."""
    from dqnfed_flwr.data.sets import fingerprint

    try:
        return fingerprint(data)
    except DataError:
        return None


def _found(job: Job) -> Mapping[str, Any] | None:
    """The record of the finished or unfinished run in a job's folder; None if there is none that can be read."""
    from dqnfed_flwr.strategy.checkpoint import read_record

    if job.finished:
        try:
            record = json.loads(job.record.read_text())
            return {**record, "settings": dict(record["settings"])}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{job.record}: cannot be read ({error}); remove it, and the run is made anew") from None
    try:
        return read_record(job.checkpoint)
    except CheckpointError:
        return None
