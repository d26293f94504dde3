"""What a comparison leaves on disk beside its runs."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.environment import environment
from dqnfed_flwr.compare.lines import evaluation_lines, grid_lines, run_lines
from dqnfed_flwr.compare.provenance import commits_of, seconds_of
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.sheets import Table, markdown
from dqnfed_flwr.errors import RunError

JSON, MARKDOWN = "comparison.json", "comparison.md"
CSV, EVALUATIONS_CSV, GRID_CSV = "comparison.csv", "evaluations.csv", "grid.csv"
SCHEMA = 1


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
        "grid_seed": plan.grid_seed,
        "reference": comparison.reference.label if comparison.reference else None,
        "reference_place": comparison.rows.index(comparison.reference) if comparison.reference else None,
        "skipped": dict(plan.skipped),
        "methods": [_row(comparison, place) for place in range(len(comparison.rows))],
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
            else:  # one of an earlier call would tell of other runs
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: the comparison cannot be written ({error.strerror})") from None
    return [directory / name for name in (JSON, MARKDOWN, *(name for name, lines in sheets.items() if lines))]


def _row(comparison: Comparison, place: int) -> dict[str, Any]:
    row = comparison.rows[place]
    shift = comparison.shifts[place]
    return {
        "label": row.label,
        "title": row.entry.title,
        "method": row.entry.method,
        "own": dict(row.entry.own),
        "chosen": dict(row.point),
        "failed": row.failure or None,
        "figures": {
            key: {"mean": _finite(summary.mean), "std": _finite(summary.std)}
            for key, summary in comparison.figures[place].items()
        },
        "difference": {
            key: {bound: _finite(value) for bound, value in found._asdict().items()}
            for key, found in comparison.differences[place].items()
        },
        "against_fedavg": shift
        and {
            "suffering_improved": _finite(shift[0].mean),
            "well_performing_degraded": _finite(shift[1].mean),
        },
        "runs": [_run(record) for record in row.records],
        "grid": [
            {
                "point": dict(trial.point),
                "seed": trial.seed,
                "rounds": trial.rounds,
                "validation": trial.figures,
                "failed": trial.reason or None,
                "chosen": not row.failure and trial.point == row.point,
            }
            for trial in row.trials
        ],
    }


def _run(record: Record) -> dict[str, Any]:
    return {
        "seed": record.job.seed,
        "status": record.status,
        "reason": record.reason or None,
        "folder": str(record.job.folder),
        "figures": {key: _finite(value) for key, value in record.figures.items()},
        "accuracies": {str(client): value for client, value in record.accuracies.items()},
    }


def _write_csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    names = dict.fromkeys(name for line in lines for name in line)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="")
        writer.writeheader()
        writer.writerows(lines)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
