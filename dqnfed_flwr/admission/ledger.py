"""What is remembered of clients: their last figures, their refusals in a row, and who is suspended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dqnfed_flwr.admission.examine import NOTHING, ZERO, Limits, Past
from dqnfed_flwr.admission.votes import VETO
from dqnfed_flwr.config import AdmissionSettings

SUSPENDED = "suspended"
"""Reason of a client that is not asked."""
NO_FAULT = ("absent", "client-error", SUSPENDED, ZERO)
"""Reasons that suspend nobody: a lost reply, a fault that the client reported itself, a client at its optimum."""


@dataclass(slots=True)
class Ledger:
    """Memory of admission; all of it survives a checkpoint.

    Attributes
    ----------
    past : dict[int, Past]
        Of each client that was believed.
    strikes : dict[int, int]
        Refusals of replies in a row.
    vetoes : dict[int, int]
        Rounds in a row without a vote, among those it took part in.
    until : dict[int, int]
        Last round for which a client is suspended.
    """

    past: dict[int, Past] = field(default_factory=dict)
    strikes: dict[int, int] = field(default_factory=dict)
    vetoes: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)

    def believe(self, client: int, logs: Mapping[str, float], limits: Limits) -> None:
        """A reply counted, in a round with these limits."""
        before = self.past.get(client, NOTHING)
        last = {name: value for name, value in logs.items() if math.isfinite(value)}
        usual = {
            name: value for name, value in last.items() if name in limits and value - limits[name][0] <= limits[name][1]
        }
        self.past[client] = Past(last, _larger(before.largest, last), _larger(before.vouched, usual))
        self.strikes.pop(client, None)

    def voted(self, client: int) -> None:
        """A round was settled with the client's vote."""
        self.vetoes.pop(client, None)

    def strike(self, client: int, reason: str, round_number: int, settings: AdmissionSettings) -> bool:
        """A reply was turned away, or a vote taken; True if that suspends the client.

        A client back from a suspension that is refused again at once is suspended again at once.
        """
        if reason in NO_FAULT or not settings.suspend_after:
            return False
        counts = self.vetoes if reason == VETO else self.strikes
        counts[client] = counts.get(client, 0) + 1
        if counts[client] < settings.suspend_after:
            return False
        self.until[client] = round_number + settings.suspend_rounds
        counts[client] = settings.suspend_after - 1
        return True

    def suspended(self, clients: Iterable[int], round_number: int, needed: int) -> dict[int, int]:
        """Those of `clients` that are not asked in a round, with the last round of their suspension.

        Where fewer than `needed` would be left, those whose suspension ends first are asked after all.
        """
        present = list(clients)
        out = sorted((self.until[client], client) for client in present if self.until.get(client, 0) >= round_number)
        short = max(needed - (len(present) - len(out)), 0)
        return {client: until for until, client in out[short:]}

    def export_state(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "past": {str(client): dict(past.last) for client, past in self.past.items()},
            "largest": {str(client): dict(past.largest) for client, past in self.past.items()},
            "vouched": {str(client): dict(past.vouched) for client, past in self.past.items()},
            "strikes": {str(client): count for client, count in self.strikes.items()},
            "vetoes": {str(client): count for client, count in self.vetoes.items()},
            "until": {str(client): last for client, last in self.until.items()},
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Ledger:
        """Inverse of `export_state`; of a record without content, an empty ledger."""
        last = record.get("past", {})
        largest = {**last, **record.get("largest", {})}  # an earlier version kept the last alone
        vouched = record.get("vouched", {})  # and knew nothing of this
        return cls(
            past={
                int(client): Past(dict(logs), dict(largest[client]), dict(vouched.get(client, {})))
                for client, logs in last.items()
            },
            strikes={int(client): int(count) for client, count in record.get("strikes", {}).items()},
            vetoes={int(client): int(count) for client, count in record.get("vetoes", {}).items()},
            until={int(client): int(last) for client, last in record.get("until", {}).items()},
        )


def _larger(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The larger of both, figure by figure."""
    return {**before, **{name: max(value, before.get(name, value)) for name, value in now.items()}}
