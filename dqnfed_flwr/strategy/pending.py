"""A step that waits for the clients' verdict: what is known when it is formed, and is needed until it was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

if TYPE_CHECKING:
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
    clients : tuple[int, ...]
        Participants, rising.
    losses, slopes, rates, shares, weights : dict[int, float]
        By participant: f_k(theta^{t-1}), g_k . step, d~_k, p_k, coefficient.
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
        Exchanges in a row in which no factor suited a participant, see `admission.votes`.
    promised : dict[int, float]
        The factor that each participant named one exchange ago as one at which its loss falls enough.
    silenced : tuple[int, ...]
        Participants without a vote on this step.
    first : float
        The first factor that was tried.
    """

    round: int
    step: Tensor
    ladder: Ladder
    scale: StepScale
    clients: tuple[int, ...]
    losses: dict[int, float]
    slopes: dict[int, float]
    rates: dict[int, float]
    shares: dict[int, float]
    weights: dict[int, float]
    combination: Combination
    dropped: list[DroppedClient]
    pairs_kept: int = 0
    pairs_rejected: int = 0
    misses: int = 0
    relaxed: bool = False
    fallback: Tensor | None = None
    blocked: dict[int, int] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)
    silenced: tuple[int, ...] = ()
    first: float = 0.0


def pending_step(
    batch: RoundBatch, solved: Solved, collected: Collected, dropped: Sequence[DroppedClient], *, theta_norm: float
) -> PendingStep:
    """The step of a solve, not offered yet: its participants are those that the method did not leave out.

    Parameters
    ----------
    batch, solved, collected
        Of the round.
    dropped : Sequence[DroppedClient]
        Who was left out before the solve.
    theta_norm : float
        Euclidean norm of the model that the step starts from.
    """
    excluded = solved.combination.excluded
    index = [k for k, client in enumerate(batch.clients) if client not in excluded]
    clients = tuple(batch.clients[k] for k in index)
    weights = solved.combination.weights[[collected.rows.slots[k] for k in index]]

    def by_client(values: Float64Array) -> dict[int, float]:
        return {client: float(values[k]) for client, k in zip(clients, index, strict=True)}

    return PendingStep(
        round=batch.round,
        step=solved.step,
        ladder=Ladder(0.0),
        scale=solved.scale(theta_norm, batch.round),
        clients=clients,
        losses=by_client(batch.losses),
        slopes=by_client(solved.slopes),
        rates=by_client(batch.rates),
        shares=by_client(batch.shares),
        weights=dict(zip(clients, map(float, weights), strict=True)),
        combination=solved.combination,
        dropped=[
            *dropped,
            *(DroppedClient(client, reason, "left out of the solve") for client, reason in excluded.items()),
        ],
        pairs_kept=sum(collected.trained[client].pairs_kept for client in clients),
        pairs_rejected=sum(collected.trained[client].pairs_rejected for client in clients),
    )
