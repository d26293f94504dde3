"""The event of a round that is over, put together from the pending step and what the clients reported."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
from flwr.app import MetricRecord

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.overrule import Certificate
from dqnfed_flwr.strategy.records import PendingStep, RoundCost, each_once
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientReply, Evaluation

NOT_FINITE = "not-finite"
NONE = Certificate(distance=math.nan)


def round_event(
    pending: PendingStep,
    factor: float,
    losses_after: Mapping[int, float],
    status: str,
    evaluated: Mapping[int, ClientReply],
    dropped: list[DroppedClient],
    cost: RoundCost,
) -> RoundEvent:
    """The record of a round.

    Parameters
    ----------
    pending, factor, status
        The round's step, the factor at which it was applied, 0 when the model stayed, and what became of it.
    losses_after : Mapping[int, float]
        f_k(theta^t) of the participants that reported it.
    evaluated : Mapping[int, ClientReply]
        Replies that hold evaluations at theta^t.
    dropped : list[DroppedClient]
        Left out when it was judged, in addition to those of its solve.
    cost : RoundCost
        What it cost, and who was left out in exchanges that ended no round.
    """
    before = [pending.losses[client] for client in pending.clients]
    after = [losses_after.get(client, math.nan) for client in pending.clients]
    combination = pending.combination
    accuracy, validation, test_loss = evaluations(evaluated)
    certificate = pending.certificate if factor == 0 else NONE
    return RoundEvent(
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
        accuracy=accuracy,
        validation=validation,
        test_loss=test_loss,
        notes=dict(combination.notes),
        asked=len(pending.asked),
        heard=list(pending.heard),
        overruled=[client for client in pending.overruled if client not in pending.caught],
        refused=list(pending.refused),
        entitlement=pending.entitlement,
        certificate=dict(certificate.weights),
        distance=certificate.distance,
    )


def most_frequent_reason(dropped: Mapping[int, DroppedClient]) -> str:
    """Why most of the clients in `dropped` were left out, with what the first of them said; empty if nobody was.

    Where the figures of several were all too large at once, it is the model that went astray, and what helps is said.
    """
    if not dropped:
        return ""
    reason, count = Counter(drop.reason for drop in dropped.values()).most_common(1)[0]
    said = next(drop for drop in dropped.values() if drop.reason == reason)
    lines = [line.strip() for line in said.detail.splitlines() if line.strip()] or [""]
    detail = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    why = f". {count} of {len(dropped)} left out: {reason}, client {said.client}: {detail}"
    if len(dropped) > 1 and all(drop.reason == NOT_FINITE for drop in dropped.values()):
        why += (
            ". All at once: the training has diverged; lower local.lr or step.lr, or take a step rule that holds the "
            "step back (step-rule clipped, probed)"
        )
    return why


def evaluations(
    replies: Mapping[int, ClientReply],
) -> tuple[dict[int, float] | None, dict[int, float] | None, float]:
    """Test and validation accuracy of each client whose reply has them, None where none has, and the mean test loss."""
    tests = {client: reply.test for client, reply in replies.items() if reply.test is not None}
    validations = {client: reply.validation for client, reply in replies.items() if reply.validation is not None}
    losses = [test.loss for test in tests.values() if test.examples]
    loss = float(np.mean(losses)) if losses else math.nan
    return _accuracies(tests), _accuracies(validations), loss


def _accuracies(parts: Mapping[int, Evaluation]) -> dict[int, float] | None:
    accuracies = {client: part.correct / part.examples for client, part in parts.items() if part.examples}
    return accuracies or None


def metrics(figures: Mapping[str, float]) -> MetricRecord:
    """Flower's record of some figures."""
    return MetricRecord({key: float(value) for key, value in figures.items()})
