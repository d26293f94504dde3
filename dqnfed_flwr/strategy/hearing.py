"""Who has a say in a round: whose rows make its step, whose votes on the step count, and what the votes decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from logging import WARNING

from flwr.common.logger import log

from dqnfed_flwr.config import GuaranteeSettings
from dqnfed_flwr.guarantee.harm import STRICT, entitlement, resolution
from dqnfed_flwr.guarantee.overrule import (
    CONTRADICTION,
    LADDERS,
    LATER,
    OVERRULED,
    SET_ASIDE,
    Standing,
    accusation,
    broken_promise,
    falls_behind,
    falls_behind_a_flat_start,
    opposed,
    reach,
    refuses_against_its_gradient,
    two_losses,
)
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import Verdict
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Probe

HOPELESS = 0.1
"""The row of a claimant is set aside where it takes away all but this share of the others' best common cosine."""
CONTESTED_TRIES = 2
"""Candidates of a contested round; if a client refuses the last one too, the model stays for this round."""


def say_if_tolerate_is_cut(run: RunPlan, asked: int) -> None:
    """Log where fewer of so many clients asked can be overruled than `guarantee.tolerate` says."""
    guarantee = run.settings.guarantee
    if run.rule.judged_by == "test" and guarantee.is_cut(asked):
        text = "guarantee.tolerate: found %g; at most %d of the %d clients asked in a round can be overruled"
        log(WARNING, text, guarantee.tolerate, guarantee.liars(asked), asked)


@dataclass(slots=True)
class Hearing:
    """Who has a say in a round's direction."""

    losses: dict[int, float]  # f_k(theta^{t-1}) of the participants, who were asked for a row and said it; rising
    heard: tuple[int, ...]  # whose rows make the direction, rising
    slots: dict[int, int]  # places of the sound rows, by client
    entitlement: float = 0.0  # e of the round
    muted: dict[int, str] = field(default_factory=dict)  # contradicted themselves, and how
    cuts: dict[int, float] = field(default_factory=dict)  # below 1: what the rows of clients were multiplied by
    claimants: frozenset[int] = frozenset()  # those with a claim: a vote that cannot be withdrawn
    aside: dict[int, str] = field(default_factory=dict)  # sound rows set aside for this round, and why; they may vote
    apart: frozenset[int] = frozenset()  # without a part in the mean
    unreadable: int = 0  # how many of those asked answered without saying what their loss is
    disowned: frozenset[int] = frozenset()  # whose rows have counted so far and count no more
    floor: float | None = 0.0  # least value of a loss; None where that is not known

    @property
    def unheard(self) -> tuple[int, ...]:
        """Those with a sound row that is not in the direction, rising."""
        return tuple(sorted(set(self.slots).difference(self.heard)))

    @property
    def voteless(self) -> tuple[int, ...]:
        """Those whose word on the step does not count from the start: without a sound row, or muted; rising."""
        return tuple(sorted({*self.losses}.difference(self.slots).union(self.muted)))

    @property
    def dropped(self) -> list[DroppedClient]:
        """Those that are not heard, for the event."""
        kinds = ((CONTRADICTION, self.muted), (SET_ASIDE, self.aside))
        return [DroppedClient(client, reason, detail) for reason, found in kinds for client, detail in found.items()]


def decide_hearing(
    collected: Collected, schedule: Schedule, state: RunState, run: RunPlan, *, guaranteed: bool
) -> Hearing:
    """Decide who is heard; cut rows that are too long, and note in `state.standing` who contradicts itself.

    `guaranteed` is whether the method promises something to each client. Only then are rows that are too long cut, in
    place, and rows that oppose the others' set aside.
    """
    losses, rows, slots = collected.losses, collected.rows.held, collected.slots()
    standing, number = state.standing, schedule.round
    unreadable = sum(
        client in schedule.train and client not in losses and drop.reason != "absent"
        for client, drop in collected.dropped.items()
    )
    guarantee = run.settings.guarantee
    level, share = guarantee.level_and_share
    liars = guarantee.liars(len(schedule.train))
    hearing = Hearing(dict(sorted(losses.items())), tuple(slots), slots, unreadable=unreadable, floor=collected.floor)
    if run.rule.judged_by != "test":
        hearing.entitlement = entitlement([*losses.values()], 0.0, 0.0, 0)
        return hearing
    hearing.muted = _muted(hearing.losses, collected.caught, standing, number, state.moves)
    believed = {client: loss for client, loss in losses.items() if client not in hearing.muted} or losses
    left, before = max(liars - len(hearing.muted), 0), standing.entitlement
    found = entitlement([*believed.values()], level, share, left, before, collected.floor)
    standing.entitlement = hearing.entitlement = found
    if share and found == STRICT < before:
        _say_strict(believed, number)
    hearing.heard = tuple(client for client in slots if client not in hearing.muted)
    if not guaranteed:
        return hearing
    hearing.claimants = frozenset(standing.claims.intersection(losses).difference(hearing.muted))
    hearing.aside = _opposing(rows, hearing, liars, standing.aside) if liars else {}
    hearing.heard = tuple(client for client in hearing.heard if client not in hearing.aside)
    hearing.disowned = standing.set_apart(losses, hearing.aside, hearing.muted, number)
    hearing.apart = frozenset(client for client in hearing.losses if standing.is_apart(client, number))
    longest = guarantee.longest(len(schedule.train))
    hearing.cuts = rows.cut_long({client: slots[client] for client in hearing.heard}, longest)
    return hearing


