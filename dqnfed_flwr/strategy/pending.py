"""A step that waits for the clients' verdict: what is known when it is formed, and is needed until it was judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from dqnfed_flwr.guarantee.overrule import Certificate, certificate
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination, Float64Array, Probe, RoundBatch

if TYPE_CHECKING:
    from dqnfed_flwr.strategy.hearing import Hearing
    from dqnfed_flwr.strategy.intake import Collected
    from dqnfed_flwr.strategy.solve import Solved


@dataclass(slots=True)
class PendingStep:
    """A step that was solved for and waits for the clients' losses at the candidate.

    Attributes
    ----------
    round : int
        t; the step leads from theta^{t-1} to theta^t.
    step : Tensor
        [D].
    ladder : Ladder
        Candidate factor and rungs asked for.
    scale : StepScale
        What the rule may know of it.
    asked : tuple[int, ...]
        Clients that were asked for a row, rising.
    clients : tuple[int, ...]
        Participants: those of them whose loss is known, rising.
    heard : tuple[int, ...]
        Participants whose rows made the step, rising.
    losses, slopes, rates, shares, weights : dict[int, float]
        By participant: f_k(theta^{t-1}), g_k . step, d~_k, p_k, coefficient; 0 where there is no row, rates NaN.
    entitlement : float
        e of the round, see `guarantee.harm`.
    gram : Float64Array
        Inner products of the rows of those heard whose loss is above it, of all heard where none is [B, B].
    binding : tuple[int, ...]
        These clients [B].
    combination : Combination
        Of the solve; for the record.
    dropped : list[DroppedClient]
        Who was left out of the round, with the reason.
    pairs_kept, pairs_rejected : int
        Curvature pairs of the participants, counted.
    misses : int
        Candidates on this step that were turned down.
    relaxed : bool
        The step is that of the mean gradient, judged by the mean loss, because no common descent was found.
    fallback : Tensor | None
        Mean gradient [D], kept when the run may relax.
    blocked : dict[int, int]
        Ladders of this step that a participant refused against its own gradient, see `guarantee.claims`.
    promised : dict[int, tuple[float, float]]
        The factor that each participant named one exchange ago, and its loss there.
    voteless, aside, overruled, caught, refused : tuple[int, ...]
        Participants that have no vote from the start; whose row was set aside; that are overruled, that contradicted
        themselves, and that refused a candidate, up to now.
    first : float
        The first factor that was tried.
    unreadable : int
        Clients that were asked and answered without saying what their loss is.
    """

    round: int
    step: Tensor
    ladder: Ladder
    scale: StepScale
    asked: tuple[int, ...]
    clients: tuple[int, ...]
    heard: tuple[int, ...]
    losses: dict[int, float]
    slopes: dict[int, float]
    rates: dict[int, float]
    shares: dict[int, float]
    weights: dict[int, float]
    combination: Combination
    dropped: list[DroppedClient]
    gram: Float64Array
    binding: tuple[int, ...]
    entitlement: float = 0.0
    pairs_kept: int = 0
    pairs_rejected: int = 0
    misses: int = 0
    relaxed: bool = False
    fallback: Tensor | None = None
    blocked: dict[int, int] = field(default_factory=dict)
    promised: dict[int, tuple[float, float]] = field(default_factory=dict)
    voteless: tuple[int, ...] = ()
    aside: tuple[int, ...] = ()
    overruled: tuple[int, ...] = ()
    caught: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    first: float = 0.0
    unreadable: int = 0

    def votes(self, probes: Mapping[int, Probe]) -> dict[int, Probe]:
        """Those of the probes that count; all of them where none would."""
        out = {*self.voteless, *self.overruled, *self.caught}
        return {client: probe for client, probe in probes.items() if client not in out} or dict(probes)

    @property
    def certificate(self) -> Certificate:
        """How near the model is to a Pareto-stationary one, by the gradients that the step was made of."""
        return certificate(self.gram, self.binding)


def pending_step(
    batch: RoundBatch,
    solved: Solved,
    collected: Collected,
    hearing: Hearing,
    dropped: Sequence[DroppedClient],
    *,
    asked: Sequence[int],
) -> PendingStep:
    """The step of a solve, not offered yet: everybody whose loss is known judges it.

    Parameters
    ----------
    batch, solved, collected, hearing
        Of the round.
    dropped : Sequence[DroppedClient]
        Who was left out before the solve.
    asked : Sequence[int]
        Who was asked for a row.
    """
    excluded = solved.combination.excluded
    heard = tuple(client for client in hearing.heard if client not in excluded)
    slopes = dict(zip((*hearing.heard, *hearing.unheard), solved.slopes.tolist(), strict=True))
    place = {client: k for k, client in enumerate(batch.clients)}
    binding = [place[client] for client in heard if not batch.served[place[client]]]
    binding = binding or [place[client] for client in heard or hearing.heard]

    def by_client(values: Float64Array, absent: float = 0.0) -> dict[int, float]:
        return {client: float(values[place[client]]) if client in heard else absent for client in hearing.losses}

    weights = solved.combination.weights[[hearing.slots[client] for client in batch.clients]]
    return PendingStep(
        round=batch.round,
        step=solved.step,
        ladder=Ladder(0.0),
        scale=replace(solved.scale(batch.theta_norm, batch.round), contested=bool(hearing.claimants)),
        asked=tuple(sorted(asked)),
        clients=tuple(hearing.losses),
        heard=heard,
        losses=dict(hearing.losses),
        slopes={client: slopes.get(client, 0.0) for client in hearing.losses},
        rates=by_client(batch.rates, math.nan),
        shares=by_client(batch.shares),
        weights=by_client(weights),
        combination=solved.combination,
        gram=batch.gram[np.ix_(binding, binding)],
        binding=tuple(batch.clients[k] for k in binding),
        entitlement=hearing.entitlement,
        voteless=hearing.voteless,
        unreadable=hearing.unreadable,
        aside=tuple(hearing.aside),
        caught=tuple(hearing.muted),
        dropped=[
            *dropped,
            *hearing.dropped,
            *(DroppedClient(client, reason, "left out of the solve") for client, reason in excluded.items()),
        ],
        pairs_kept=sum(collected.trained[client].pairs_kept for client in heard),
        pairs_rejected=sum(collected.trained[client].pairs_rejected for client in heard),
    )
