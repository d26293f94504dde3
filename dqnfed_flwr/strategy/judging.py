"""What the votes on a candidate decide, and what is remembered of the clients when its round is over.

The package's own loop and the one of a guarded strategy both go by this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from dqnfed_flwr.guarantee.harm import resolution
from dqnfed_flwr.steps import Verdict
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.types import Probe

CONTESTED_TRIES = 2
"""Candidates of a contested round; if a client refuses the last one too, the model stays for this round."""


class Judgement(Enum):
    """What becomes of a candidate."""

    ACCEPTED = "it is the model"
    SHORTER = "a shorter one is tried"
    RESTART = "the first factor is tried again: some for whom it was cut have no vote any more"
    CONTESTED = "the round is over: a client whose vote cannot be withdrawn refuses it"
    NO_LENGTH = "no length of the step is left to try"


def judge_candidate(
    pending: PendingStep,
    collected: Collected,
    withdraw: Callable[[Mapping[int, Probe], Mapping[int, str], bool], bool],
    verdict_of: Callable[[Mapping[int, Probe]], Verdict],
) -> tuple[Judgement, float]:
    """What becomes of the candidate by the probes in `collected`, one at least; and the factor that counts or follows.

    `withdraw` takes votes away, see `hearing.withdraw_votes`: its arguments are the votes, who contradicts itself in
    this exchange, and whether it is the last chance. `verdict_of` is the step rule on the votes that count. Where the
    candidate is not accepted a miss is noted in `pending`.
    """
    withdrawn = withdraw(pending.votes.counted(collected.probes), collected.caught, False)
    if withdrawn and pending.ladder.factor < pending.first:
        pending.misses += 1
        return Judgement.RESTART, pending.first
    votes = pending.votes.counted(collected.probes)
    verdict = verdict_of(votes)
    if verdict.accepted:
        return Judgement.ACCEPTED, verdict.factor
    pending.misses += 1
    if pending.scale.contested and pending.misses >= CONTESTED_TRIES:
        return Judgement.CONTESTED, 0.0
    if not verdict.stationary:
        return Judgement.SHORTER, verdict.factor
    if withdraw(votes, {}, True):
        return Judgement.RESTART, pending.first
    return Judgement.NO_LENGTH, 0.0


def remember_round(state: RunState, pending: PendingStep, factor: float, losses: Mapping[int, float]) -> None:
    """Note in `state.standing` what the round of the `pending` step showed of its participants.

    `losses` are those that they reported at the model after it, which moved where `factor` is not 0.
    """
    state.standing.took_part(pending.clients, new_claimants(pending, losses), pending.votes.refused, pending.round)
    if factor:
        state.standing.said |= {client: (state.moves, loss) for client, loss in losses.items()}


def new_claimants(pending: PendingStep, losses: Mapping[int, float]) -> list[int]:
    """Who has a claim after a round: the overruled, and those set aside whose loss did not fall.

    A round in which a client has a claim gives no other, so that there are rounds without.
    """
    if pending.scale.contested:
        return []
    before = pending.losses
    idle = [c for c in pending.votes.aside if not losses.get(c, before[c]) < before[c] - resolution(before[c])]
    return [*pending.votes.overruled, *idle]
