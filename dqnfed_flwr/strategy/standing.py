"""How the server stands with a node: when it may be queried again, and why it takes no part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dqnfed_flwr.telemetry.events import DroppedClient

ASK_AGAIN_SECONDS, LONGEST_SILENCE = 60.0, 3600.0
"""A node whose answer was of no use is queried again after so long; one that gave none, whose process may have been
killed over the query, too, and then ever more rarely."""


@dataclass(slots=True)
class Standing:
    """Of one node; times are monotonic seconds.

    Attributes
    ----------
    silences : int
        Queries in a row that brought no answer yet.
    again : float
        When it may be queried again.
    refusal : str
        Why it cannot take part; empty where nothing is known against it.
    misfit : DroppedClient | None
        The same where its data or model do not fit the others'.
    """

    silences: int = 0
    again: float = -math.inf
    refusal: str = ""
    misfit: DroppedClient | None = None

    def queried(self, now: float) -> None:
        """A query has gone out."""
        self.again = now + min(ASK_AGAIN_SECONDS * 2**self.silences, LONGEST_SILENCE)
        self.silences += 1

    def answered(self) -> None:
        """Whatever it said, it is not silent."""
        self.silences = 0

    def accepted(self) -> None:
        """Nothing is held against it any more."""
        self.refusal, self.misfit = "", None

    def refused(self, why: str, now: float) -> bool:
        """It cannot take part; whether that is news."""
        known, self.refusal, self.again = self.refusal, why, now + ASK_AGAIN_SECONDS
        return why != known

    def turned_away(self, misfit: DroppedClient, now: float) -> bool:
        """It does not fit the others; whether that is news."""
        known, self.misfit = self.misfit, misfit
        self.refused(f"{misfit.reason}: client {misfit.client}: {misfit.detail}", now)
        return misfit != known
