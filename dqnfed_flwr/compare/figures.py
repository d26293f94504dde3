"""Figures of a comparison over seeds: pure functions of what its runs say of their clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.fairness import suffering_and_well_performing
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ACCURACY, Float64Array

LEVEL = 0.95
UNKNOWN = "–"
Difference = Callable[[Record, Record], float]
"""From a run and another one with the same seed to a number."""


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
    return float(np.mean(list(event.accuracy.values()))) if event.accuracy else math.nan
