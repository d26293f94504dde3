"""The tables of a comparison: which figures stand in them, how they are ranked, and what is said below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from dqnfed_flwr.compare.entries import show
from dqnfed_flwr.compare.figures import Interval, Summary, ranks, value_of
from dqnfed_flwr.compare.grid import Trial
from dqnfed_flwr.compare.plan import LOG
from dqnfed_flwr.compare.provenance import mixture_notes
from dqnfed_flwr.compare.remarks import remarks
from dqnfed_flwr.compare.results import COMPARED, Comparison, Row, baseline_of
from dqnfed_flwr.compare.sheets import Cell, Table

UNKNOWN = "–"
REASON = 40
"""Letters of a reason in a cell; the notes have all of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the main table; `higher` says which is better, None that neither is."""

    key: str
    heading: str
    digits: int
    higher: bool | None
    scale: float = 1.0

    def text(self, summary: Summary) -> str:
        """Mean ± standard deviation."""
        if math.isnan(summary.mean):
            return UNKNOWN
        mean = f"{self.scale * summary.mean:.{self.digits}f}"
        return mean if math.isnan(summary.std) else f"{mean} ± {self.scale * summary.std:.{self.digits}f}"


FAIRNESS = (
    Column("mean", "mean", 2, True, 100),
    Column("std", "σ", 2, False, 100),
    Column("worst10", "worst 10 %", 2, True, 100),
    Column("best10", "best 10 %", 2, True, 100),
    Column("worst", "worst", 2, True, 100),
    Column("angle_deg", "angle °", 2, False),
    Column("kl_uniform", "KL", 5, False),
)
COST = (
    Column("rho_mean", "ρ mean", 3, True),
    Column("rho_min", "ρ minimum", 3, True),
    Column("unharmed_mean", "not harmed", 3, True),
    Column("rounds", "rounds", 1, None),
    Column("rounds_moved", "moved", 1, None),
    Column("heard_mean", "heard", 1, None),
    Column("overruled", "overruled", 1, None),
    Column("exchanges_per_round", "exchanges a round", 2, False),
    Column("seconds_per_round", "seconds a round", 3, False),
)


def tables(comparison: Comparison) -> list[Table]:
    """All tables that have something to say."""
    first = _figures_table(comparison, "Test accuracy of the clients, in percent", FAIRNESS, _main_notes(comparison))
    second = _figures_table(comparison, "Losses that did not rise (ρ), and what it took", COST, ())
    found = [difference_table(comparison), shift_table(comparison), grid_table(comparison)]
    return [first, second, *(table for table in found if table)]


def _figures_table(comparison: Comparison, title: str, columns: Sequence[Column], notes: tuple[str, ...]) -> Table:
    """A row a method, mean ± standard deviation over seeds, the best two of each column marked."""
    shown = [_cells(comparison, column) for column in columns]
    rows = tuple(
        (Cell(row.label), Cell(_runs(row, len(comparison.plan.seeds))), *cells)
        for row, cells in zip(comparison.rows, zip(*shown, strict=True), strict=True)
    )
    return Table(title, ("method", "runs", *(column.heading for column in columns)), rows, notes)


def _cells(comparison: Comparison, column: Column) -> list[Cell]:
    found = [value_of(figures, column.key) for figures in comparison.figures]
    marks = [0] * len(found)
    if column.higher is not None:
        values = [column.scale * summary.mean for summary in found]
        marks = ranks(comparison.ranked(values), higher=column.higher, digits=column.digits)
    return [Cell(column.text(summary), mark) for summary, mark in zip(found, marks, strict=True)]


def _runs(row: Row, wanted: int) -> str:
    return f"{len(row.good)} of {wanted}" if row.good else f"failed: {shorten(row.reason, REASON)}"


def difference_table(comparison: Comparison) -> Table | None:
    """Each row less the reference, with intervals."""
    reference = comparison.reference
    if reference is None or not any(comparison.differences):
        return None
    rows = tuple(
        (Cell(row.label), *(Cell(_difference(found[key], row, reference) if found else UNKNOWN) for key in COMPARED))
        for row, found in zip(comparison.rows, comparison.differences, strict=True)
        if row is not reference
    )
    return Table(
        f"Difference to {reference.label}, in percentage points, with 95 % intervals over seeds",
        ("method", "mean", "worst 10 %"),
        rows,
        (
            "Paired by seed: Student's interval of the seeds' differences; one seed has none. ▲ and ▼: the interval "
            "excludes 0; above means better than the reference. Not corrected for the number of rows.",
        ),
    )


def _difference(found: Interval, row: Row, reference: Row) -> str:
    """An interval, marked where one is better than the other: a model for all and a personal one are not the same."""
    return interval_text(found) + (decision_mark(found) if row.personal == reference.personal else "")


def shift_table(comparison: Comparison) -> Table | None:
    """What became of the clients that FedAvg served badly and well."""
    if not any(comparison.shifts):
        return None
    baseline = baseline_of(comparison.rows)
    name = baseline.label if baseline else ""
    percent = Column("", "", 1, None, 100)
    rows = tuple(
        (Cell(row.label), *(Cell(percent.text(summary)) for summary in shift))
        for row, shift in zip(comparison.rows, comparison.shifts, strict=True)
        if shift
    )
    return Table(
        f"Clients against {name} with the same seed",
        ("method", "suffering, improved %", "well-performing, degraded %"),
        rows,
        (f"A client suffers where {name} leaves it below its mean over clients; the others perform well.",),
    )


def grid_table(comparison: Comparison) -> Table | None:
    """Every point that was tried, the chosen ones marked."""
    rows = []
    for row in comparison.rows:
        for trial in row.trials:
            point = ", ".join(f"{key}={show(value)}" for key, value in trial.point.items())
            chosen = row.point == trial.point and not row.failure
            figures = [
                Cell(f"{100 * trial.figures[key]:.2f}" if trial.figures else UNKNOWN) for key in ("mean", "worst10")
            ]
            remark = f"failed: {trial.reason}" if trial.reason else ("chosen" if chosen else "")
            rows.append((Cell(row.entry.title), Cell(point, int(chosen)), *figures, Cell(remark)))
    if not rows:
        return None
    plan = comparison.plan
    rounds = sorted({trial.rounds for row in comparison.rows for trial in row.trials})
    alike = [row.entry.title for row in comparison.rows if _alike(row.trials)]
    return Table(
        f"Search by validation accuracy ({comparison.select})",
        ("method", "settings", "validation mean %", "validation worst 10 %", ""),
        tuple(rows),
        (
            f"Seed {plan.grid_seed}, {' or '.join(map(str, rounds))} rounds. The test part has no say in the choice.",
            *(f"{title}: all points came out alike; the first was taken." for title in alike),
        ),
    )


def _alike(trials: Sequence[Trial]) -> bool:
    """Whether several points have the same figures, so that nothing was chosen."""
    return len(trials) > 1 and bool(trials[0].figures) and all(t.figures == trials[0].figures for t in trials)


def interval_text(interval: Interval) -> str:
    """Percentage points; without bounds where there are none."""
    low, estimate, high = (100 * value for value in interval)
    return f"{estimate:+.2f}" if math.isnan(low) else f"{estimate:+.2f} [{low:+.2f}, {high:+.2f}]"


def decision_mark(interval: Interval) -> str:
    """What stands behind an interval that excludes 0."""
    if not interval.excludes_zero:
        return ""
    return " ▲" if interval.low > 0 else " ▼"


def _main_notes(comparison: Comparison) -> tuple[str, ...]:
    notes = [comparison.plan.note] if comparison.plan.note else []
    notes.append("Mean ± standard deviation over seeds. Bold: best; underlined or slanted: second best.")
    notes += remarks(comparison)
    notes += _full_steps(comparison)
    notes += [
        f"{row.label}: {text}" for row in comparison.rows for text in row.failures or row.reason.split("\n") if text
    ]
    if any(row.failures for row in comparison.rows):
        notes.append(f"{LOG} in the folder of a run that failed has more about it.")
    notes += [f"{method} was left out: {reason}" for method, reason in comparison.plan.skipped.items()]
    return (*notes, *mixture_notes(comparison))


def _full_steps(comparison: Comparison) -> list[str]:
    """That local SGD is hardly any, with the rows that it concerns."""
    found = [row.label for row in comparison.rows if any(record.job.settings.one_full_step for record in row.good)]
    text = "one full-batch step a round, which is FedSGD; set local.batch-size or local.epochs"
    return [f"{', '.join(found)}: {text}"] if found else []
