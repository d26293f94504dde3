"""What is known of a step when it is formed, and is needed until it has been judged."""

from __future__ import annotations

from collections.abc import Sequence

from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.intake import Collected
from dqnfed_flwr.strategy.solve import Solved
from dqnfed_flwr.strategy.state import PendingStep
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Float64Array, RoundBatch


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
