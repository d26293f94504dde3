"""What a run comes to, counted over its rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dqnfed_flwr.guarantee.claims import CONTRADICTION
from dqnfed_flwr.telemetry.events import RoundEvent


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and means over the rounds of a run.

    Attributes
    ----------
    rounds, moved : int
        Rounds settled, and those of them that changed the model.
    judged, improved : int
        Rounds that changed the model and after which somebody answered again; those of them in which no loss rose.
    rho, unharmed : float
        Means over the judged rounds of `improved_ratio` and `unharmed_ratio`; NaN where there is none.
    asked, heard : float
        Clients a round that were asked for a gradient, and whose gradients made the step; NaN without rounds.
    overruled, harmed, refused, contradicted : Mapping[int, int]
        Rounds in which each client was overruled, was harmed, turned a candidate down, and was not heard because it
        contradicted itself; none with 0.
    """

    rounds: int
    moved: int
    judged: int
    improved: int
    rho: float
    unharmed: float
    asked: float
    heard: float
    overruled: Mapping[int, int]
    harmed: Mapping[int, int]
    refused: Mapping[int, int]
    contradicted: Mapping[int, int]

    @classmethod
    def of(cls, events: Sequence[RoundEvent]) -> Totals:
        """Those of these rounds."""
        moved = [event for event in events if event.moved]
        judged = [event for event in moved if not math.isnan(event.improved_ratio)]
        return cls(
            rounds=len(events),
            moved=len(moved),
            judged=len(judged),
            improved=sum(event.improved_ratio == 1 for event in judged),
            rho=_mean(event.improved_ratio for event in judged),
            unharmed=_mean(event.unharmed_ratio for event in judged),
            asked=_mean(event.asked for event in events),
            heard=_mean(len(event.heard) for event in events),
            overruled=_count(event.overruled for event in events),
            harmed=_count(event.harmed for event in events),
            refused=_count(event.refused for event in events),
            contradicted=_count(
                {drop.client for drop in event.dropped if drop.reason == CONTRADICTION} for event in events
            ),
        )

    @property
    def holding_up(self) -> dict[int, int]:
        """Clients that turned candidates down in more than half of all rounds, and in how many, the most first."""
        found = {client: count for client, count in self.refused.items() if 2 * count > self.rounds}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else math.nan


def _count(clients: Iterable[Iterable[int]]) -> dict[int, int]:
    return dict(sorted(Counter(client for each in clients for client in each).items()))
