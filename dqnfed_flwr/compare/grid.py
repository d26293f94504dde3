"""Which point of a grid is taken: by validation accuracy, never by the test part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dqnfed_flwr.compare.entries import Entry, Point
from dqnfed_flwr.compare.record import Record
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
        `mean` and `worst10` of the clients' validation accuracies; empty if it failed.
    reason : str
        Why it failed; else empty.
    """

    entry: Entry
    point: Point
    seed: int
    rounds: int
    figures: dict[str, float]
    reason: str = ""


def trial_of(record: Record) -> Trial:
    """The run of a grid point, seen by its validation accuracies alone."""
    job = record.job
    validation = validation_of(record)
    reason = record.reason or ("" if validation else "no client was evaluated on its validation part")
    figures = {}
    if validation and not record.reason:
        report = fairness_report(validation)
        figures = {"mean": report["mean"], "worst10": report["worst10"]}
    return Trial(job.entry, job.point, job.seed, job.settings.rounds, figures, reason)


def validation_of(record: Record) -> dict[int, float]:
    """Validation accuracies of the model that the run ended with; after early stopping that is the best one."""
    known = [event.validation for event in record.events if event.validation]
    if not known:
        return {}
    if record.job.settings.early_stopping:
        return max(known, key=lambda values: sum(values.values()) / len(values))  # the first of equals, as the run does
    return known[-1]


def choose(trials: Sequence[Trial], by: Select = "mean") -> int | None:
    """Place of the best of a row's trials; of equal ones the first, None if all failed."""
    best, place = -math.inf, None
    for index, trial in enumerate(trials):
        if trial.figures and trial.figures[by] > best:
            best, place = trial.figures[by], index
    return place
