"""A comparison read back from its folder, or a single run as a comparison of one row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.files import JSON
from dqnfed_flwr.compare.grid import Trial
from dqnfed_flwr.compare.plan import RUN, RUNS, Job, Plan
from dqnfed_flwr.compare.record import read_record
from dqnfed_flwr.compare.results import Comparison, Row, compare_rows
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError, DQNFedError

DEPTH = 3
"""A run's folder is runs/METHOD/seed-S below that of its comparison."""


@dataclass(frozen=True, slots=True)
class Written:
    """A comparison and what its file says beside it: command, seconds, versions, machine, commit."""

    comparison: Comparison
    about: Mapping[str, Any]


def read_comparison(directory: Path) -> Written:
    """Read `comparison.json` and the runs that it names.

    Runs are looked for below `directory`, so that it may have been moved.

    Raises
    ------
    ConfigError
        If the file is missing, or not of this package.
    """
    try:
        found = json.loads((directory / JSON).read_text("utf-8"))
        rows = [_row(item, directory, int(found.get("last", 1))) for item in found["methods"]]
        entries = tuple(row.entry for row in rows)
        plan = Plan(
            found["settings"],
            entries,
            tuple(found["seeds"]),
            directory,
            int(found.get("grid_seed", found["seeds"][0])),
            skipped=found.get("skipped", {}),
            note=found.get("note", ""),
        )
        reference = next((row.entry for row in rows if row.label == found.get("reference")), None)
        return Written(compare_rows(plan, rows, reference, found["select"], found["last"]), found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{directory / JSON}: cannot be read as a comparison ({error})") from None


def read_single(directory: Path) -> Written:
    """Read one run as a comparison of one row.

    Raises
    ------
    ConfigError
        If there is no finished run.
    """
    try:
        found = json.loads((directory / RUN).read_text("utf-8"))
        settings = _settings(found["settings"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{directory / RUN}: cannot be read as a run ({error})") from None
    entry = Entry(settings.method, title=settings.title)
    record = read_record(Job(entry, {}, settings.seed, settings, directory))
    if not record.good:
        raise ConfigError(f"{directory}: {record.reason}")
    plan = Plan(found["settings"], (entry,), (settings.seed,), directory, settings.seed)
    return Written(compare_rows(plan, [Row(entry, {}, (record,))], entry, "mean", 1), {})


def _row(item: Mapping[str, Any], directory: Path, last: int) -> Row:
    axes = dict.fromkeys([*item["chosen"], *(key for trial in item["grid"] for key in trial["point"])], ())
    entry = Entry(item["method"], item["own"], axes, item["title"])
    records = []
    for run in item["runs"]:
        folder = directory / RUNS / Path(*Path(run["folder"]).parts[-DEPTH + 1 :])
        job = Job(entry, item["chosen"], run["seed"], _settings_in(folder), folder)
        records.append(read_record(job, run["reason"] or "", last))
    trials = tuple(
        Trial(entry, trial["point"], trial["seed"], trial["rounds"], trial["validation"], trial["failed"] or "")
        for trial in item["grid"]
    )
    return Row(entry, item["chosen"], tuple(records), trials, item["failed"] or "")


def _settings_in(folder: Path) -> Settings:
    """Settings of a run; the defaults where it has none, which its record then says."""
    try:
        return _settings(json.loads((folder / RUN).read_text("utf-8"))["settings"])
    except (OSError, ValueError, LookupError, TypeError):
        return Settings()


def _settings(flat: Mapping[str, Any]) -> Settings:
    """Settings, without the keys that an older version had and this one has not."""
    known = Settings().flat()
    try:
        return Settings.from_mapping({key: value for key, value in flat.items() if key in known})
    except DQNFedError:
        return Settings()
