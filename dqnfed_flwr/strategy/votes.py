"""The vote on a step that missed: who contradicts itself loses it, so that the others are not held up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from logging import WARNING

from flwr.common.logger import log

from dqnfed_flwr.admission import VETO, Ledger, fall_behind, promise_breakers, stubborn
from dqnfed_flwr.config import AdmissionSettings
from dqnfed_flwr.strategy.pending import PendingStep
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Probe


def silence(
    pending: PendingStep,
    probes: Mapping[int, Probe],
    ledger: Ledger,
    settings: AdmissionSettings,
    *,
    last_chance: bool,
) -> bool:
    """Take the vote on a step that missed from a minority that contradicts itself; True if that changed anything.

    Parameters
    ----------
    pending : PendingStep
        The step; who lost the vote and who may lose it next are noted in it.
    probes : Mapping[int, Probe]
        What the participants said of the candidate.
    ledger : Ledger
        Counts the votes taken.
    settings : AdmissionSettings
        The limits.
    last_chance : bool
        No factor is left to try: the least does not suit those that refuse it either, and one such ladder is enough.
    """
    ladder = pending.ladder
    if settings.mode == "off" or not settings.veto_limit or not ladder.halvings or pending.relaxed:
        return False
    _count_contradictions(pending, probes, last_chance=last_chance)
    least = 1 if last_chance else settings.veto_limit
    out = [client for client, count in pending.blocked.items() if count >= least]
    details = {
        client: f"its loss rose from {pending.losses[client]:.6g} to {probes[client].loss:.6g} where its gradient has "
        f"it fall by {ladder.factor * pending.slopes[client]:.3g}; no smaller factor suits it, or not when it is "
        "tried, or its loss falls the other way"
        for client in out
    }
    return _take_votes(pending, details, len(probes), ledger, settings)


def silence_unfit(
    pending: PendingStep, probes: Mapping[int, Probe], ledger: Ledger, settings: AdmissionSettings
) -> bool:
    """Take the vote from a minority whose losses are finite nowhere on the ladder of a search; True if it lost any.

    Without that one such reply would end the search, and with it the round or the run.
    """
    ladder = pending.ladder
    if settings.mode == "off" or not settings.veto_limit or not (ladder.rungs_above or ladder.rungs_below):
        return False
    unfit = [client for client, probe in probes.items() if not any(map(math.isfinite, probe.losses))]
    details = dict.fromkeys(unfit, "its loss is finite at no factor along a step at which the others' are")
    return _take_votes(pending, details, len(probes), ledger, settings)


def _take_votes(
    pending: PendingStep, details: Mapping[int, str], voters: int, ledger: Ledger, settings: AdmissionSettings
) -> bool:
    """Take the vote on a step from the clients of `details`, each with the reason, as long as they are a minority."""
    out = [client for client in details if client not in pending.silenced]
    if not out or 2 * (len(out) + len(pending.silenced)) >= voters:
        return False
    for client in out:
        detail = details[client]
        log(WARNING, "Client %d has no vote on round %d: %s", client, pending.round, detail)
        pending.dropped.append(DroppedClient(client, VETO, detail))
        if ledger.strike(client, VETO, pending.round, settings):
            log(WARNING, "Client %d is suspended until round %d", client, ledger.until[client])
    pending.silenced, pending.blocked = (*pending.silenced, *out), {}
    return True


def _count_contradictions(pending: PendingStep, probes: Mapping[int, Probe], *, last_chance: bool) -> None:
    """Note in `pending` in how many exchanges each participant contradicted itself, and what factors they name now.

    Who refuses a whole ladder, as an honest client with a sharply curved loss does, keeps its count.
    """
    losses, slopes, ladder = pending.losses, pending.slopes, pending.ladder
    refusing = stubborn(probes, losses, slopes, ladder.factor * 0.5**ladder.halvings)
    promised = [client for client, factor in pending.promised.items() if factor == ladder.factor]
    broken = promise_breakers(probes, losses, slopes, promised)
    found = broken | (refusing if last_chance else refusing & fall_behind(probes, losses))
    counts = {client: pending.blocked.get(client, 0) + (client in found) for client in sorted(refusing | broken)}
    pending.blocked = {c: count for c, count in counts.items() if count and c not in pending.silenced}
    pending.promised = {client: p.back_factor for client, p in probes.items() if p.back_factor is not None}
