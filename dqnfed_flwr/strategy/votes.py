"""The vote on a candidate: who contradicts itself has none, and a few that refuse may be overruled."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING

from flwr.common.logger import log

from dqnfed_flwr.config import GuaranteeSettings
from dqnfed_flwr.guarantee.claims import (
    CONTRADICTION,
    LADDERS,
    broken_promise,
    falls_behind,
    infinite_everywhere,
    refuses_against_its_gradient,
)
from dqnfed_flwr.guarantee.overrule import OVERRULED, Standing
from dqnfed_flwr.strategy.pending import PendingStep
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Probe


def catch_liars(
    pending: PendingStep,
    votes: Mapping[int, Probe],
    caught: Mapping[int, str],
    standing: Standing,
    *,
    last_chance: bool = False,
) -> bool:
    """Take the vote on a step from those who contradict themselves; True if that changed anything.

    Parameters
    ----------
    pending : PendingStep
        The step; who is caught, and who may be next, is noted in it.
    votes : Mapping[int, Probe]
        What those with a vote say of the candidate.
    caught : Mapping[int, str]
        Clients whose reply of this exchange contradicts itself, with what it says.
    standing : Standing
        Of all clients; changed.
    last_chance : bool
        No factor is left to try: the least does not suit those that refuse it either.
    """
    ladder = pending.ladder
    votes = {client: probe for client, probe in votes.items() if client not in pending.caught}  # once is enough
    found = {client: words for client, words in sorted(caught.items()) if client in votes}
    if ladder.rungs_above or ladder.rungs_below:
        found |= dict.fromkeys(infinite_everywhere(votes), "its loss is finite at no factor at which the others' are")
    for client, probe in votes.items():
        broken = broken_promise(probe, pending.promised.get(client), ladder.factor)
        if words := broken or _against_its_gradient(pending, client, probe, last_chance=last_chance):
            found.setdefault(client, words)
    pending.promised = {
        client: (probe.back_factor, probe.back_loss)
        for client, probe in votes.items()
        if probe.back_factor is not None and probe.back_loss is not None
    }
    for client, words in found.items():
        log(WARNING, "Client %d has no vote on round %d: %s", client, pending.round, words)
        pending.dropped.append(DroppedClient(client, CONTRADICTION, words))
        standing.catch(client, pending.round)
    pending.caught = (*pending.caught, *found)
    return bool(found)


def _against_its_gradient(pending: PendingStep, client: int, probe: Probe, *, last_chance: bool) -> str:
    """Words, once a client has refused whole ladders against its own gradient, `LADDERS` times or the last one."""
    ladder, loss, slope = pending.ladder, pending.losses[client], pending.slopes[client]
    lowest = ladder.factor * 0.5**ladder.halvings
    if not ladder.halvings or loss <= pending.entitlement:
        return ""
    if not refuses_against_its_gradient(probe, loss, slope, lowest) or not (last_chance or falls_behind(probe, loss)):
        return ""
    pending.blocked[client] = pending.blocked.get(client, 0) + 1
    if pending.blocked[client] < LADDERS and not last_chance:
        return ""
    behind = "" if probe.behind_loss is None else f", and {probe.behind_loss:.6g} as far behind"
    return (
        f"its gradient has its loss of {loss:.6g} fall by {lowest * slope:.3g} at factor {lowest:.3g}, yet no factor "
        f"down to it suits it{behind}"
    )


def overrule_refusals(
    pending: PendingStep,
    votes: Mapping[int, Probe],
    standing: Standing,
    settings: GuaranteeSettings,
    *,
    last_chance: bool = False,
) -> bool:
    """Overrule those that refuse a candidate where they are few enough; True if that was done.

    Who would do with half the factor gets it, unless it refused the last time as well. Nobody is overruled in a round
    in which somebody has a claim.

    Parameters
    ----------
    pending, votes, standing, last_chance
        As for `catch_liars`.
    settings : GuaranteeSettings
        How many may be overruled in a round.
    """
    refusing = {client: probe for client, probe in votes.items() if not probe.holds}
    pending.refused = (*pending.refused, *(client for client in refusing if client not in pending.refused))
    out = {*pending.voteless, *pending.caught, *pending.overruled, *pending.aside, *refusing}
    most = settings.liars(len(pending.asked)) - pending.unreadable
    if pending.scale.contested or not refusing or len(out) > most:
        return False
    half = pending.ladder.factor / 2
    modest = [c for c, probe in refusing.items() if probe.back_factor == half and c not in standing.refused]
    if modest and not last_chance and not pending.misses:
        return False
    for client, probe in refusing.items():
        detail = f"its loss would go from {pending.losses[client]:.6g} to {probe.loss:.6g}; the others accept the step"
        log(WARNING, "Client %d is overruled in round %d: %s", client, pending.round, detail)
        pending.dropped.append(DroppedClient(client, OVERRULED, detail))
    pending.overruled = (*pending.overruled, *refusing)
    return True
