"""The event of a settled round, put together from the pending step and what the clients reported."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.overrule import Certificate
from dqnfed_flwr.strategy.pending import PendingStep
from dqnfed_flwr.strategy.tally import Tally
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
    tally: Tally,
) -> RoundEvent:
    """The record of a round.

    Parameters
    ----------
    pending : PendingStep
        The round's step.
    factor : float
        With which it was applied; 0 when the model stayed.
    losses_after : Mapping[int, float]
        f_k(theta^t) of the participants that reported it.
    status : str
        Of the round.
    evaluated : Mapping[int, ClientReply]
        Replies that hold evaluations at theta^t.
    dropped : list[DroppedClient]
        Left out while it was settled, beside those of its solve.
    tally : Tally
        What it cost, and who was left out in exchanges that settled nothing.
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
        misses=pending.misses + tally.misses,
        exchanges=tally.exchanges,
        pairs_kept=pending.pairs_kept,
        pairs_rejected=pending.pairs_rejected,
        dropped=_each_once([*pending.dropped, *dropped, *tally.dropped]),
        bytes_up=tally.bytes_up,
        bytes_down=tally.bytes_down,
        repeated_calls=tally.repeated_calls,
        seconds={**tally.seconds, "total": time.perf_counter() - tally.since},
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


def _each_once(dropped: Iterable[DroppedClient]) -> list[DroppedClient]:
    """The first for each client and reason: a client may fail at the same in several exchanges of a round."""
    found: dict[tuple[int, str], DroppedClient] = {}
    for drop in dropped:
        found.setdefault((drop.client, drop.reason), drop)
    return list(found.values())


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
    told = f". {count} of {len(dropped)} left out: {reason}, client {said.client}: {detail}"
    if len(dropped) > 1 and all(drop.reason == NOT_FINITE for drop in dropped.values()):
        told += (
            ". All at once: the training has diverged; lower local.lr or step.lr, or take a step rule that holds the "
            "step back (step-rule clipped, probed)"
        )
    return told


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
