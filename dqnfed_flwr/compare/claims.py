"""Which claims of a paper the runs of a comparison bear out, against each rival, with the paired interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import (
    UNKNOWN,
    Comparison,
    Difference,
    Interval,
    Row,
    difference_of,
    mean_figure,
    over_seeds,
)
from dqnfed_flwr.types import Figure

NEAR_ONE = 0.99
"""From here on a mean of rho_t over all rounds counts as near 1."""
SMOOTH, SHARE = 5, 0.95
"""Evaluations whose means are averaged, and the share of the figure reached, where rounds are counted."""
FEWEST = 3
"""Rounds in which both runs were evaluated; with fewer, rounds are not counted."""
ByRound = Sequence[tuple[int, float]]
"""Rounds, each with the mean figure of its evaluation."""


class ClaimVerdict(StrEnum):
    """What runs say of a claim."""

    BORNE_OUT = "borne out"
    UNDECIDED = "undecided"
    NOT_BORNE_OUT = "not borne out"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about the reference, by its difference to a rival over the same seed, NaN where that is not known.

    The difference times `scale` has the `unit`. `sign` is 1 where a positive one (reference less rival) bears the claim
    out, -1 where a negative one does.
    """

    key: str
    text: str
    unit: str
    scale: float
    sign: int
    difference: Difference


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """A claim against one rival."""

    claim: Claim
    rival: Row
    interval: Interval | None
    verdict: ClaimVerdict

    @property
    def bounded(self) -> bool:
        """Whether the interval has bounds, so that there is something to decide by."""
        return self.interval is not None and not math.isnan(self.interval.low)

    @property
    def text(self) -> str:
        """The interval in the claim's unit."""
        if self.interval is None:
            return UNKNOWN
        low, high = (abs(self.claim.scale * bound) for bound in (self.interval.low, self.interval.high))
        digits = 2 if not self.bounded or max(low, high) >= 0.01 or low == high == 0 else 5
        return self.interval.text(self.claim.scale, digits)  # what is decided shall not read as 0


def findings(comparison: Comparison) -> dict[str, list[ClaimFinding]]:
    """Of each claim, by its key: every rival with finished runs. Empty without a reference.

    Other forms of the reference's method are no rivals, nor is a method with a model for every client.
    """
    ours = comparison.reference
    if ours is None or not ours.good:
        return {}
    rivals = [row for row in comparison.rows if row.good and row.spec.method != ours.spec.method and not row.personal]
    found: dict[str, list[ClaimFinding]] = {}
    for claim in claims_of(comparison.figure):
        intervals = [over_seeds(ours.records, rival.records, claim.difference) for rival in rivals]
        found[claim.key] = [
            ClaimFinding(claim, rival, each, judge(each, claim.sign))
            for rival, each in zip(rivals, intervals, strict=True)
        ]
    return found


def near_one(row: Row) -> tuple[float, ClaimVerdict]:
    """Lowest mean of rho_t over the seeds of a row, and whether it is near 1; undecided where it is unknown.

    Of a run that never moved its model it is not known: nothing was done to anybody.
    """
    means = [_rho(record) for record in row.good]
    known = [value for value in means if not math.isnan(value)]
    if not known:
        return math.nan, ClaimVerdict.UNDECIDED
    return min(known), ClaimVerdict.BORNE_OUT if min(known) >= NEAR_ONE else ClaimVerdict.NOT_BORNE_OUT


def _rho(record: Record) -> float:
    return record.figures["rho_mean"] if record.figures["rounds_moved"] else math.nan


def judge(interval: Interval | None, sign: int) -> ClaimVerdict:
    """Borne out if all of the interval is on the claim's side of 0, not borne out if all is on the other.

    Anything else is undecided, an interval that is not known included.
    """
    if interval is None or math.isnan(interval.low):
        return ClaimVerdict.UNDECIDED
    low, _, high = (value * sign for value in interval)
    if min(low, high) > 0:
        return ClaimVerdict.BORNE_OUT
    return ClaimVerdict.NOT_BORNE_OUT if max(low, high) < 0 else ClaimVerdict.UNDECIDED


def speed(ours: Record, rival: Record) -> float:
    """Share of the rival's rounds that ours takes to a figure that both reach, less 1; NaN with few evaluations.

    Single evaluations jump by points, and the last tenths of a point take most of the rounds: means of `SMOOTH`
    evaluations are looked at. The target is `SHARE` of the worse one of their two bests, where more is better and 0 is
    the least; else that share of the way to it from the worse one of their two beginnings.
    """
    curves, sign = _curves(ours, rival), ours.figure.sign
    if not curves:
        return math.nan
    gains = [[(number, sign * value) for number, value in each] for each in curves]
    goal = min(max(value for _, value in each) for each in gains)
    start = 0.0 if _from_nothing(ours.figure) else min(each[0][1] for each in gains)
    mine, theirs = (rounds_to(each, start + SHARE * (goal - start)) for each in gains)
    return mine / theirs - 1


def rounds_to(curve: ByRound, target: float) -> float:
    """The first round whose figure, of which more is better, is at least `target`; else infinite."""
    return float(next((number for number, value in curve if value >= target), math.inf))


def _from_nothing(figure: Figure) -> bool:
    """Whether a share of a value says how much of it was learnt: it does of a share, of which more is better."""
    return figure.percent and figure.higher


def _curves(*records: Record) -> list[ByRound]:
    """Running means of the mean figures of two runs.

    Both are looked at in the same rounds, as long as both go on, and averaged over equally many evaluations: fewer than
    `SMOOTH` in short runs. Empty with fewer than `FEWEST`, which show when a run was looked at, not when it got there.
    """
    known = [{event.round: mean_figure(event) for event in record.events if event.evaluated.test} for record in records]
    shared = set.intersection(*map(set, known))
    if len(shared) < FEWEST:
        return []
    end = min(max(each) for each in known)
    kept = [[(number, each[number]) for number in sorted(each) if number in shared or number > end] for each in known]
    window = min(SMOOTH, math.ceil(len(shared) / 4))
    return [_smoothed(each, window) for each in kept]


def _smoothed(known: ByRound, window: int) -> ByRound:
    return [
        (known[end - 1][0], float(np.mean([value for _, value in known[end - window : end]])))
        for end in range(window, len(known) + 1)
    ]


def claims_of(figure: Figure) -> tuple[Claim, ...]:
    """The claims, about a federation whose clients are evaluated by this figure."""
    unit = "percentage points of the" if figure.percent else f"{figure.name}, the"
    spread = "percentage points of σ" if figure.percent else f"{figure.name}, σ"
    scale, sign = figure.scale, figure.sign
    way = "" if _from_nothing(figure) else "the way to "
    return (
        Claim(
            "mean", f"{'higher' if figure.higher else 'lower'} mean", f"{unit} mean", scale, sign, difference_of("mean")
        ),
        Claim("std", "lower σ", spread, scale, -1, difference_of("std")),
        Claim("worst10", "better worst 10 %", f"{unit} worst 10 %", scale, sign, difference_of("worst10")),
        Claim(
            "rounds",
            "faster in rounds",
            f"per cent more or fewer rounds to {100 * SHARE:.0f} % of {way}the {figure.name} that both reach",
            100,
            -1,
            speed,
        ),
        Claim(
            "rho",
            "more clients improved (ρ)",
            "mean of ρ over the rounds",
            1,
            1,
            lambda ours, theirs: _rho(ours) - _rho(theirs),
        ),
    )
