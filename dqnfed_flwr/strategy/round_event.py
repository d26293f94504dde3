"""The event of a round that is over, and what replies say of test and validation parts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import MetricRecord

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.overrule import OVERRULED, SET_ASIDE, Certificate
from dqnfed_flwr.methods._base import ZERO_GRADIENT
from dqnfed_flwr.strategy.state import PendingStep, RoundCost, each_once
from dqnfed_flwr.telemetry.events import TEST, DroppedClient, RoundEvent
from dqnfed_flwr.types import ACCURACY, ClientReply, Evaluation, Figure

HAS_PART = (ZERO_GRADIENT, SET_ASIDE, OVERRULED)
"""Reasons for which a row or a vote does not count, of clients whose other half does, or that need no step."""


def round_event(
    pending: PendingStep,
    factor: float,
    losses_after: Mapping[int, float],
    status: str,
    evaluated: Mapping[int, ClientReply],
    dropped: list[DroppedClient],
    cost: RoundCost,
    figure: Figure = ACCURACY,
) -> RoundEvent:
    """The record of a round whose `pending` step was applied at `factor`, 0 when the model stayed, and its `status`.

    `losses_after` are f_k(theta^t) of the participants that reported it, `evaluated` the replies that hold evaluations
    at theta^t, of that `figure`; `dropped` were left out when it was judged, in addition to those of its solve and of
    `cost`.
    """
    before = [pending.losses[client] for client in pending.clients]
    after = [losses_after.get(client, math.nan) for client in pending.clients]
    combination, found = pending.combination, evaluations(evaluated)
    event = RoundEvent(
        round=pending.round,
        participants=list(pending.clients),
        losses_before=before,
        losses_after=after,
        improved_ratio=improved_ratio(before, after),
        rates=list(pending.rates.values()),
        weights=list(pending.weights.values()),
        step_norm_squared=pending.scale.norm**2,
        factor=factor,
        rank=combination.rank,
        condition=combination.condition,
        residual=combination.residual,
        status=status,
        misses=pending.misses + cost.misses,
        exchanges=cost.exchanges,
        pairs_kept=pending.pairs_kept,
        pairs_rejected=pending.pairs_rejected,
        dropped=each_once([*pending.dropped, *dropped, *cost.dropped]),
        bytes_up=cost.bytes_up,
        bytes_down=cost.bytes_down,
        repeated_calls=cost.repeated_calls,
        seconds={**cost.seconds, "total": time.perf_counter() - cost.since},
        accuracy=found.test,
        validation=found.validation,
        test_loss=found.test_loss,
        figure=figure,
        without_figure=found.without_figure,
        notes=dict(combination.notes),
        along=pending.along,
    )
    return _with_clients(event, pending)


def _with_clients(event: RoundEvent, pending: PendingStep) -> RoundEvent:
    """`event` with what the clients had to say in it, and with the certificate where the model stayed."""
    certificate, votes = Certificate(distance=math.nan) if event.moved else pending.certificate, pending.votes
    return replace(
        event,
        asked=len(pending.asked),
        no_part=without_part(pending),
        heard=list(votes.heard),
        overruled=[client for client in votes.overruled if client not in votes.caught],
        refused=list(votes.refused),
        refused_training=list(votes.refused_training),
        refused_held_out=list(votes.refused_held_out),
        unable=list(votes.unable),
        entitlement=pending.entitlement,
        certificate=dict(certificate.weights),
        distance=certificate.distance,
    )


def without_part(pending: PendingStep) -> list[int]:
    """Clients that were asked for a row and have no part in the round: neither their row nor their loss counts."""
    rejected = {drop.client for drop in pending.dropped if drop.reason not in HAS_PART} | set(pending.votes.caught)
    return [
        client
        for client in pending.asked
        if client not in pending.votes.heard and (client not in pending.clients or client in rejected)
    ]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The figure of each client on its test and validation part, None where no reply has it; the mean test loss.

    `without_figure` names those that were evaluated and have none, by part; only parts with such clients.
    """

    test: dict[int, float] | None
    validation: dict[int, float] | None
    test_loss: float
    without_figure: dict[str, list[int]]


def evaluations(replies: Mapping[int, ClientReply]) -> Evaluated:
    """What replies, by client, say of test and validation parts; a client without a test part has no figure."""
    tests = {client: reply.test for client, reply in replies.items() if reply.test is not None}
    validations = {client: reply.validation for client, reply in replies.items() if reply.validation is not None}
    losses = [test.loss for test in tests.values() if test.examples]
    loss = float(np.mean(losses)) if losses else math.nan
    found = {TEST: _figures(tests), "validation": _figures(validations)}
    lacking = {part: [c for c, figure in each.items() if math.isnan(figure)] for part, each in found.items()}
    known = {part: {c: figure for c, figure in each.items() if not math.isnan(figure)} for part, each in found.items()}
    without = {part: clients for part, clients in lacking.items() if clients}
    return Evaluated(known[TEST] or None, known["validation"] or None, loss, without)


def _figures(parts: Mapping[int, Evaluation]) -> dict[int, float]:
    return {client: part.figure if part.examples else math.nan for client, part in parts.items()}


def metrics(figures: Mapping[str, float]) -> MetricRecord:
    """Flower's record of some figures."""
    return MetricRecord({key: float(value) for key, value in figures.items()})