def _say_strict(losses: Mapping[int, float], round_number: int) -> None:
    """Log, once in a run, that there is nothing a share of the typical loss could count from."""
    client, loss = min(losses.items(), key=lambda item: item[1])
    log(
        WARNING,
        "Round %d: the loss of client %d is %.6g, and the least value of the loss is not known: from now on no loss "
        "may rise at all. Give it as floor, of the task or of Guaranteed, or give guarantee.entitlement as a loss",
        round_number,
        client,
        loss,
    )


def _opposing(rows: RowSet, hearing: Hearing, liars: int, before: Collection[int]) -> dict[int, str]:
    """Those whose rows are set aside for the sake of the others' common step, with the reason.

    Of those who answered, no more than the `liars` are not heard, for whatever reason. The row of a claimant is kept as
    long as the others have a direction with it that is worth a step.
    """
    heard = [client for client in hearing.heard if rows.squared_norm(hearing.slots[client]) > 0]
    gram = rows.gram([hearing.slots[client] for client in heard])
    out = opposed(gram, heard, liars - hearing.unreadable - (len(hearing.losses) - len(heard)), before)
    kept = [client for client in out if client not in hearing.claimants]
    if len(kept) < len(out) and reach(gram, heard, kept) > HOPELESS * reach(gram, heard, out):
        out = kept
    return dict.fromkeys(out, "its gradient opposes the others', who have a much better common step without it")


def _muted(
    losses: Mapping[int, float], caught: Mapping[int, str], standing: Standing, round_number: int, model: int
) -> dict[int, str]:
    """Those of the participants who contradict themselves, now or not long ago, with what they said."""
    found = dict(caught)
    for client, loss in losses.items():
        known, before = standing.said.get(client, (-1, math.nan))
        if known == model and (words := two_losses("it reported loss", before, "and later", loss)):
            found.setdefault(client, words)
        standing.said[client] = (model, loss)
    for client, words in found.items():
        log(WARNING, "Round %d: client %d %s", round_number, client, accusation(words))
        standing.catch(client, round_number)
    muted = {client for client in losses if standing.is_muted(client, round_number)}
    return {
        client: found.get(client, f"{LATER}{standing.muted[client]}, for what it said before")
        for client in sorted(muted)
    }


def catch_liars(
    pending: PendingStep,
    votes: Mapping[int, Probe],
    caught: Mapping[int, str],
    standing: Standing,
    *,
    last_chance: bool = False,
) -> bool:
    """Take the vote on a step from those who contradict themselves; True if that changed anything.

    Who is caught, and who may be next, is noted in `pending`. `votes` are the probes of those with a vote; `caught` are
    clients whose reply of this exchange contradicts itself, with what it says. At the `last_chance` no factor is left
    to try: the least does not suit those that refuse it either.
    """
    votes = {client: probe for client, probe in votes.items() if client not in pending.votes.caught}  # once is enough
    found = {client: words for client, words in sorted(caught.items()) if client in votes}
    for client, probe in votes.items():
        if words := broken_promise(probe, pending.tried.promised.get(client), pending.ladder.factor):
            found.setdefault(client, words)
        elif _refuses_the_ladder(pending, client, probe, last_chance=last_chance):
            pending.tried.blocked[client] = pending.tried.blocked.get(client, 0) + 1
            if last_chance or pending.tried.blocked[client] >= LADDERS:
                found.setdefault(client, _against_its_gradient(pending, client, probe))
    pending.tried.promised = {
        client: (probe.back_factor, probe.back_loss)
        for client, probe in votes.items()
        if probe.back_factor is not None and probe.back_loss is not None
    }
    for client, words in found.items():
        log(WARNING, "Client %d has no vote on round %d: %s", client, pending.round, words)
        pending.dropped.append(DroppedClient(client, CONTRADICTION, words))
        standing.catch(client, pending.round)
    pending.votes.caught = (*pending.votes.caught, *found)
    return bool(found)


def _refuses_the_ladder(pending: PendingStep, client: int, probe: Probe, *, last_chance: bool) -> bool:
    """Whether a client refuses all rungs that were asked for, though its own gradient has its loss fall or stay there.

    What its held-out part refuses, no training loss contradicts; nor what rounding may have made of its gradient.
    """
    loss, slope, doubt = pending.losses[client], pending.slopes[client], pending.doubts.get(client, 0.0)
    if not pending.ladder.halvings or loss <= pending.entitlement or probe.held_out is False:
        return False
    if doubt and slope <= doubt:
        return False
    if not refuses_against_its_gradient(probe, loss, slope, pending.ladder.lowest):
        return False
    if slope == 0:
        return falls_behind_a_flat_start(probe, loss)
    return last_chance or falls_behind(probe, loss)


