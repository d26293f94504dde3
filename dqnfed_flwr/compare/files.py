"""What a comparison leaves on disk next to its runs: JSON, Markdown and CSV; and a comparison read back from there."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.plan import JSON, RUNS, Job, Plan
from dqnfed_flwr.compare.provenance import commits_of, environment, seconds_of
from dqnfed_flwr.compare.record import Record, Trial, mean_of, read_record
from dqnfed_flwr.compare.results import REFERENCE, Comparison, Row
from dqnfed_flwr.compare.row_specs import Point, RowSpec, pairs, yaml_text
from dqnfed_flwr.compare.tables import Table, markdown
from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.errors import ConfigError, DQNFedError, writing
from dqnfed_flwr.fairness import ClientShift, fairness_report
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, RUN, UNREADABLE
from dqnfed_flwr.telemetry.events import TEST, RoundEvent, finite
from dqnfed_flwr.telemetry.totals import Totals
from dqnfed_flwr.types import ACCURACY, Figure

MARKDOWN = "comparison.md"
CSV, EVALUATIONS_CSV, GRID_CSV = "comparison.csv", "evaluations.csv", "grid.csv"
SCHEMA = 1
DIGITS = 6
"""Significant ones of the figures of an evaluation; those of a run have all."""
CsvLine = dict[str, Any]
DEPTH = 3
"""A run's folder is runs/METHOD/seed-S below that of its comparison."""


def as_json(comparison: Comparison, command: str, seconds: float) -> dict[str, Any]:
    """Everything, in what JSON can hold; numbers that are not finite become null."""
    plan = comparison.plan
    return {
        "schema": SCHEMA,
        "command": command,
        "seconds": seconds,
        "runs_seconds": seconds_of(comparison),
        **environment(),
        "commits": commits_of(comparison),
        "note": plan.note,
        "settings": dict(plan.config),
        "seeds": list(plan.seeds),
        "last": comparison.last,
        "select": comparison.select,
        **({} if comparison.figure == ACCURACY else {"figure": comparison.figure.to_json()}),
        "grid_seed": plan.grid_seed,
        "reference": comparison.reference.label if comparison.reference else None,
        "reference_place": comparison.rows.index(comparison.reference) if comparison.reference else None,
        "skipped": dict(plan.skipped),
        "methods": [_row_json(comparison, place) for place in range(len(comparison.rows))],
    }


def write_files(
    directory: Path, comparison: Comparison, figures: dict[str, Any], tables: Sequence[Table]
) -> list[Path]:
    """Write JSON, Markdown, and CSV of runs, evaluations and grids where there are any.

    Raises
    ------
    RunError
        If a file cannot be written.
    """
    sheets = {
        CSV: run_lines(comparison),
        EVALUATIONS_CSV: evaluation_lines(comparison),
        GRID_CSV: grid_lines(comparison),
    }
    with writing(directory):
        (directory / JSON).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
        (directory / MARKDOWN).write_text(markdown(tables), "utf-8")
        for name, lines in sheets.items():
            if lines:
                _write_csv(directory / name, lines)
            else:  # one of an earlier call is about other runs
                (directory / name).unlink(missing_ok=True)
    return [directory / name for name in (JSON, MARKDOWN, *(name for name, lines in sheets.items() if lines))]


def run_lines(comparison: Comparison) -> list[CsvLine]:
    """A line a final run, with all its figures; one without a seed for a row that has none."""
    return [_run_line(row, record) for row in comparison.rows for record in row.records or (None,)]


def evaluation_lines(comparison: Comparison) -> list[CsvLine]:
    """A line for each evaluation on the way of each final run, in the order of its rounds.

    `exchanges`, `bytes_up`, `bytes_down`, `seconds` and `moved`, the rounds that moved the model, count from the
    beginning of the run; `rho` and `unharmed` are means over the rounds since the evaluation before, `rho_moved` and
    `unharmed_moved` over those of them that moved the model; empty where none of them knows it. Figures of the clients
    are those of the model after that round.
    """
    return [line for row in comparison.rows for record in row.good for line in _evaluations(row, record)]


def grid_lines(comparison: Comparison) -> list[CsvLine]:
    """A line a point of the grids, with what the validation part says of it."""
    return [
        {
            **_name(row, trial.point),
            "seed": trial.seed,
            "rounds": trial.rounds,
            "validation_mean": trial.figures.get("mean", ""),
            "validation_worst10": trial.figures.get("worst10", ""),
            "chosen": str(row.chose(trial)).lower(),
            "reason": trial.reason,
        }
        for row in comparison.rows
        for trial in row.trials
    ]


