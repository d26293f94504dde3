"""What lies in the folders of a comparison already: whether it is of the runs that are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dqnfed_flwr.config import KNOWN, Scalar, Settings, retired_in, without_retired
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError
from dqnfed_flwr.run_files import CHECKPOINT, RUN, UNREADABLE

JSON = "comparison.json"
"""Figures of a comparison, in its folder."""


def conflicting_runs(runs: Mapping[Path, Settings]) -> list[str]:
    """Which folders hold a finished or unfinished run of other settings or on other data, and how it differs.

    `runs` are the settings to be run, by folder. Data are looked at only if a run is there that noted their
    fingerprint. A result that cannot be read is a `ConfigError`.
    """
    there = {folder: found for folder in runs if (found := _found(folder)) is not None}
    data = dict.fromkeys(runs[folder].data for folder, found in there.items() if found.get("fingerprint"))
    now = {name: _fingerprint(name) for name in data}
    texts = [_conflict(folder, runs[folder], found, now) for folder, found in there.items()]
    return [text for text in texts if text]


def conflicting_figures(directory: Path, config: Mapping[str, Scalar]) -> list[str]:
    """Whether a comparison of rows that share `config` would overwrite figures of rows that share other settings."""
    path = directory / JSON
    try:
        found = json.loads(path.read_text("utf-8"))
        changed = _changed(dict(found["settings"]), config)
        kept = any(run["status"] != "failed" for row in found["methods"] for run in row["runs"])
    except UNREADABLE:
        return []  # there is nothing that can still be read
    return [f"{path} has figures of runs of other settings; {'; '.join(changed)}"] if changed and kept else []


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    retired = retired_in(then)
    then, now = ({**Settings().flat(), **given} for given in (without_retired(then), now))
    changed = [
        f"{key}: {then.get(key)!r} there, {now.get(key)!r} now"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key) and not (key in KNOWN and KNOWN[key].changes == "nothing")
    ]
    return [*(f"{key}: set there, no longer a setting" for key in retired), *changed]


def _conflict(
    folder: Path, settings: Settings, found: Mapping[str, Any], fingerprints: Mapping[str, str | None]
) -> str:
    """How the run in a folder differs from the one that is to be made; empty if it does not."""
    from dqnfed_flwr.strategy.checkpoint import differ

    if changed := _changed(found.get("settings", {}), settings.flat()):
        return f"{folder} holds a run of other settings; {'; '.join(changed)}"
    data = settings.data
    then, now = found.get("fingerprint"), fingerprints.get(data)
    if differ(then, now):
        return f"{folder} holds a run on other data; fingerprint of {data}: {then} there, {now} now"
    return ""


def _fingerprint(data: str) -> str | None:
    """Of the data as they are now; None where they cannot be read, so that no run on them can come to be."""
    from dqnfed_flwr.data.sets import fingerprint

    try:
        return fingerprint(data)
    except DataError:
        return None


def _found(folder: Path) -> Mapping[str, Any] | None:
    """The record of the finished or unfinished run in a folder; None if there is none that can be read."""
    from dqnfed_flwr.strategy.checkpoint import read_record

    path = folder / RUN
    if path.exists():
        try:
            record = json.loads(path.read_text())
            return {**record, "settings": dict(record["settings"])}
        except UNREADABLE as error:
            raise ConfigError(f"{path}: cannot be read ({error}); remove it, and the run is made anew") from None
    try:
        return read_record(folder / CHECKPOINT)
    except CheckpointError:
        return None
