"""Lines of a run's log that a SuperLink's audit log takes over: which clients had no part or no vote, and why."""

from __future__ import annotations

import json
from logging import INFO

from flwr.common.logger import log

from dqnfed_flwr.engine.ending import one_line
from dqnfed_flwr.telemetry.events import Listener, RoundEvent

MOST, LONGEST = 20, 60
"""Clients named in a line; letters of a detail."""


class AuditLines(Listener):
    """Says who is dropped or overruled, in the round from which on it is so.

    Rounds that were done before a resumption are in the log of that time.
    """

    def __init__(self) -> None:
        self._before: tuple[object, object] = ((), ())

    def on_round(self, event: RoundEvent) -> None:
        """Say it where it is otherwise than in the round before."""
        now = (sorted({(drop.client, drop.reason) for drop in event.dropped}), sorted(event.overruled))
        if now != self._before:
            self._before = now
            log(INFO, "Audit: %s", json.dumps(words_of(event)))


def words_of(event: RoundEvent) -> dict[str, object]:
    """Who was refused or overruled in a round, and why."""
    refused = {drop.client: f"{drop.reason}: {one_line(drop.detail)[:LONGEST]}" for drop in event.dropped}
    overruled = {client: _why(event, client) for client in event.overruled}
    found: dict[str, object] = {"round": event.round}
    for name, clients in (("refused", refused), ("overruled", overruled)):
        found[name] = dict(sorted(clients.items())[:MOST])
        if len(clients) > MOST:
            found[f"{name} in all"] = len(clients)
    return found


def _why(event: RoundEvent, client: int) -> str:
    if client in event.refused_held_out:
        return "it turned a step down by its held-out part"
    if client in event.refused_training:
        return "it turned a step down by its training losses"
    return "its vote was set aside"
