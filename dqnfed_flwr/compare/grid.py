"""Which point of a grid is taken: by validation accuracy, never by the test part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dqnfed_flwr.compare.entries import Entry, Point
from dqnfed_flwr.compare.record import Accuracies, Record
from dqnfed_flwr.fairness import fairness_report

Select = Literal["mean", "worst10"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A point of a row's grid, and how it came out.

    Attributes
    ----------
    entry : Entry
        The row.
    point : Point
        Keys and values.
    seed, rounds : int
        Of its run.
    figures : dict[str, float]
        `mean` and `worst10` of the clients' validation accuracies, averaged over the evaluations that count; empty if
        it failed.
    reason : str
        Why it failed; else empty.
    """

    entry: Entry
    point: Point
    seed: int
    rounds: int
    figures: dict[str, float]
    reason: str = ""


def trial_of(record: Record, last: int = 1) -> Trial:
    """The run of a grid point, seen by the validation accuracies of its `last` evaluations alone."""
    job = record.job
    reports = [fairness_report(validation) for validation in validations_of(record, last)]
    reason = record.reason or ("" if reports else "no client was evaluated on its validation part")
    figures = {}
    if reports and not record.reason:
        figures = {key: sum(report[key] for report in reports) / len(reports) for key in ("mean", "worst10")}
    return Trial(job.entry, job.point, job.seed, job.settings.rounds, figures, reason)


def validations_of(record: Record, last: int) -> list[Accuracies]:
    """Validation accuracies at the `last` evaluations; after early stopping those of the best model, which it kept."""
    known = [event.validation for event in record.events if event.validation]
    if known and record.keeps_best:
        return [max(known, key=lambda values: sum(values.values()) / len(values))]  # of equals the first, as the run
    return list(known[-last:])


def choose(trials: Sequence[Trial], by: Select = "mean") -> int | None:
    """Place of the best of a row's trials; of equal ones the first, None if all failed."""
    best, place = -math.inf, None
    for index, trial in enumerate(trials):
        if trial.figures and trial.figures[by] > best:
            best, place = trial.figures[by], index
    return place
