"""What the rounds of a run come to: counts and means over their events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dqnfed_flwr.guarantee.overrule import CONTRADICTION
from dqnfed_flwr.telemetry.events import RoundEvent, Spent, mean


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and means over the rounds of a run.

    Attributes
    ----------
    rounds, moved : int
        Rounds settled, and those of them that changed the model.
    judged, improved : int
        Rounds that changed the model and after which a client answered again; those of them in which no loss rose.
    improved_of_asked, unharmed_ratio : float
        rho and the share not harmed over the rounds that moved the model alone: means over the judged ones of those of
        the events; NaN where there is none.
    asked, heard : float
        Clients a round that were asked for a gradient, and whose gradients made the step; NaN without rounds.
    no_part : Mapping[int, int]
        Rounds in which each client was asked and had no part; none with 0.
    asked_in : Mapping[int, int]
        Rounds in which each of them was asked.
    overruled, harmed, refused, contradicted : Mapping[int, int]
        Rounds in which each client was overruled, was harmed, turned a candidate down, and was not heard because it
        contradicted itself; none with 0.
    privacy : Spent | None
        What was spent by the last round; None where nothing is promised of records.
    """

    rounds: int
    moved: int
    judged: int
    improved: int
    improved_of_asked: float
    unharmed_ratio: float
    asked: float
    heard: float
    no_part: Mapping[int, int]
    asked_in: Mapping[int, int]
    overruled: Mapping[int, int]
    harmed: Mapping[int, int]
    refused: Mapping[int, int]
    contradicted: Mapping[int, int]
    privacy: Spent | None = None

    @classmethod
    def of(cls, events: Sequence[RoundEvent]) -> Totals:
        """Those of these rounds."""
        moved = [event for event in events if event.moved]
        judged = [event for event in moved if not math.isnan(event.improved_ratio)]
        no_part = _count(event.no_part for event in events)
        asked_in = _count({*event.participants, *event.no_part} for event in events)
        return cls(
            rounds=len(events),
            moved=len(moved),
            judged=len(judged),
            improved=sum(event.improved_of_asked == 1 for event in judged),
            improved_of_asked=mean(event.improved_of_asked for event in judged),
            unharmed_ratio=mean(event.unharmed_ratio for event in judged),
            asked=mean(event.asked for event in events),
            heard=mean(len(event.votes.heard) for event in events),
            no_part=no_part,
            asked_in={client: asked_in[client] for client in no_part},
            overruled=_count(event.votes.overruled for event in events),
            harmed=_count(event.harmed for event in events),
            refused=_count(event.votes.refused for event in events),
            contradicted=_count(
                {drop.client for drop in event.dropped if drop.reason == CONTRADICTION} for event in events
            ),
            privacy=events[-1].privacy if events else None,
        )

    @property
    def moved_words(self) -> str:
        """`moved_words` of these, and what was spent for them."""
        words = moved_words(self.moved, self.rounds, self.improved_of_asked, self.unharmed_ratio)
        return words + (f"; {self.privacy.words}" if self.privacy else "")

    @property
    def mostly_left_out(self) -> dict[int, int]:
        """Clients that had no part in most rounds in which they were asked, and in how many, the most first."""
        found = {client: count for client, count in self.no_part.items() if 2 * count > self.asked_in[client]}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def holding_up(self) -> dict[int, int]:
        """Clients that turned candidates down in more than half of all rounds, and in how many, the most first."""
        found = {client: count for client, count in self.refused.items() if 2 * count > self.rounds}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def moved_words(moved: int, rounds: int, rho: float, unharmed: float) -> str:
    """Rounds that moved the model, with rho and the share not harmed over these, a dash for one not known."""
    shown = (f"{value:.3f}" if value == value else "–" for value in (rho, unharmed))
    return f"{moved} of {rounds} rounds moved the model; over these ρ {next(shown)}, not harmed {next(shown)}"


def unmoved_at_end(events: Sequence[RoundEvent]) -> list[RoundEvent]:
    """The last rounds of these that did not move the model, up to one that did."""
    found = list(takewhile(lambda event: not event.moved, reversed(events)))
    return found[::-1]


def _count(clients: Iterable[Iterable[int]]) -> dict[int, int]:
    return dict(sorted(Counter(client for each in clients for client in each).items()))
