"""A comparison that took place: its rows, with what each is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from dqnfed_flwr.compare.figures import Interval, Summary, difference_of, over_seeds, shifts, summaries
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.record import Record, Select, Trial
from dqnfed_flwr.compare.row_specs import Point, RowSpec
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.table import profile_of
from dqnfed_flwr.types import ACCURACY, Figure, Float64Array

REFERENCE, BASELINE = "dqn-fed", "fedavg"
COMPARED = ("mean", "worst10")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A method of the comparison, over its seeds.

    Attributes
    ----------
    spec, point : RowSpec, Point
        What was asked for, and what its grid chose; the latter is empty where nothing was searched.
    records : tuple[Record, ...]
        Its final runs, one a seed; empty if every trial failed.
    trials : tuple[Trial, ...]
        Its grid.
    failure : str
        Why every trial failed; empty if one did not.
    """

    spec: RowSpec
    point: Point
    records: tuple[Record, ...]
    trials: tuple[Trial, ...] = ()
    failure: str = ""

    @property
    def label(self) -> str:
        """Its name in tables and plots."""
        return self.spec.named(self.point)

    @property
    def personal(self) -> bool:
        """Whether its figures are those of personal models, so that they are not ranked."""
        return profile_of(self.spec.method).personal

    @property
    def client_figures(self) -> Float64Array:
        """The figure of every client in every evaluation of every good run, as it is shown: accuracy in per cent."""
        found = [value for record in self.good for each in record.evaluations for value in each.values()]
        return next((record.figure.scale for record in self.good), 1.0) * np.array(found, dtype=np.float64)

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

    def chose(self, trial: Trial) -> bool:
        """Whether the final runs have the settings of this trial."""
        return not self.failure and trial.point == self.point


@dataclass(frozen=True)
class Comparison:
    """Rows in the order asked for, and what follows from them.

    The others are compared with the row of `against`. Grids chose by the validation figure `select`; the `last`
    evaluations of each run count.
    """

    plan: Plan
    rows: Sequence[Row]
    against: RowSpec | None
    select: Select
    last: int

    @cached_property
    def figure(self) -> Figure:
        """What clients were evaluated by: the same in all rows, for they have the same data."""
        trials = (trial.figure for row in self.rows for trial in row.trials if trial.figures)
        return next((record.figure for record in self.records), next(trials, ACCURACY))

    @cached_property
    def reference(self) -> Row | None:
        """What the others are compared with."""
        return next((row for row in self.rows if row.spec == self.against), None)

    @cached_property
    def baseline(self) -> Row | None:
        """FedAvg, by which clients suffer or perform well; of several rows the first without settings of its own."""
        found = plainest([row.spec for row in self.rows], BASELINE)
        return next((row for row in self.rows if row.spec is found), None)

    @cached_property
    def figures(self) -> list[dict[str, Summary]]:
        """Of each row."""
        return [summaries(row.records) for row in self.rows]

    @cached_property
    def differences(self) -> list[dict[str, Interval]]:
        """`mean` and `worst10` of each row less the reference's; empty for the reference and for failed rows."""
        return [_differences(row, self.reference) for row in self.rows]

    @cached_property
    def shifts(self) -> list[tuple[Summary, Summary] | None]:
        """Of each row against the baseline; None for itself, and where they share no client."""
        base = self.baseline
        return [shifts(row.records, base.records) if base and row is not base else None for row in self.rows]

    @property
    def records(self) -> list[Record]:
        """The final runs that came to their end."""
        return [record for row in self.rows for record in row.good]

    def comparable(self, places: Mapping[int, T]) -> dict[int, T]:
        """Those of `places` whose rows have one model for all; all of them where no row has."""
        found = {place: value for place, value in places.items() if not self.rows[place].personal}
        return found or dict(places)

    def ranked(self, values: Sequence[float]) -> list[float]:
        """`values`, one a row, with NaN for those that cannot be ranked against the others."""
        return [math.nan if row.personal else value for row, value in zip(self.rows, values, strict=True)]


def reference_of(plan: Plan, wanted: str | None) -> RowSpec | None:
    """The row that the others are compared with: the one named, else DQN-Fed, else none.

    Of several rows of a method, the first without settings of its own: one that was tried out on the same runs would
    have an advantage.

    Raises
    ------
    ConfigError
        If the one named is not among the methods.
    """
    name = wanted or REFERENCE
    named = [spec for spec in plan.specs if name == spec.given]
    found = named[0] if named else plainest(plan.specs, name)
    if wanted and not found:
        raise ConfigError(f"--reference: found {wanted!r}; allowed: {', '.join(e.given for e in plan.specs)}")
    return found


def plainest(specs: Sequence[RowSpec], method: str) -> RowSpec | None:
    """The first row of a method that has no settings of its own, else its first; None where it has no row."""
    return min((spec for spec in specs if spec.method == method), key=lambda spec: bool(spec.own), default=None)


def _differences(row: Row, reference: Row | None) -> dict[str, Interval]:
    if reference is None or reference is row:
        return {}
    found = {key: over_seeds(row.records, reference.records, difference_of(key)) for key in COMPARED}
    return {key: each for key, each in found.items() if each is not None}
