"""What a comparison leaves on disk next to its runs: JSON, Markdown, and CSV of runs, evaluations and grids."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.existing_results import JSON
from dqnfed_flwr.compare.provenance import commits_of, environment, seconds_of
from dqnfed_flwr.compare.record import Record, mean_of
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.compare.row_specs import Point, pairs
from dqnfed_flwr.compare.tables import Table, markdown
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.fairness import ClientShift, fairness_report
from dqnfed_flwr.telemetry.events import TEST, finite
from dqnfed_flwr.types import ACCURACY, Figure

MARKDOWN = "comparison.md"
CSV, EVALUATIONS_CSV, GRID_CSV = "comparison.csv", "evaluations.csv", "grid.csv"
SCHEMA = 1
DIGITS = 6
"""Significant ones of the figures of an evaluation; those of a run have all."""
CsvLine = dict[str, Any]


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
    try:
        (directory / JSON).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
        (directory / MARKDOWN).write_text(markdown(tables), "utf-8")
        for name, lines in sheets.items():
            if lines:
                _write_csv(directory / name, lines)
            else:  # one of an earlier call is about other runs
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: the comparison cannot be written ({error.strerror})") from None
    return [directory / name for name in (JSON, MARKDOWN, *(name for name, lines in sheets.items() if lines))]


def run_lines(comparison: Comparison) -> list[CsvLine]:
    """A line a final run, with all its figures; one without a seed for a row that has none."""
    return [_run_line(row, record) for row in comparison.rows for record in row.records or (None,)]


def evaluation_lines(comparison: Comparison) -> list[CsvLine]:
    """A line for each evaluation on the way of each final run, in the order of its rounds.

    `exchanges`, `bytes_up`, `bytes_down`, `seconds` and `moved`, the rounds that moved the model, count from the
    beginning of the run; `rho` and `unharmed` are means over the rounds since the evaluation before, empty where none
    of them knows it. Figures of the clients are those of the model after that round.
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
    ratios: list[float] = []
    unharmed: list[float] = []
    for event in record.events:
        for key in ("exchanges", "bytes_up", "bytes_down", "moved"):
            total[key] += getattr(event, key)
        total["seconds"] += event.seconds.get("total", 0.0)
        ratios.append(event.improved_of_asked)
        unharmed.append(event.unharmed_ratio)
        if event.accuracy:
            figures = {"seconds": total["seconds"], "rho": mean_of(ratios), "unharmed": mean_of(unharmed)}
            figures |= fairness_report(event.accuracy, event.figure)
            place = {"seed": record.job.seed, "round": event.round, **total}
            short = {key: float(f"{value:.{DIGITS}g}") for key, value in figures.items()}
            yield {**_name(row, row.point), **place, **finite(short)}
            ratios, unharmed = [], []


def _write_csv(path: Path, lines: Sequence[CsvLine]) -> None:
    names = dict.fromkeys(name for line in lines for name in line)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows(lines)
