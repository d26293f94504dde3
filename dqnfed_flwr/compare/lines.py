"""Lines of the CSV files of a comparison: a run, an evaluation or a point of a grid each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dqnfed_flwr.compare.entries import Point, show
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.fairness import fairness_report

Line = dict[str, Any]
DIGITS = 6
"""Significant ones of the figures of an evaluation; those of a run have all."""


def run_lines(comparison: Comparison) -> list[Line]:
    """A line a final run, with all its figures; one without a seed for a row that has none."""
    return [_run(row, record) for row in comparison.rows for record in row.records or (None,)]


def evaluation_lines(comparison: Comparison) -> list[Line]:
    """A line for each evaluation on the way of each final run, in the order of its rounds.

    `exchanges`, `bytes_up`, `bytes_down`, `seconds` and `moved`, the rounds that moved the model, count from the
    beginning of the run; `rho` and `unharmed` are means over the rounds since the evaluation before, empty where none
    of them knows it. Figures of accuracy are those of the model after that round.
    """
    return [line for row in comparison.rows for record in row.good for line in _evaluations(row, record)]


def grid_lines(comparison: Comparison) -> list[Line]:
    """A line a point of the grids, with what the validation part says of it."""
    return [
        {
            **_name(row, trial.point),
            "seed": trial.seed,
            "rounds": trial.rounds,
            "validation_mean": trial.figures.get("mean", ""),
            "validation_worst10": trial.figures.get("worst10", ""),
            "chosen": str(not row.failure and trial.point == row.point).lower(),
            "reason": trial.reason,
        }
        for row in comparison.rows
        for trial in row.trials
    ]


def _name(row: Row, point: Point) -> Line:
    text = ";".join(f"{key}={show(value)}" for key, value in {**row.entry.own, **point}.items())
    return {"method": row.entry.method, "title": row.entry.title, "setting": text}


def _run(row: Row, record: Record | None) -> Line:
    if record is None:
        return {**_name(row, row.point), "seed": "", "status": "failed", "reason": row.failure}
    figures = {key: value if math.isfinite(value) else None for key, value in record.figures.items()}
    told = {"seed": record.job.seed, "status": record.status, "reason": record.reason}
    return {**_name(row, row.point), **told, **figures}


def _evaluations(row: Row, record: Record) -> Iterator[Line]:
    total = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0, "moved": 0, "seconds": 0.0}
    ratios: list[float] = []
    unharmed: list[float] = []
    for event in record.events:
        for key in ("exchanges", "bytes_up", "bytes_down", "moved"):
            total[key] += getattr(event, key)
        total["seconds"] += event.seconds.get("total", 0.0)
        ratios += [event.improved_ratio] * math.isfinite(event.improved_ratio)
        unharmed += [event.unharmed_ratio] * math.isfinite(event.unharmed_ratio)
        if event.accuracy:
            figures = {"rho": _mean(ratios), "unharmed": _mean(unharmed), **fairness_report(event.accuracy)}
            place = {"seed": record.job.seed, "round": event.round, **total, "seconds": _short(total["seconds"])}
            yield {**_name(row, row.point), **place, **{key: _short(value) for key, value in figures.items()}}
            ratios, unharmed = [], []


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
