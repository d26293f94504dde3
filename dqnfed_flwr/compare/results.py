"""A comparison that took place: its rows, with what each is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dqnfed_flwr.compare.entries import Entry, Point
from dqnfed_flwr.compare.figures import (
    Interval,
    Summary,
    hierarchical_bootstrap,
    mean_difference,
    paired,
    shifts,
    summaries,
    worst10_difference,
)
from dqnfed_flwr.compare.grid import Select, Trial
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.errors import ConfigError

REFERENCE, BASELINE = "dqn-fed", "fedavg"


@dataclass(frozen=True, slots=True)
class Row:
    """A method of the comparison, over its seeds.

    Attributes
    ----------
    entry : Entry
        As it was asked for.
    point : Point
        What the grid chose; empty where nothing was searched.
    records : tuple[Record, ...]
        Its final runs, one a seed; empty if every trial failed.
    trials : tuple[Trial, ...]
        Its grid.
    failure : str
        Why there is no final run.
    """

    entry: Entry
    point: Point
    records: tuple[Record, ...]
    trials: tuple[Trial, ...] = ()
    failure: str = ""

    @property
    def label(self) -> str:
        """Its name in tables and plots."""
        return self.entry.named(self.point)

    @property
    def good(self) -> list[Record]:
        """The runs that came to their end."""
        return [record for record in self.records if record.good]

    @property
    def failures(self) -> list[str]:
        """The runs that went wrong."""
        return [f"seed {record.job.seed} failed: {record.reason}" for record in self.records if not record.good]

    @property
    def reason(self) -> str:
        """Why there is no figure at all; empty if there is one."""
        return "" if self.good else self.failure or next((record.reason for record in self.records), "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows and what follows from them.

    Attributes
    ----------
    plan : Plan
        What was asked for.
    rows : tuple[Row, ...]
        In the order asked for.
    reference : Row | None
        What the others are compared with.
    select : Select
        By which validation figure the grids chose.
    last : int
        Evaluations behind each accuracy.
    figures : tuple[dict[str, Summary], ...]
        Of each row.
    differences : tuple[dict[str, Interval], ...]
        `mean` and `worst10` of each row less the reference's; empty for the reference and for failed rows.
    shifts : tuple[tuple[Summary, Summary] | None, ...]
        Of each row against FedAvg.
    """

    plan: Plan
    rows: tuple[Row, ...]
    reference: Row | None
    select: Select
    last: int
    figures: tuple[dict[str, Summary], ...]
    differences: tuple[dict[str, Interval], ...]
    shifts: tuple[tuple[Summary, Summary] | None, ...] = field(default=())


def compare_rows(plan: Plan, rows: Sequence[Row], reference: Entry | None, select: Select, last: int) -> Comparison:
    """Put figures and comparisons to the rows."""
    anchor = next((row for row in rows if row.entry == reference), None)
    baseline = next((row for row in rows if row.entry.method == BASELINE), None)
    return Comparison(
        plan,
        tuple(rows),
        anchor,
        select,
        last,
        tuple(summaries(row.records) for row in rows),
        tuple(_differences(row, anchor) for row in rows),
        tuple(shifts(row.records, baseline.records) if baseline and row is not baseline else None for row in rows),
    )


def reference_of(plan: Plan, wanted: str | None) -> Entry | None:
    """The row that the others are compared with: the one named, else the first of DQN-Fed, else none.

    Raises
    ------
    ConfigError
        If the one named is not among the methods.
    """
    name = wanted or REFERENCE
    found = [entry for entry in plan.entries if name == entry.spec] or [
        entry for entry in plan.entries if name == entry.method
    ]
    if wanted and not found:
        raise ConfigError(f"--reference: found {wanted!r}; allowed: {', '.join(e.spec for e in plan.entries)}")
    return found[0] if found else None


def _differences(row: Row, reference: Row | None) -> dict[str, Interval]:
    pairs = paired(row.records, reference.records) if reference and reference is not row else []
    if not pairs:
        return {}
    return {
        "mean": hierarchical_bootstrap(pairs, mean_difference),
        "worst10": hierarchical_bootstrap(pairs, worst10_difference),
    }
