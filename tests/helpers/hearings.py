"""Hearings for tests that need no guarantee: everybody who sent a row is heard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.solve import make_batch
from dqnfed_flwr.types import ClientReply, RoundBatch


def everybody(replies: Mapping[int, ClientReply], slots: Iterable[int] | None = None, **changes: Any) -> Hearing:
    """All clients with a reply are heard; their rows are at `slots`, by default one after the other."""
    clients = tuple(sorted(replies))
    places = dict(zip(clients, range(len(clients)) if slots is None else slots, strict=True))
    return Hearing({client: replies[client].loss for client in clients}, clients, places, **changes)


def batch_of(
    replies: Mapping[int, ClientReply], rows: RoundRows, number: int, *, theta_norm: float = 1.0, **changes: Any
) -> RoundBatch:
    """The figures of a round in which everybody is heard."""
    return make_batch(replies, everybody(replies, rows.slots, **changes), rows, number, theta_norm)
