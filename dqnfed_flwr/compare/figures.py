"""Figures of a comparison, over seeds and over rounds: pure functions of the runs' accuracies and events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.fairness import ClientShift, suffering_and_well_performing
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

LEVEL = 0.95
UNKNOWN = "–"
FAR, MANY = 3.0, 8
"""Of so many points, those farther below the lower quartile than so many interquartile ranges are left out of sight."""
Difference = Callable[[Record, Record], float]
"""From a run and another one with the same seed to a number."""


class Summary(NamedTuple):
    """Mean and standard deviation over seeds (n - 1); the latter is NaN with one seed."""

    mean: float
    std: float

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Mean ± standard deviation, each times `scale`; a dash for what is not known."""
        if math.isnan(self.mean):
            return UNKNOWN
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if math.isnan(self.std) else f"{mean} ± {scale * self.std:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of all seeds of a row over the rounds, each array [T].

    Attributes
    ----------
    rounds, megabytes, seconds : Float64Array
        Where it was known: round, traffic and time since the beginning (means over seeds).
    mean, std : Float64Array
        Over seeds; `std` is 0 with one seed.
    """

    rounds: Float64Array
    megabytes: Float64Array
    seconds: Float64Array
    mean: Float64Array
    std: Float64Array

    def window(self, part: int) -> int:
        """Rounds in one `part`-th of them, at least 1."""
        return max(1, self.rounds.size // part)

    def smoothed(self, part: int) -> Curve:
        """A running mean over one `part`-th of the rounds."""
        window = self.window(part)
        kernel, start = np.ones(window) / window, window - 1
        return Curve(
            self.rounds[start:],
            self.megabytes[start:],
            self.seconds[start:],
            np.convolve(self.mean, kernel, mode="valid"),
            np.convolve(self.std, kernel, mode="valid"),
        )


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
        return Summary(math.nan, math.nan)
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
    known = sum(not math.isnan(value) for value in values)
    if not known:
        return None
    mean, std = summarise(values)
    reach = float(stdtrit(known - 1, (1 + LEVEL) / 2) * std / math.sqrt(known))
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


def curve(records: Sequence[Record], figure: Callable[[RoundEvent], float]) -> Curve | None:
    """A figure over the rounds, from the first round in which all seeds know it.

    Where seeds know it in different rounds, the latest known value stands; a run that ended early keeps its last one.
    None if no run knows it.
    """
    known = [found for record in records if record.good and (found := _known(record.events, figure)).size]
    if not known:
        return None
    rounds = np.unique(np.concatenate([found[0] for found in known]))
    rounds = rounds[rounds >= max(found[0, 0] for found in known)]
    latest = np.stack([found[:, np.searchsorted(found[0], rounds, side="right") - 1] for found in known])
    mean = latest.mean(axis=0)
    std = latest[:, 3].std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(rounds)
    return Curve(rounds, mean[1], mean[2], mean[3], std)


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


def _known(events: Sequence[RoundEvent], figure: Callable[[RoundEvent], float]) -> Float64Array:
    """Round, megabytes so far, seconds so far and figure [4, T] of the rounds that know it."""
    traffic = np.cumsum([event.bytes_up + event.bytes_down for event in events]) / 1e6
    seconds = np.cumsum([event.seconds.get("total", 0.0) for event in events])
    rows = np.array(
        [(event.round, *place, figure(event)) for event, *place in zip(events, traffic, seconds, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 4)
    return rows[~np.isnan(rows[:, 3])].T
