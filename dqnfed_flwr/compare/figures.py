"""Figures of a comparison: pure functions of the runs' accuracies and events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.fairness import ClientShift, suffering_and_well_performing
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

LEVEL = 0.95
FAR, MANY = 3.0, 8
"""Of so many points, those farther below the lower quartile than so many interquartile ranges are left out of sight."""
Difference = Callable[[Record, Record], float]
"""From a run and another one with the same seed to a number."""


class Summary(NamedTuple):
    """Mean and standard deviation over seeds (n - 1); the latter is NaN with one seed."""

    mean: float
    std: float


class Interval(NamedTuple):
    """An estimate and its interval; the bounds are NaN where they are not known."""

    low: float
    estimate: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0


def summarise(values: Sequence[float]) -> Summary:
    """Mean and standard deviation of the values that are known."""
    known = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not known.size:
        return Summary(math.nan, math.nan)
    return Summary(float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else math.nan)


def summaries(records: Sequence[Record]) -> dict[str, Summary]:
    """Every figure of a row over its seeds that came to an end; empty if none did."""
    good = [record.figures for record in records if record.good]
    return {key: summarise([figures[key] for figures in good]) for key in (good[0] if good else ())}


def ranks(values: Sequence[float], *, higher: bool, digits: int) -> list[int]:
    """1 for the best, 2 for the second best, 0 for the others; values equal to so many digits share a rank.

    Nothing is marked where fewer than two values differ.
    """
    rounded = [math.nan if math.isnan(value) else round(value, digits) for value in values]
    order = sorted({value for value in rounded if not math.isnan(value)}, reverse=higher)
    if len(order) < 2:
        return [0] * len(values)
    places = {order[0]: 1, order[1]: 2}
    return [places.get(value, 0) for value in rounded]


def paired(ours: Sequence[Record], theirs: Sequence[Record]) -> list[tuple[Float64Array, Float64Array]]:
    """Accuracies of two rows for the same seeds and clients, a pair of arrays [K] a seed."""
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
    known = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not known.size:
        return None
    mean = float(known.mean())
    if known.size == 1:
        return Interval(math.nan, mean, math.nan)
    reach = float(stdtrit(known.size - 1, (1 + LEVEL) / 2) * known.std(ddof=1) / math.sqrt(known.size))
    return Interval(mean - reach, mean, mean + reach)


def shifts(records: Sequence[Record], baseline: Sequence[Record]) -> tuple[Summary, Summary] | None:
    """Suffering clients improved and well-performing ones degraded against runs of the same seeds, over seeds."""
    found: list[ClientShift] = [suffering_and_well_performing(*pair) for pair in paired(records, baseline)]
    if not found:
        return None
    return (
        summarise([shift.suffering_improved for shift in found]),
        summarise([shift.well_performing_degraded for shift in found]),
    )


def mean_accuracy(event: RoundEvent) -> float:
    """Mean test accuracy over clients; NaN where there was no evaluation."""
    return float(np.mean(list(event.accuracy.values()))) if event.accuracy else math.nan


def value_of(figures: Mapping[str, Summary], key: str) -> Summary:
    """A summary, NaN where it is not known."""
    return figures.get(key, Summary(math.nan, math.nan))


def corner(values: Sequence[float]) -> float:
    """Below it a point of a picture would squeeze all others into a corner; minus infinity where they are few."""
    if len(values) < MANY:
        return -math.inf
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - FAR * max(high - low, 1.0))
