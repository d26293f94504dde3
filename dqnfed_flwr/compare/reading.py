"""A comparison read back from its folder, or runs, each as a row of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.entries import Entry, shared, show
from dqnfed_flwr.compare.files import JSON
from dqnfed_flwr.compare.grid import Trial
from dqnfed_flwr.compare.plan import RUNS, Job, Plan
from dqnfed_flwr.compare.record import Record, read_record
from dqnfed_flwr.compare.results import REFERENCE, Comparison, Row, compare_rows
from dqnfed_flwr.config import KNOWN, Scalar, Settings
from dqnfed_flwr.errors import ConfigError, DQNFedError
from dqnfed_flwr.run_files import RUN

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
        reference = _reference(found, rows)
        return Written(compare_rows(plan, rows, reference, found["select"], found["last"]), found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{directory / JSON}: cannot be read as a comparison ({error})") from None


def _reference(found: Mapping[str, Any], rows: Sequence[Row]) -> Entry | None:
    """The row the others were compared with; older files have its label alone."""
    place: int | None = found.get("reference_place")
    if place is not None:
        return rows[place].entry
    return next((row.entry for row in rows if row.label == found.get("reference")), None)


def run_folders(directory: Path) -> list[Path]:
    """The folder itself where a run lies in it, else those of its folders that hold one, by name."""
    if (directory / RUN).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"*/{RUN}"))


def read_runs(directory: Path, folders: Sequence[Path]) -> Written:
    """Read runs of the same clients as a comparison, a row each; the reference is the first of DQN-Fed, else the first.

    Raises
    ------
    ConfigError
        If a run is not finished, or clients or seeds differ.
    """
    versions, found = zip(*(_run(folder) for folder in folders), strict=True)
    settings = [record.job.settings for record in found]
    flat = [each.flat() for each in settings]
    if unlike := [key for key in flat[0] if shared(key) and any(each[key] != flat[0][key] for each in flat)]:
        raise ConfigError(f"{directory}: its runs differ in {', '.join(unlike)}; give the folder of one run")
    names = _names(settings, folders)
    rows = [
        Row(replace(record.job.entry, title=name), {}, (record,)) for name, record in zip(names, found, strict=True)
    ]
    defaults = Settings().flat()
    told = {
        key: value
        for key, value in flat[0].items()
        if not KNOWN[key].instead and value != defaults[key] and all(each[key] == value for each in flat)
    }
    own = [
        {key: each[key] for key in each if not KNOWN[key].instead and key not in told and each[key] != defaults[key]}
        for each in flat
    ]
    note = "; ".join(f"{name}: {_shown(each)}" for name, each in zip(names, own, strict=True) if each)
    entries, seed = tuple(row.entry for row in rows), settings[0].seed
    reference = next((entry for entry in entries if entry.method == REFERENCE), entries[0])
    comparison = compare_rows(Plan(told, entries, (seed,), directory, seed, note=note), rows, reference, "mean", 1)
    return Written(comparison, {"versions": versions[0]} if all(each == versions[0] for each in versions) else {})


def _names(settings: Sequence[Settings], folders: Sequence[Path]) -> list[str]:
    """Titles of runs; those that would share one have the name of their folder beside it."""
    titles = [each.title for each in settings]
    return [
        title if titles.count(title) == 1 else f"{title} [{each.name}]"
        for title, each in zip(titles, folders, strict=True)
    ]


def _shown(own: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{key} {show(value)}" for key, value in own.items())


def _run(directory: Path) -> tuple[Mapping[str, str], Record]:
    try:
        found = json.loads((directory / RUN).read_text("utf-8"))
        settings = _settings(found["settings"])
        versions = dict(found.get("versions", {}))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DQNFedError) as error:
        raise ConfigError(f"{directory / RUN}: cannot be read as a run ({error})") from None
    entry = Entry(settings.method, title=settings.title)
    record = read_record(Job(entry, {}, settings.seed, settings, directory))
    if not record.good:
        raise ConfigError(f"{directory}: {record.reason}")
    return versions, record


def _row(item: Mapping[str, Any], directory: Path, last: int) -> Row:
    axes = dict.fromkeys([*item["chosen"], *(key for trial in item["grid"] for key in trial["point"])], ())
    entry = Entry(item["method"], item["own"], axes, item["title"])
    records = []
    for run in item["runs"]:
        folder = directory / RUNS / Path(*Path(run["folder"]).parts[-DEPTH + 1 :])
        settings, fault = _settings_in(folder)
        job = Job(entry, item["chosen"], run["seed"], settings, folder)
        records.append(read_record(job, run["reason"] or fault, last))
    trials = tuple(
        Trial(entry, trial["point"], trial["seed"], trial["rounds"], trial["validation"], trial["failed"] or "")
        for trial in item["grid"]
    )
    return Row(entry, item["chosen"], tuple(records), trials, item["failed"] or "")


def _settings_in(folder: Path) -> tuple[Settings, str]:
    """Settings of a run, and why they are not known, with the defaults in their place; empty if they are."""
    try:
        return _settings(json.loads((folder / RUN).read_text("utf-8"))["settings"]), ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DQNFedError) as error:
        return Settings(), f"{folder / RUN}: its settings cannot be read ({error})"


def _settings(flat: Mapping[str, Any]) -> Settings:
    """Settings, without the keys that an older version had and this one has not.

    Raises
    ------
    ConfigError
        If a value is none that this version knows.
    """
    known = Settings().flat()
    return Settings.from_mapping({key: value for key, value in flat.items() if key in known})