def _against_its_gradient(pending: PendingStep, client: int, probe: Probe) -> str:
    """The words for a client that refuses the ladder against its own gradient."""
    loss, slope, lowest = pending.losses[client], pending.slopes[client], pending.ladder.lowest
    behind = "" if probe.behind_loss is None else f", and {probe.behind_loss:.6g} as far behind"
    if slope == 0:
        return f"its gradient has its loss of {loss:.6g} stay, yet it is {probe.loss:.6g} along the step{behind}"
    return (
        f"its gradient has its loss of {loss:.6g} fall by {lowest * slope:.3g} at factor {lowest:.3g}, yet no factor "
        f"down to it suits it{behind}"
    )


def withdraw_votes(
    pending: PendingStep,
    votes: Mapping[int, Probe],
    caught: Mapping[int, str],
    standing: Standing,
    settings: GuaranteeSettings,
    *,
    last_chance: bool = False,
) -> bool:
    """Take the votes on a step from liars, and from the overruled; True if any was taken.

    Arguments are those of `catch_liars`.
    """
    changed = catch_liars(pending, votes, caught, standing, last_chance=last_chance)
    left = pending.votes.counted(votes)
    return overrule_refusals(pending, left, standing, settings, last_chance=last_chance) or changed


def overrule_refusals(
    pending: PendingStep,
    votes: Mapping[int, Probe],
    standing: Standing,
    settings: GuaranteeSettings,
    *,
    last_chance: bool = False,
) -> bool:
    """Overrule those that refuse a candidate where they are few enough; True if that was done.

    A client that would do with half the factor gets it, unless it refused the last time as well. No client is overruled
    in a round in which a client has a claim. Arguments are those of `catch_liars`.
    """
    refusing = {client: probe for client, probe in votes.items() if not probe.holds}
    pending.votes.note_refusals(refusing)
    out = {*pending.votes.voteless, *pending.votes.caught, *pending.votes.overruled, *pending.votes.aside, *refusing}
    most = settings.liars(len(pending.asked)) - pending.votes.unreadable
    if pending.scale.contested or not refusing or len(out) > most:
        return False
    half = pending.ladder.factor / 2
    modest = [c for c, probe in refusing.items() if probe.back_factor == half and c not in standing.refused]
    if modest and not last_chance and not pending.tried.misses:
        return False
    for client, probe in refusing.items():
        rises = "its held-out part refuses, and " if probe.held_out is False else ""
        to = f"from {pending.losses[client]:.6g} to {probe.loss:.6g}"
        detail = f"{rises}its loss would go {to}; the others accept the step"
        log(WARNING, "Client %d is overruled in round %d: %s", client, pending.round, detail)
        pending.dropped.append(DroppedClient(client, OVERRULED, detail))
    pending.votes.overruled = (*pending.votes.overruled, *refusing)
    return True


class Judgement(Enum):
    """What becomes of a candidate."""

    ACCEPTED = "it is the model"
    SHORTER = "a shorter one is tried"
    LONGER = "it suits, and a longer one that suits as well is better"
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
    candidate is turned down a miss is noted in `pending`.
    """
    withdrawn = withdraw(pending.votes.counted(collected.probes), collected.caught, False)
    if withdrawn and pending.ladder.factor < pending.tried.first:
        pending.tried.misses += 1
        return Judgement.RESTART, pending.tried.first
    votes = pending.votes.counted(collected.probes)
    verdict = verdict_of(votes)
    if verdict.accepted:
        return Judgement.ACCEPTED, verdict.factor
    if pending.ladder.alone and verdict.factor > pending.ladder.factor:
        return Judgement.LONGER, verdict.factor
    pending.tried.misses += 1
    if pending.scale.contested and pending.tried.misses >= CONTESTED_TRIES:
        return Judgement.CONTESTED, 0.0
    if not verdict.stationary:
        return Judgement.SHORTER, verdict.factor
    if withdraw(votes, {}, True):
        return Judgement.RESTART, pending.tried.first
    return Judgement.NO_LENGTH, 0.0


def remember_round(state: RunState, pending: PendingStep, factor: float, losses: Mapping[int, float]) -> None:
    """Note in `state.standing` what the round of the `pending` step showed of its participants.

    `losses` are those that they reported at the model after it, which moved where `factor` is not 0. The overruled, and
    those set aside whose loss did not fall, have a claim then. A round in which a client has one gives no other, so
    that there are rounds without.
    """
    before, votes, standing = pending.losses, pending.votes, state.standing
    idle = [c for c in votes.aside if not losses.get(c, before[c]) < before[c] - resolution(before[c])]
    claimants = () if pending.scale.contested else (*votes.overruled, *idle)
    standing.took_part(pending.clients, claimants, votes.refused, pending.round)
    if factor:
        standing.said |= {client: (state.moves, loss) for client, loss in losses.items()}
