"""The event of a round that is over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dqnfed_flwr.guarantee.overrule import OVERRULED, SET_ASIDE, Certificate
from dqnfed_flwr.methods._base import ZERO_GRADIENT
from dqnfed_flwr.strategy.state import PendingStep, each_once
from dqnfed_flwr.telemetry.events import Cost, DroppedClient, Evaluated, RoundEvent
from dqnfed_flwr.types import ACCURACY, ClientReply, Figure

HAS_PART = (ZERO_GRADIENT, SET_ASIDE, OVERRULED)
"""Reasons for which a row or a vote does not count, of clients whose other half does, or that need no step."""


def round_event(
    pending: PendingStep,
    factor: float,
    losses_after: Mapping[int, float],
    status: str,
    evaluated: Mapping[int, ClientReply],
    dropped: Iterable[DroppedClient],
    cost: Cost,
    figure: Figure = ACCURACY,
) -> RoundEvent:
    """The record of a round whose `pending` step was applied at `factor`, 0 when the model stayed, and its `status`.

    `losses_after` are f_k(theta^t) of the participants that reported it, `evaluated` the replies that hold evaluations
    at theta^t, of that `figure`; `dropped` were left out in its exchanges, in addition to those of its solve.
    """
    found, votes = pending.combination, pending.votes
    return RoundEvent(
        round=pending.round,
        participants=list(pending.clients),
        losses_before=[pending.losses[client] for client in pending.clients],
        losses_after=[losses_after.get(client, math.nan) for client in pending.clients],
        rates=list(pending.rates.values()),
        weights=list(pending.weights.values()),
        step_norm_squared=pending.scale.norm**2,
        factor=factor,
        rank=found.rank,
        condition=found.condition,
        residual=found.residual,
        status=status,
        pairs_kept=pending.pairs_kept,
        pairs_rejected=pending.pairs_rejected,
        dropped=each_once([*pending.dropped, *dropped]),
        notes=dict(found.notes),
        asked=len(pending.asked),
        no_part=_without_part(pending),
        entitlement=pending.entitlement,
        limits=[*pending.limits.values()],
        votes=replace(votes, overruled=tuple(c for c in votes.overruled if c not in votes.caught)),
        cost=cost.closed(pending.tried.misses),
        evaluated=Evaluated.of(evaluated, figure),
        certificate=Certificate() if factor else pending.certificate,
        along=pending.tried.along,
    )


def _without_part(pending: PendingStep) -> list[int]:
    """Clients that were asked for a row and have no part in the round: neither their row nor their loss counts."""
    rejected = {drop.client for drop in pending.dropped if drop.reason not in HAS_PART} | set(pending.votes.caught)
    return [
        client
        for client in pending.asked
        if client not in pending.votes.heard and (client not in pending.clients or client in rejected)
    ]