def _row_json(comparison: Comparison, place: int) -> dict[str, Any]:
    row = comparison.rows[place]
    shift = comparison.shifts[place]
    return {
        "label": row.label,
        "title": row.spec.title,
        "method": row.spec.method,
        "own": dict(row.spec.own),
        "chosen": dict(row.point),
        "failed": row.failure or None,
        "figures": {key: finite(summary._asdict()) for key, summary in comparison.figures[place].items()},
        "difference": {key: finite(found._asdict()) for key, found in comparison.differences[place].items()},
        "against_fedavg": shift and finite(ClientShift(*(each.mean for each in shift))._asdict()),
        "runs": [_run_json(record, comparison.figure) for record in row.records],
        "grid": [
            {
                "point": dict(trial.point),
                "seed": trial.seed,
                "rounds": trial.rounds,
                "evaluations": trial.evaluations,
                "validation": trial.figures,
                "failed": trial.reason or None,
                "chosen": row.chose(trial),
            }
            for trial in row.trials
        ],
    }


def _run_json(record: Record, figure: Figure) -> dict[str, Any]:
    return {
        "seed": record.job.seed,
        "status": record.status,
        "reason": record.reason or None,
        "folder": str(record.job.folder),
        "figures": finite(record.figures),
        ("accuracies" if figure == ACCURACY else TEST): {
            str(client): value for client, value in record.accuracies.items()
        },
    }


def _name(row: Row, point: Point) -> CsvLine:
    return {"method": row.spec.method, "title": row.spec.title, "setting": ";".join(pairs({**row.spec.own, **point}))}


def _run_line(row: Row, record: Record | None) -> CsvLine:
    if record is None:
        return {**_name(row, row.point), "seed": "", "status": "failed", "reason": row.failure}
    outcome = {"seed": record.job.seed, "status": record.status, "reason": record.reason}
    return {**_name(row, row.point), **outcome, **finite(record.figures)}


def _evaluations(row: Row, record: Record) -> Iterator[CsvLine]:
    total = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0, "moved": 0, "seconds": 0.0}
    since: list[RoundEvent] = []
    for event in record.events:
        for key in ("exchanges", "bytes_up", "bytes_down"):
            total[key] += getattr(event.cost, key)
        total["moved"] += event.moved
        total["seconds"] += event.cost.seconds.get("total", 0.0)
        since.append(event)
        if event.evaluated.test:
            figures = {"seconds": total["seconds"], **_ratios(since)}
            figures |= fairness_report(event.evaluated.test, event.evaluated.figure)
            place = {"seed": record.job.seed, "round": event.round, **total}
            short = {key: float(f"{value:.{DIGITS}g}") for key, value in figures.items()}
            yield {**_name(row, row.point), **place, **finite(short)}
            since = []


def _ratios(events: Sequence[RoundEvent]) -> dict[str, float]:
    """Means over these rounds, and over those of them that moved the model."""
    totals = Totals.of(events)
    return {
        "rho": mean_of(event.improved_of_asked for event in events),
        "unharmed": mean_of(event.unharmed_ratio for event in events),
        "rho_moved": totals.improved_of_asked,
        "unharmed_moved": totals.unharmed_ratio,
    }


def _write_csv(path: Path, lines: Sequence[CsvLine]) -> None:
    names = dict.fromkeys(name for line in lines for name in line)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows(lines)


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
        figure, last = Figure.from_json(found.get("figure")), int(found["last"])
        rows = [_row(item, directory, last, figure) for item in found["methods"]]
        specs = tuple(row.spec for row in rows)
        place = found["reference_place"]
        reference = None if place is None else specs[place]
        plan = Plan(
            found["settings"],
            specs,
            tuple(found["seeds"]),
            directory,
            int(found["grid_seed"]),
            skipped=found["skipped"],
            note=found["note"],
        )
        return Written(Comparison(plan, rows, reference, found["select"], last), found)
    except UNREADABLE as error:
        raise ConfigError(f"{directory / JSON}: cannot be read as a comparison ({error})") from None


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
            trial["evaluations"],
            figure,
        )
        for trial in item["grid"]
    )
    return Row(spec, item["chosen"], tuple(records), trials, item["failed"] or "")


def _noted(folder: Path) -> tuple[Settings, dict[str, str]]:
    """The settings that `run.json` notes, and the versions of the libraries."""
    found = json.loads((folder / RUN).read_text("utf-8"))
    return Settings.from_record(found["settings"]), dict(found["versions"])
