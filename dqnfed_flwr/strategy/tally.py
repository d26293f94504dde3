"""What the round under way has cost so far."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from dqnfed_flwr.telemetry.events import DroppedClient


@dataclass(slots=True)
class Tally:
    """What the exchanges since the last settled round cost, and who was left out in those that settled nothing.

    Attributes
    ----------
    exchanges, misses, repeated_calls : int
        Counts; misses are those of steps given up before the round's own.
    bytes_up, bytes_down : int
        Of arrays and figures, without framing.
    seconds : dict[str, float]
        By phase.
    dropped : list[DroppedClient]
        Each client once for each reason.
    since : float
        When it began (perf_counter).
    """

    exchanges: int = 0
    misses: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    repeated_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    dropped: list[DroppedClient] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def spend(self, phase: str, since: float) -> None:
        """Book the time since `since` (perf_counter) to `phase`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since

    def leave_out(self, dropped: Iterable[DroppedClient]) -> None:
        """Keep `dropped` for the event of the round, each client once for each reason."""
        known = {(drop.client, drop.reason) for drop in self.dropped}
        self.dropped += [drop for drop in dropped if (drop.client, drop.reason) not in known]
