"""Whose rows make the step of a round: who is heard in the direction, and who is set aside, muted or without a row."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from logging import WARNING

import numpy as np
from flwr.common.logger import log

from dqnfed_flwr.config import Settings
from dqnfed_flwr.guarantee.claims import CONTRADICTION, two_losses
from dqnfed_flwr.guarantee.harm import entitlement
from dqnfed_flwr.guarantee.overrule import SET_ASIDE, Standing, opposed, reach
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Float64Array

LONGEST_NORM, LONGEST_OF_LIARS = 8.0, 1.0
"""Rows are cut to so many times the median norm of the round before they make a reference or a rate; the second where
some of them may be a liar's."""


HOPELESS = 0.1
"""The row of a claimant is set aside where it takes away all but this share of the others' best common cosine."""


@dataclass(slots=True)
class Hearing:
    """Who has a say in a round's direction.

    Attributes
    ----------
    losses : dict[int, float]
        f_k(theta^{t-1}) of every participant, rising: all who were asked for a row and said what their loss is.
    heard : tuple[int, ...]
        Those whose rows make the direction, rising.
    muted : dict[int, str]
        Those that contradicted themselves.
    slots : dict[int, int]
        Places of the sound rows, by client.
    entitlement : float
        e of the round.
    cuts : dict[int, float]
        Below 1: what the rows of clients were multiplied by.
    claimants : frozenset[int]
        Those with a claim: they have a vote that nobody can take away.
    aside : dict[int, str]
        Those whose sound rows are set aside for this round, with the reason in words; they keep their vote.
    apart : frozenset[int]
        Those who have no part in the mean.
    unreadable : int
        How many of those asked answered without saying what their loss is.
    disowned : frozenset[int]
        Those whose rows have counted so far and count no more.
    """

    losses: dict[int, float]
    heard: tuple[int, ...]
    slots: dict[int, int]
    entitlement: float = 0.0
    muted: dict[int, str] = field(default_factory=dict)
    cuts: dict[int, float] = field(default_factory=dict)
    claimants: frozenset[int] = frozenset()
    aside: dict[int, str] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    unreadable: int = 0
    disowned: frozenset[int] = frozenset()

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


def hold_hearing(
    losses: Mapping[int, float],
    basis: Basis,
    slots: Mapping[int, int],
    caught: Mapping[int, str],
    standing: Standing,
    settings: Settings,
    *,
    round_number: int,
    model: int,
    guaranteed: bool,
    asked: int,
    unreadable: int = 0,
) -> Hearing:
    """Decide who is heard; cut rows that are too long, and note in `standing` who contradicts itself.

    Parameters
    ----------
    losses : Mapping[int, float]
        Of every participant.
    basis : Basis
        With the rows; cut in place where the method is `guaranteed`.
    slots : Mapping[int, int]
        Places of the usable rows, by client, rising.
    caught : Mapping[int, str]
        Those whose reply contradicts itself, with both claims in words.
    standing : Standing
        Of all clients; changed.
    settings : Settings
        Of the run.
    round_number, model : int
        t, and how often the model has moved.
    guaranteed : bool
        Whether the method promises something to each client. Without that, nobody's row is set aside for opposing the
        others', and rows are as long as they came.
    asked, unreadable : int
        How many clients were asked for a row, and how many of them answered without saying what their loss is.
    """
    level, share = settings.guarantee.level_and_share
    liars = settings.guarantee.liars(asked)
    hearing = Hearing(dict(sorted(losses.items())), tuple(slots), dict(slots), unreadable=unreadable)
    if settings.rule != "probed":
        return hearing
    hearing.muted = _muted(hearing.losses, caught, standing, round_number, model)
    believed = [loss for client, loss in losses.items() if client not in hearing.muted] or [*losses.values()]
    left = max(liars - len(hearing.muted), 0)
    standing.entitlement = hearing.entitlement = entitlement(believed, level, share, left, standing.entitlement)
    hearing.heard = tuple(client for client in slots if client not in hearing.muted)
    if not guaranteed:
        return hearing
    hearing.claimants = frozenset(standing.claims.intersection(losses).difference(hearing.muted))
    hearing.aside = _opposing(basis, hearing, liars, standing.aside) if liars else {}
    hearing.heard = tuple(client for client in hearing.heard if client not in hearing.aside)
    hearing.disowned = standing.set_apart(losses, hearing.aside, hearing.muted, round_number)
    hearing.apart = frozenset(client for client in hearing.losses if standing.is_apart(client, round_number))
    hearing.cuts = _cut(
        basis, {client: slots[client] for client in hearing.heard}, LONGEST_OF_LIARS if liars else LONGEST_NORM
    )
    return hearing


def _opposing(basis: Basis, hearing: Hearing, liars: int, before: Collection[int]) -> dict[int, str]:
    """Those whose rows are set aside for the sake of the others' common step, with the reason.

    Of those who answered, no more than the `liars` are not heard, for whatever reason. The row of a claimant is kept as
    long as the others have a direction with it that is worth a step.
    """
    heard = [client for client in hearing.heard if basis.squared_norm(hearing.slots[client]) > 0]
    gram = basis.gram([hearing.slots[client] for client in heard])
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
        log(WARNING, "Client %d contradicts itself in round %d: %s", client, round_number, words)
        standing.catch(client, round_number)
    muted = {client for client in losses if standing.is_muted(client, round_number)}
    return {
        client: found.get(client, f"not heard until round {standing.muted[client]}, for what it said before")
        for client in sorted(muted)
    }


def _cut(basis: Basis, slots: Mapping[int, int], medians: float) -> dict[int, float]:
    """Scale rows longer than so many `medians` to that length; by what, for those that were."""
    norms = {client: math.sqrt(basis.squared_norm(slot)) for client, slot in slots.items()}
    moving = [norm for norm in norms.values() if norm > 0]
    if not moving:
        return {}
    longest = medians * float(np.median(moving))
    cuts = {client: longest / norm for client, norm in norms.items() if norm > longest}
    for client, by in cuts.items():
        basis.scale(slots[client], by)
    return cuts


def slack(losses: Float64Array, level: float) -> Float64Array:
    """By how much each loss [K] may rise to the entitlement `level`; 0 from there on."""
    return np.maximum(level - losses, 0.0)
