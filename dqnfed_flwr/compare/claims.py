"""Which claims of a paper the runs of a comparison bear out, against each rival, with the paired interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dqnfed_flwr.compare.figures import (
    DRAWS,
    LEVEL,
    Interval,
    hierarchical_bootstrap,
    mean_accuracy,
    mean_difference,
    paired,
    worst10_difference,
)
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.types import Float64Array

NEAR_ONE = 0.99
"""From here on a mean of rho_t over all rounds counts as near 1."""


class Verdict(StrEnum):
    """What runs say of a claim."""

    BORNE_OUT = "borne out"
    UNDECIDED = "undecided"
    NOT_BORNE_OUT = "not borne out"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about the reference, and what to look at.

    Attributes
    ----------
    key, text : str
        Short name, and the claim in words.
    unit : str
        Of the difference to a rival.
    scale : float
        From the difference to that unit.
    sign : int
        1 where a positive difference (reference less rival) bears the claim out, -1 where a negative one does.
    difference : Callable
        Interval of the difference between two rows; None where it cannot be told.
    """

    key: str
    text: str
    unit: str
    scale: float
    sign: int
    difference: Callable[[Row, Row], Interval | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim against one rival."""

    claim: Claim
    rival: Row
    interval: Interval | None
    verdict: Verdict

    @property
    def text(self) -> str:
        """The interval in the claim's unit."""
        if self.interval is None:
            return "–"
        low, estimate, high = (self.claim.scale * value for value in self.interval)
        if math.isnan(low):
            return f"{estimate:+.2f}"
        return f"{estimate:+.2f} [{low:+.2f}, {high:+.2f}]"


def findings(comparison: Comparison) -> dict[str, list[Finding]]:
    """Of each claim, by its key: every rival that has runs of the same seeds. Empty without a reference."""
    ours = comparison.reference
    if ours is None or not ours.good:
        return {}
    rivals = [row for row in comparison.rows if row is not ours and row.good]
    return {claim.key: [_finding(claim, ours, rival) for rival in rivals] for claim in CLAIMS}


def near_one(row: Row) -> tuple[float, Verdict]:
    """Lowest mean of rho_t over the seeds of a row, and whether it is near 1; undecided where it is unknown."""
    means = [record.figures["rho_mean"] for record in row.good]
    known = [value for value in means if not math.isnan(value)]
    if not known:
        return math.nan, Verdict.UNDECIDED
    return min(known), Verdict.BORNE_OUT if min(known) >= NEAR_ONE else Verdict.NOT_BORNE_OUT


def judge(interval: Interval | None, sign: int) -> Verdict:
    """Borne out if all of the interval is on the claim's side of 0, not borne out if all is on the other.

    Anything else is undecided, an interval that is not known included.
    """
    if interval is None or math.isnan(interval.low):
        return Verdict.UNDECIDED
    low, _, high = (value * sign for value in interval)
    if min(low, high) > 0:
        return Verdict.BORNE_OUT
    return Verdict.NOT_BORNE_OUT if max(low, high) < 0 else Verdict.UNDECIDED


def rounds_to(record: Record, target: float) -> float:
    """The first round whose mean test accuracy is at least `target`; infinite if none is."""
    reached = (event.round for event in record.events if mean_accuracy(event) >= target)
    return float(next(reached, math.inf))


def std_difference(ours: Float64Array, theirs: Float64Array) -> Float64Array:
    """Population standard deviation over clients of ours less that of theirs; arrays [..., K] to [...]."""
    return np.asarray(ours.std(axis=-1) - theirs.std(axis=-1))


def over_seeds(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Interval | None:
    """Percentile interval of a mean over seeds, which are drawn; without bounds for one seed, None for none."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not known.size:
        return None
    if known.size == 1:
        return Interval(math.nan, float(known[0]), math.nan)
    rng = np.random.default_rng(seed)
    means = known[rng.integers(known.size, size=(draws, known.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(known.mean()), float(high))


def _finding(claim: Claim, ours: Row, rival: Row) -> Finding:
    interval = claim.difference(ours, rival)
    return Finding(claim, rival, interval, judge(interval, claim.sign))


def _of_clients(
    difference: Callable[[Float64Array, Float64Array], Float64Array],
) -> Callable[[Row, Row], Interval | None]:
    def interval(ours: Row, rival: Row) -> Interval | None:
        pairs = paired(ours.records, rival.records)
        return hierarchical_bootstrap(pairs, difference) if pairs else None

    return interval


def _of_seeds(difference: Callable[[Record, Record], float]) -> Callable[[Row, Row], Interval | None]:
    def interval(ours: Row, rival: Row) -> Interval | None:
        theirs = {record.job.seed: record for record in rival.good}
        return over_seeds(
            [difference(record, theirs[record.job.seed]) for record in ours.good if record.job.seed in theirs]
        )

    return interval


def _speed(ours: Record, rival: Record) -> float:
    """Share of the rival's rounds that ours takes to the accuracy that both reach, less 1.

    The target is the lower one of the two best mean accuracies, so that both get there.
    """
    best = [max((mean_accuracy(e) for e in record.events if e.accuracy), default=math.nan) for record in (ours, rival)]
    if any(math.isnan(value) for value in best):
        return math.nan
    target = min(best)
    return rounds_to(ours, target) / rounds_to(rival, target) - 1


def _rho(ours: Record, rival: Record) -> float:
    return ours.figures["rho_mean"] - rival.figures["rho_mean"]


CLAIMS = (
    Claim("mean", "higher mean", "percentage points of the mean", 100, 1, _of_clients(mean_difference)),
    Claim("std", "lower σ", "percentage points of σ", 100, -1, _of_clients(std_difference)),
    Claim(
        "worst10", "better worst 10 %", "percentage points of the worst 10 %", 100, 1, _of_clients(worst10_difference)
    ),
    Claim(
        "rounds",
        "faster in rounds",
        "per cent more or fewer rounds to the accuracy that both reach",
        100,
        -1,
        _of_seeds(_speed),
    ),
    Claim("rho", "more clients improved (ρ)", "mean of ρ over the rounds", 1, 1, _of_seeds(_rho)),
)
