"""Admission at the server: replies of sound form that are not believed, and clients that are not asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import TYPE_CHECKING

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from dqnfed_flwr.admission import SUSPENDED, Figures, Ledger, Refusal, examine
from dqnfed_flwr.admission.examine import VECTOR, Limits, cosines_with_others, figures_of, limits_of
from dqnfed_flwr.config import AdmissionSettings, Settings
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.strategy.orders import Orders
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply

if TYPE_CHECKING:
    from dqnfed_flwr.strategy.intake import Collected


BUFFER = "buffer "
"""Begins the name of a buffer's norm, among those of vectors."""


@dataclass(slots=True)
class Admitted:
    """What is left of the replies of an exchange.

    Attributes
    ----------
    replies : dict[int, ClientReply]
        Those believed, some with rate and vectors cut.
    dropped : list[DroppedClient]
        The others; their rows are gone from the basis.
    logs : dict[int, dict[str, float]]
        Logarithms of the figures of those believed.
    limits : Limits
        Of the round.
    """

    replies: dict[int, ClientReply]
    dropped: list[DroppedClient] = field(default_factory=list)
    logs: dict[int, dict[str, float]] = field(default_factory=dict)
    limits: Limits = field(default_factory=dict)


def turn_away(
    replies: Mapping[int, ClientReply],
    basis: Basis,
    slots: Mapping[int, int],
    ledger: Ledger,
    registered: Mapping[int, int],
    settings: AdmissionSettings,
) -> Admitted:
    """Hold the replies that brought a row against each other and against what is remembered.

    Parameters
    ----------
    replies : Mapping[int, ClientReply]
        Of sound form, by client.
    basis : Basis
        With their rows; a row that is not believed is dropped, one cut is scaled.
    slots : Mapping[int, int]
        Slot of each reply with a row.
    ledger : Ledger
        Not changed: whether this exchange counts is not known yet.
    registered : Mapping[int, int]
        Samples that the nodes registered with.
    settings : AdmissionSettings
        The limits.
    """
    admitted = Admitted(dict(replies))
    if settings.mode == "off" or not slots:
        return admitted
    logs = {
        client: figures_of(math.sqrt(basis.squared_norm(slot)), reply.loss, reply.rate, _lengths(reply, basis.dim))
        for client, slot in slots.items()
        for reply in (replies[client],)
    }
    figures = {c: Figures(mine, replies[c].num_examples, registered.get(c, 0)) for c, mine in logs.items()}
    cosines = _cosines(basis, slots) if settings.min_cosine > -1 else {}
    admitted.limits = limits_of(figures, settings)
    for client, refusal in examine(figures, admitted.limits, cosines, ledger.past, settings).items():
        if settings.mode == "clip" and refusal.cut:
            admitted.replies[client] = _cut(replies[client], refusal, basis, slots[client])
            log(WARNING, "Client %d is cut: %s", client, refusal.detail)
            del logs[client]
            continue
        basis.drop(slots[client])
        del admitted.replies[client], logs[client]
        admitted.dropped.append(DroppedClient(client, refusal.reason, refusal.detail))
    admitted.logs = logs
    return admitted


def _cosines(basis: Basis, slots: Mapping[int, int]) -> dict[int, float]:
    return dict(zip(slots, cosines_with_others(basis.gram(slots.values())).tolist(), strict=True))


def book(
    ledger: Ledger,
    collected: Collected,
    orders: Orders,
    settings: AdmissionSettings,
    earlier: Sequence[DroppedClient] = (),
) -> None:
    """Remember an exchange whose rows count: figures of those believed, refusals of the others.

    What most of those asked fail at is no fault of theirs, but of the model or of what they were asked.

    Parameters
    ----------
    ledger : Ledger
        Takes it in.
    collected, orders
        Of the exchange.
    settings : AdmissionSettings
        When refusals suspend.
    earlier : Sequence[DroppedClient]
        Those left out in attempts at the round that brought too little; they were asked for the same.
    """
    if settings.mode == "off":
        return
    for client, logs in collected.logs.items():
        ledger.believe(client, logs, collected.limits)
    refused = {drop.client: drop for drop in earlier}
    asked = {*refused, *orders.train}
    refused |= {client: drop for client, drop in collected.dropped.items() if client in orders.train}
    refused = {client: drop for client, drop in refused.items() if client not in collected.logs}
    shared = {
        reason for reason, count in Counter(drop.reason for drop in refused.values()).items() if 2 * count > len(asked)
    }
    for client, drop in refused.items():
        if drop.reason not in shared and ledger.strike(client, drop.reason, orders.round, settings):
            log(WARNING, "Client %d is suspended until round %d", client, ledger.until[client])


def present(state: RunState, members: Collection[int], settings: Settings) -> tuple[list[int], list[DroppedClient]]:
    """Members that may be asked now, and those that are suspended."""
    round_number = state.round + (2 if state.pending else 1)
    needed = max(settings.min_clients, 1)
    out = state.ledger.suspended(members, round_number, needed) if settings.admission.mode != "off" else {}
    dropped = [DroppedClient(client, SUSPENDED, f"until round {last}") for client, last in sorted(out.items())]
    return [client for client in members if client not in out], dropped


def _lengths(reply: ClientReply, dim: int) -> dict[str, float]:
    """Norms of the vectors that are as long as the model, and of the buffers that are no counters."""
    vectors = {name: _norm(vector) for name, vector in reply.vectors.items() if vector.shape == (dim,)}
    buffers = {
        BUFFER + name: _norm(values.ravel()) for name, values in reply.buffers.items() if values.dtype.kind == "f"
    }
    return vectors | buffers


def _norm(vector: NDArray[np.generic]) -> float:
    return float(np.sqrt(np.vecdot(vector, vector, dtype=np.float64)))


def _cut(reply: ClientReply, refusal: Refusal, basis: Basis, slot: int) -> ClientReply:
    """Scale the row, the vectors and the buffers to the limit; the rate, quadratic in the row, keeps its curvature."""
    factor = refusal.cut.get("norm", 1.0)
    if factor < 1.0:
        basis.scale(slot, factor)
    vectors = {
        name: vector * vector.dtype.type(refusal.cut.get(VECTOR + name, 1.0)) for name, vector in reply.vectors.items()
    }
    buffers = {
        name: np.multiply(values, by).astype(values.dtype)
        if (by := refusal.cut.get(VECTOR + BUFFER + name))
        else values
        for name, values in reply.buffers.items()
    }
    return replace(reply, rate=reply.rate * factor**2, vectors=vectors, buffers=buffers)
