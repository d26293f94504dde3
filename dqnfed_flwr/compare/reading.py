"""A comparison read back from its folder, or runs, each as a row of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.existing_results import JSON
from dqnfed_flwr.compare.plan import RUNS, Job, Plan
from dqnfed_flwr.compare.record import Record, Trial, read_record
from dqnfed_flwr.compare.results import REFERENCE, Comparison, Row
from dqnfed_flwr.compare.row_specs import RowSpec, yaml_text
from dqnfed_flwr.config import KNOWN, Settings, is_retired
from dqnfed_flwr.errors import ConfigError, DQNFedError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, RUN, UNREADABLE
from dqnfed_flwr.types import Figure

DEPTH = 3
"""A run's folder is runs/METHOD/seed-S below that of its comparison."""


@dataclass(frozen=True, slots=True)
class Written:
    """A comparison, and what else its file says: command, seconds, versions, machine, commit."""

    comparison: Comparison
    about: Mapping[str, Any]


def read_comparison(directory: Path) -> Written:
    """Read `comparison.json` and the runs that it names, below `directory`, which may have been moved.

    Raises
    ------
    ConfigError
        If the file is missing, or not of this package.
    """
    try:
        found = json.loads((directory / JSON).read_text("utf-8"))
        figure, last = Figure.from_json(found.get("figure")), int(found.get("last", 1))
        rows = [_row(item, directory, last, figure) for item in found["methods"]]
        specs = tuple(row.spec for row in rows)
        plan = Plan(
            found["settings"],
            specs,
            tuple(found["seeds"]),
            directory,
            int(found.get("grid_seed", found["seeds"][0])),
            skipped=found.get("skipped", {}),
            note=found.get("note", ""),
        )
        return Written(Comparison(plan, rows, _reference(found, rows), found["select"], last), found)
    except UNREADABLE as error:
        raise ConfigError(f"{directory / JSON}: cannot be read as a comparison ({error})") from None


def _reference(found: Mapping[str, Any], rows: Sequence[Row]) -> RowSpec | None:
    """The row the others were compared with; older files have its label alone."""
    place: int | None = found.get("reference_place")
    if place is not None:
        return rows[place].spec
    return next((row.spec for row in rows if row.label == found.get("reference")), None)


def run_folders(directory: Path) -> list[Path]:
    """The folder itself where a run lies in it, else those of its folders that hold one, by name."""
    if (directory / RUN).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"*/{RUN}"))


def unfinished(directory: Path) -> list[str]:
    """Names of the folders beside those of `run_folders` that hold a run which is not at its end."""
    if (directory / RUN).exists():
        return []
    begun = {path.parent for name in (CHECKPOINT, EVENTS) for path in directory.glob(f"*/{name}")}
    return sorted(folder.name for folder in begun if not (folder / RUN).exists())


def read_runs(directory: Path, folders: Sequence[Path]) -> Written:
    """Read runs of the same clients as a comparison, a row each; the reference is the first of DQN-Fed, else the first.

    Raises
    ------
    ConfigError
        If a file cannot be read, or clients or seeds differ.
    """
    versions, found = zip(*(_run(folder) for folder in folders), strict=True)
    settings = [record.job.settings for record in found]
    flat = [each.flat() for each in settings]
    if unlike := [key for key in flat[0] if _same_for_rows(key) and any(each[key] != flat[0][key] for each in flat)]:
        raise ConfigError(f"{directory}: its runs differ in {', '.join(unlike)}; give the folder of one run")
    names = _names(settings, folders)
    rows = [Row(replace(record.job.spec, title=name), {}, (record,)) for name, record in zip(names, found, strict=True)]
    defaults = Settings().flat()
    given = [{key: each[key] for key in each if not KNOWN[key].instead and each[key] != defaults[key]} for each in flat]
    common = {key: value for key, value in given[0].items() if all(each[key] == value for each in flat)}
    own = [", ".join(f"{key} {yaml_text(each[key])}" for key in each if key not in common) for each in given]
    note = "; ".join(f"{name}: {text}" for name, text in zip(names, own, strict=True) if text)
    specs, seed = tuple(row.spec for row in rows), settings[0].seed
    reference = next((spec for spec in specs if spec.method == REFERENCE), specs[0])
    comparison = Comparison(Plan(common, specs, (seed,), directory, seed, note=note), rows, reference, "mean", 1)
    return Written(comparison, {"versions": versions[0]} if all(each == versions[0] for each in versions) else {})


def _same_for_rows(key: str) -> bool:
    """Whether rows can only be compared where this setting is the same."""
    return KNOWN[key].about in ("data", "experiment")


def _names(settings: Sequence[Settings], folders: Sequence[Path]) -> list[str]:
    """Titles of runs; those that would share one also have the name of their folder."""
    titles = [each.title for each in settings]
    return [
        title if titles.count(title) == 1 else f"{title} [{each.name}]"
        for title, each in zip(titles, folders, strict=True)
    ]


def _run(directory: Path) -> tuple[Mapping[str, str], Record]:
    try:
        settings, versions = _noted(directory)
    except (*UNREADABLE, DQNFedError) as error:
        raise ConfigError(f"{directory / RUN}: cannot be read as a run ({error})") from None
    spec = RowSpec(settings.method, title=settings.title)
    record = read_record(Job(spec, {}, settings.seed, settings, directory))
    if not record.good:
        raise ConfigError(f"{directory}: {record.reason}")
    return versions, record


def _row(item: Mapping[str, Any], directory: Path, last: int, figure: Figure) -> Row:
    axes = dict.fromkeys([*item["chosen"], *(key for trial in item["grid"] for key in trial["point"])], ())
    spec = RowSpec(item["method"], item["own"], axes, item["title"])
    records = []
    for run in item["runs"]:
        folder = directory / RUNS / Path(*Path(run["folder"]).parts[-DEPTH + 1 :])
        settings, fault = Settings(), ""
        try:
            settings, _ = _noted(folder)
        except (*UNREADABLE, DQNFedError) as error:
            fault = f"{folder / RUN}: its settings cannot be read ({error})"
        job = Job(spec, item["chosen"], run["seed"], settings, folder)
        records.append(read_record(job, run["reason"] or fault, last))
    trials = tuple(
        Trial(
            *(trial["point"], trial["seed"], trial["rounds"], trial["validation"], trial["failed"] or ""),
            trial.get("evaluations", 0),
            figure,
        )
        for trial in item["grid"]
    )
    return Row(spec, item["chosen"], tuple(records), trials, item["failed"] or "")


def _noted(folder: Path) -> tuple[Settings, dict[str, str]]:
    """The settings that `run.json` notes, without those of a later version, and the versions of the libraries."""
    found = json.loads((folder / RUN).read_text("utf-8"))
    known = {key: value for key, value in found["settings"].items() if key in KNOWN or is_retired(key)}
    return Settings.from_record(known), dict(found.get("versions", {}))
