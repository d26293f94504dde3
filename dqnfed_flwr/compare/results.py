"""A comparison that took place: its rows, with what each is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.special import stdtrit

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.record import Record, Select, Trial
from dqnfed_flwr.compare.row_specs import Point, RowSpec
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.fairness import suffering_and_well_performing
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ACCURACY, Figure, Float64Array

REFERENCE, BASELINE = "dqn-fed", "fedavg"
COMPARED = ("mean", "worst10")
T = TypeVar("T")
LEVEL = 0.95
UNKNOWN = "–"
Difference = Callable[[Record, Record], float]
"""From a run and another one with the same seed to a number."""


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


class Summary(NamedTuple):
    """Mean and standard deviation over seeds (n - 1); NaN where they are not known, such as the latter of one seed."""

    mean: float = math.nan
    std: float = math.nan

    def times(self, scale: float) -> Summary:
        """The same in another unit."""
        return Summary(scale * self.mean, scale * self.std)

    def text(self, digits: int) -> str:
        """Mean ± standard deviation; a dash for a mean that is not known, nothing for such a deviation."""
        if math.isnan(self.mean):
            return UNKNOWN
        mean = f"{self.mean:.{digits}f}"
        return mean if math.isnan(self.std) else f"{mean} ± {self.std:.{digits}f}"


class Interval(NamedTuple):
    """An estimate and its interval; the bounds are NaN where they are not known."""

    low: float
    estimate: float
    high: float

    @property
    def mark(self) -> str:
        """What stands behind an interval that excludes 0; else empty."""
        return " ▲" if self.low > 0 else " ▼" if self.high < 0 else ""

    def text(self, scale: float, digits: int = 2) -> str:
        """Estimate and bounds, each times `scale`; without bounds where there are none."""
        low, estimate, high = (f"{scale * value:+.{digits}f}" for value in self)
        return estimate if math.isnan(self.low) else f"{estimate} [{low}, {high}]"


def summarise(values: Sequence[float]) -> Summary:
    """Mean and standard deviation of the values that are known."""
    known = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not known.size:
        return Summary()
    return Summary(float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else math.nan)


def summaries(records: Sequence[Record]) -> dict[str, Summary]:
    """Every figure of a row over its seeds that came to an end; empty if none did."""
    good = [record.figures for record in records if record.good]
    return {key: summarise([figures[key] for figures in good]) for key in (good[0] if good else ())}


def ranks(values: Sequence[float], *, higher: bool | None, digits: int) -> list[int]:
    """1 for the best, 2 for the second best, 0 for the others; values equal to so many digits share a rank.

    Nothing is marked where fewer than two values differ, or where `higher` is None: neither is better.
    """
    rounded = [math.nan if math.isnan(value) else round(value, digits) for value in values]
    order = sorted({value for value in rounded if not math.isnan(value)}, reverse=bool(higher))
    if len(order) < 2 or higher is None:
        return [0] * len(values)
    places = {order[0]: 1, order[1]: 2}
    return [places.get(value, 0) for value in rounded]


def paired(ours: Sequence[Record], theirs: Sequence[Record]) -> list[tuple[Float64Array, Float64Array]]:
    """The clients' figures in two rows, for the same seeds and clients, a pair of arrays [K] a seed."""
    by_seed = {record.job.seed: record.accuracies for record in theirs}
    pairs = []
    for record in ours:
        other = by_seed.get(record.job.seed, {})
        clients = sorted(record.accuracies.keys() & other.keys())
        if clients:
            pairs.append((np.array([record.accuracies[k] for k in clients]), np.array([other[k] for k in clients])))
    return pairs


def over_seeds(ours: Sequence[Record], theirs: Sequence[Record], figure: Difference) -> Interval | None:
    """A difference of two rows, paired by seed; None if no seed has a good run of both."""
    others = {record.job.seed: record for record in theirs if record.good}
    return interval(
        [figure(record, others[record.job.seed]) for record in ours if record.good and record.job.seed in others]
    )


def difference_of(key: str) -> Difference:
    """Of a figure of two runs with the same seed: ours less theirs."""
    return lambda ours, theirs: ours.figures[key] - theirs.figures[key]


def interval(values: Sequence[float]) -> Interval | None:
    """Mean of the values that are known, one a seed, with Student's 95 % interval; None if none is known.

    A seed decides split, start and mini-batches, so that seeds are the independent repetitions; clients and rounds of
    one run are not. A single value has no bounds.
    """
    known = sum(not math.isnan(value) for value in values)
    if not known:
        return None
    mean, std = summarise(values)
    reach = float(stdtrit(known - 1, (1 + LEVEL) / 2) * std / math.sqrt(known))
    return Interval(mean - reach, mean, mean + reach)


def shifts(records: Sequence[Record], baseline: Sequence[Record]) -> tuple[Summary, Summary] | None:
    """Suffering clients improved and well-performing ones degraded against runs of the same seeds, over seeds."""
    figure = next((record.figure for record in records if record.good), ACCURACY)
    found = [suffering_and_well_performing(*pair, figure) for pair in paired(records, baseline)]
    if not found:
        return None
    improved, degraded = zip(*found, strict=True)
    return summarise(improved), summarise(degraded)


def mean_figure(event: RoundEvent) -> float:
    """Mean test accuracy over clients, or that of the run's figure; NaN where there was no evaluation."""
    return float(np.mean(list(event.evaluated.test.values()))) if event.evaluated.test else math.nan
