"""What limits a run: how long a step each client alone would allow, who holds whom up, and what to try.

Everything follows from the events of the run. Those with losses along the step (`step.diagnose-every`) say which
lengths of it would have done; all of them say how often losses rose, and above how many of their earlier values.

A length suits a client here where its training loss does not rise above `guarantee.harm.ceiling`: the vote without the
small fall that the Armijo test asks for besides, and without a held-out part.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from dqnfed_flwr.guarantee.harm import ceiling, resolution
from dqnfed_flwr.telemetry.events import AlongStep, RoundEvent, finite, mean
from dqnfed_flwr.types import Float64Array

WINDOWS = (1, 2, 4, 8)
"""Numbers of a client's last losses, above the largest of which a rise is counted."""
APART = 2.0
"""So many times the length that suits all is one that somebody is held up to."""
MOST = 0.5
"""A finding is told where it holds in more than this share of the rounds."""
LITTLE = 0.8
"""A step that takes this share of what its best length would take is not held back."""
NO_CAUSE = "No single cause holds in more than half of them; the table shows each."
_THIRD = np.array([-1 / 8, 1 / 3, -1 / 4, 1 / 24])
"""Weights of f(0), f(a), f(2a), f(4a) in their third divided difference times a^3: 0 for every parabola."""


@dataclass(frozen=True, slots=True)
class DiagnosedRound:
    """One round along whose step losses are known.

    Attributes
    ----------
    round : int
    taken : float
        The factor that the round ended with, 0 where the model stayed.
    allowed : dict[int, float]
        By client the largest measured factor at which its loss does not rise; 0 if there is none.
    best : float
        The measured factor of the least mean loss; 0 where no factor lowers it.
    fall, best_fall : float
        By how much the mean loss fell, and by how much at `best`.
    within : dict[int, float]
        By window W, the largest measured factor at which no loss is above the largest of that client's last W.
    refused, rounding : int
        Pairs of client and factor at which a loss rises; those of them in which it does so by no more than rounding.
    """

    round: int
    taken: float
    allowed: dict[int, float]
    best: float
    fall: float
    best_fall: float
    within: dict[int, float]
    refused: int
    rounding: int

    @property
    def common(self) -> float:
        """The factor that suits all."""
        return self.within[1]

    @property
    def median(self) -> float:
        """The factor that half of the clients would allow."""
        return median(self.allowed.values())

    @property
    def holders(self) -> list[int]:
        """Those who alone would not allow what half of the clients would, by a factor of `APART` at least."""
        if self.median < APART * self.common or not self.median:
            return []
        return [client for client, factor in self.allowed.items() if APART * factor <= self.median]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the events of a run say of its steps.

    Attributes
    ----------
    rounds : list[DiagnosedRound]
        Those with losses along the step.
    rises : dict[int, float]
        By window W, the share of all clients' rounds in which a loss went above the largest of its last W; NaN
        where no client has so many.
    findings : list[str]
        What limits the run, and what to try, in sentences.
    """

    rounds: list[DiagnosedRound]
    rises: dict[int, float]
    findings: list[str]

    def to_json(self) -> dict[str, Any]:
        """All of it, with numbers that are not finite as null."""
        found: dict[str, Any] = finite(asdict(self))
        return found


def diagnose(events: Sequence[RoundEvent], *, tested: bool) -> Diagnosis:
    """Of the events of a run, in their order; `tested` is whether its clients judge each step."""
    histories: defaultdict[int, list[float]] = defaultdict(list)
    risen: dict[int, list[bool]] = {window: [] for window in WINDOWS}
    rounds: list[DiagnosedRound] = []
    for event in events:
        for client, loss in zip(event.participants, event.losses_before, strict=True):
            if histories[client][-1:] != [loss]:
                histories[client].append(loss)
        if event.along is not None:
            rounds.append(_diagnosed(event, event.along, histories))
        if event.moved:
            for client, loss in zip(event.participants, event.losses_after, strict=True):
                if not math.isnan(loss):  # NaN: it did not answer again
                    _count_rises(risen, histories[client], loss)
                    histories[client].append(loss)
    rises = {window: mean(map(float, found)) for window, found in risen.items()}
    return Diagnosis(rounds, rises, [*_findings(rounds, tested=tested)])


def _count_rises(risen: Mapping[int, list[bool]], history: Sequence[float], loss: float) -> None:
    for window, found in risen.items():
        if len(history) >= window:
            found.append(loss > ceiling(max(history[-window:]), -math.inf))


def _diagnosed(event: RoundEvent, along: AlongStep, histories: Mapping[int, Sequence[float]]) -> DiagnosedRound:
    known = dict(zip(event.participants, event.losses_before, strict=True))
    clients = [client for client in along.losses if client in known]
    factors = np.array(along.factors)
    losses = np.array([along.losses[client] for client in clients])
    losses = np.where(np.isnan(losses), np.inf, losses)
    before = np.array([known[client] for client in clients])
    suits = {window: losses <= _most(clients, histories, window, event.entitlement)[:, None] for window in WINDOWS}
    means = losses.mean(axis=0) - before.mean()
    best = int(np.argmin(means))
    after = dict(zip(event.participants, event.losses_after, strict=True))
    noise = np.array([_rounding(row, loss) for row, loss in zip(losses, before, strict=True)])[:, None]
    return DiagnosedRound(
        round=event.round,
        taken=event.factor,
        allowed={client: _largest(factors, row) for client, row in zip(clients, suits[1], strict=True)},
        best=float(factors[best]) if means[best] < 0 else 0.0,
        fall=mean(known[c] - after[c] for c in clients if not math.isnan(after[c])) if event.moved else 0.0,
        best_fall=max(0.0, -float(means[best])),
        within={window: _largest(factors, found.all(axis=0)) for window, found in suits.items()},
        refused=int((~suits[1]).sum()),
        rounding=int((~suits[1] & (losses - before[:, None] <= noise)).sum()),
    )


def _most(
    clients: Sequence[int], histories: Mapping[int, Sequence[float]], window: int, entitlement: float
) -> Float64Array:
    """The largest loss that each client [K] may come to, where its last `window` ones count."""
    return np.array([ceiling(max(histories[client][-window:]), entitlement) for client in clients])


def _largest(factors: Float64Array, suits: Any) -> float:
    return float(factors[suits].max(initial=0.0))


def _rounding(losses: Float64Array, before: float) -> float:
    """How uncertain a client's losses are: what at the three shortest lengths is no parabola; at least `resolution`.

    Of independent errors of one size in all four values it is about that size. A third derivative counts as well, so
    this is an upper estimate.
    """
    shortest = np.array([before, *losses[::-1][:3]])
    if shortest.size < _THIRD.size or not np.isfinite(shortest).all():
        return resolution(before)
    return max(resolution(before), abs(float(_THIRD @ shortest)) / float(np.linalg.norm(_THIRD)))


def _findings(rounds: Sequence[DiagnosedRound], *, tested: bool) -> list[str]:
    """Sentences, the weightiest first."""
    if not rounds:
        return []
    shares = [max(each.fall, 0.0) / each.best_fall for each in rounds if each.best_fall]
    reached = mean(shares) if shares else 1.0
    found = [_share_reached(reached, rounds, tested=tested)]
    if tested and reached < LITTLE:
        found += [words for told in (_unused, _held_up) if (words := told(rounds))] or [NO_CAUSE]
    found += [words for told in (_no_common, _rounded) if (words := told(rounds))]
    return found


def _share_reached(reached: float, rounds: Sequence[DiagnosedRound], *, tested: bool) -> str:
    what = (
        f"In the mean over {len(rounds)} measured rounds the mean loss fell by {reached:.0%} of what the best length "
        "of the step would have brought."
    )
    if reached < LITTLE:
        return what
    limits = "The test holds the run back little: w" if tested else "W"
    return (
        f"{what} {limits}hat limits it is the direction of its steps, so another method or "
        "anchor (dqnfed compare), fewer local epochs or another local.lr may help; a laxer guarantee would not."
    )


def _often(rounds: Sequence[DiagnosedRound], holds: Callable[[DiagnosedRound], bool]) -> int:
    """In how many rounds it holds, if in more than `MOST`; else 0."""
    count = sum(map(holds, rounds))
    return count if count > MOST * len(rounds) else 0


def _unused(rounds: Sequence[DiagnosedRound]) -> str:
    count = _often(rounds, lambda each: 0 < APART * each.taken <= min(each.common, each.best))
    if not count:
        return ""
    return (
        f"In {count} of them {APART:g} times the length taken, or more, would have suited all and served the mean loss "
        "better: the length lags behind. Try step.probe-first=true, or step.grow-every=1."
    )


def _held_up(rounds: Sequence[DiagnosedRound]) -> str:
    count = _often(rounds, lambda each: bool(each.holders and each.common))
    if not count:
        return ""
    by_client = Counter(client for each in rounds for client in each.holders).most_common(3)
    named = ", ".join(f"{client} ({times})" for client, times in by_client)
    ratio = median(each.median / each.common for each in rounds if each.holders and each.common)
    return (
        f"In {count} of them some clients hold the others up: half of the clients would allow {ratio:.2g} times the "
        f"length that suits all (median). Most often it is clients {named}. See what their data are; a larger "
        "guarantee.entitlement lets losses rise that are low already, guarantee.tolerate overrules a few."
    )


def _no_common(rounds: Sequence[DiagnosedRound]) -> str:
    count = _often(rounds, lambda each: each.common == 0)
    if not count:
        return ""
    return (
        f"In {count} of them no measured length suits all: at the shortest, some loss rises already, so the direction "
        "is none of descent for everybody. For a method that promises this, look at rounding below and at clients "
        "left out; for another, wrap it (Guaranteed)."
    )


def _rounded(rounds: Sequence[DiagnosedRound]) -> str:
    refused, rounding = sum(each.refused for each in rounds), sum(each.rounding for each in rounds)
    if rounding <= (1 - LITTLE) * refused or not refused:
        return ""
    return (
        f"{rounding / refused:.0%} of the rises along the steps are no larger than the rounding of a loss: compute in "
        "float64 (dtype=float64); a model that casts to less than float32 by itself should not."
    )
