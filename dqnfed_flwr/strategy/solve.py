"""From the rows of a round to a step: method, precision, sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from logging import DEBUG, WARNING

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.guarantee.overrule import Votes
from dqnfed_flwr.linalg.rows import TRUSTED_CONDITION
from dqnfed_flwr.linalg.sweeps import one_blas_thread
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.state import PendingStep
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, Combination, Float64Array, RoundBatch

Slopes = Callable[[Tensor], Float64Array | None]
"""g_k . v, of those who are heard along a vector v [D]; None where the products are not known."""
Adopt = Callable[[Tensor, Slopes], Tensor]
"""Makes the step that is tested, and kept, of the method's; the very same where it is as it was."""
NOT_FINITE = "not-finite"
"""Status of a solve whose step is too long for a number, as figures that a client made up can have it."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A step and what is known of it."""

    combination: Combination  # the method's answer
    step: Tensor  # [D]
    norm: float  # |step|
    slopes: Float64Array  # g_k . step, of the K rows of the round and then of the `others`; 0 without `products`
    products: bool = True  # whether the inner products of different rows were computed

    def scale(self, theta_norm: float, round_number: int) -> StepScale:
        """What a step rule may know of the step, which leads from a model of this norm."""
        found = self.combination
        return StepScale(self.norm, found.length, theta_norm, round_number, found.hints, dim=self.step.numel())


def as_it_is(step: Tensor, slopes: Slopes) -> Tensor:
    """The step of a run whose messages bring it whole."""
    del slopes
    return step


def unknown(vector: Tensor) -> None:
    """Slopes that nobody knows."""
    del vector


def solve_replies(
    method: Method,
    collected: Collected,
    hearing: Hearing,
    round_number: int,
    theta_norm: float,
    adopt: Adopt = as_it_is,
) -> tuple[RoundBatch, Solved]:
    """The figures of those who are heard, and the method's step from their rows.

    Where there is no step, though there could be one, the figures hold all products: they say why.
    """
    method.disown(hearing.disowned)
    rows = collected.rows_of(hearing.heard, hearing.unheard)
    batch = make_batch(collected.trained, hearing, rows, round_number, theta_norm)
    solved = solve(method, batch, rows, adopt)
    if solved.products or solved.norm > 0 or method.inner.rests:
        return batch, solved
    return replace(batch, gram=rows.held.gram(rows.slots)), replace(solved, products=True)


def make_batch(
    replies: Mapping[int, ClientReply], hearing: Hearing, rows: RoundRows, round_number: int, theta_norm: float
) -> RoundBatch:
    """Gather the figures of those who are heard, which are in rising order, as are the slots of `rows`.

    The shares of those who are apart are 0: they are heard, but the mean is not made of what was set aside before.
    Of products that nobody reads only those of a row with itself are there.
    """
    heard = [replies[client] for client in hearing.heard]
    examples = np.array([reply.num_examples for reply in heard], dtype=np.float64)
    trusted = examples * [client not in hearing.apart for client in hearing.heard]
    weighed = trusted if trusted.any() else examples
    names = heard[0].figures if heard else ()
    losses = np.array([reply.loss for reply in heard])
    cuts = np.array([hearing.cuts.get(client, 1.0) for client in hearing.heard])
    return RoundBatch(
        gram=rows.held.read_products(rows.slots),
        losses=losses,
        rates=np.array([reply.rate for reply in heard]) * cuts**2,
        shares=weighed / weighed.sum(),
        clients=hearing.heard,
        round=round_number,
        figures={name: np.array([reply.figures[name] for reply in heard]) for name in names},
        examples=examples,
        slack=np.maximum(hearing.entitlement - losses, 0.0),
        theta_norm=theta_norm,
        floor=hearing.floor or 0.0,
    )


@one_blas_thread()
def solve(method: Method, batch: RoundBatch, rows: RoundRows, adopt: Adopt = as_it_is) -> Solved:
    """Ask the method, with a Gramian of the precision that its condition asks for, and sum the rows.

    What `adopt` makes of the sum is the step.
    """
    held, rows = rows.held, replace(rows, sees=method.sees)
    method.observe(batch, rows)
    combination = method.combine(batch, rows)
    below_full = 0 < combination.rank < len(batch.clients) - len(combination.excluded)
    doubtful = combination.condition > TRUSTED_CONDITION or below_full  # float32 blocks may not determine the solution
    if doubtful and held.refine():
        log(DEBUG, "Condition %.1e: the Gramian is computed again in float64", combination.condition)
        combination = method.combine(replace(batch, gram=held.gram(rows.slots)), rows)
    total, slots = held.combine(combination.weights), (*rows.slots, *rows.others)

    @lru_cache(2)  # of the sum, and of what was made of it last
    def measured(vector: Tensor) -> tuple[float, Float64Array]:
        return held.along(combination.weights, total, slots) if vector is total else held.against(vector, slots)

    step = adopt(total, lambda vector: measured(vector)[1][: len(rows.slots)] if held.products else None)
    square, slopes = measured(step)
    norm = math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.inf
    if not norm < torch.finfo(step.dtype).max:
        log(WARNING, "The step of round %d is not finite; the model stays", batch.round)
        nothing = replace(combination, weights=np.zeros_like(combination.weights), status=NOT_FINITE)
        return Solved(nothing, torch.zeros_like(step), 0.0, np.zeros_like(slopes), held.products)
    return Solved(combination, step, norm, slopes, held.products)


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

    `dropped` were left out before the solve; `asked` were asked for a row.
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
        scale=replace(
            solved.scale(batch.theta_norm, batch.round), contested=bool(hearing.claimants), floor=hearing.floor
        ),
        asked=tuple(sorted(asked)),
        clients=tuple(hearing.losses),
        votes=Votes(
            heard,
            voteless=hearing.voteless,
            aside=tuple(hearing.aside),
            caught=tuple(hearing.muted),
            unreadable=hearing.unreadable,
        ),
        losses=dict(hearing.losses),
        slopes={client: slopes.get(client, 0.0) for client in hearing.losses},
        doubts={
            client: reply.row_error * solved.norm for client, reply in collected.trained.items() if reply.row_error
        },
        rates=by_client(batch.rates, math.nan),
        shares=by_client(batch.shares),
        weights=by_client(weights),
        combination=solved.combination,
        gram=batch.gram[np.ix_(binding, binding)] if solved.products else np.zeros((0, 0)),
        binding=tuple(batch.clients[k] for k in binding),
        entitlement=hearing.entitlement,
        dropped=[
            *dropped,
            *hearing.dropped,
            *(DroppedClient(client, reason, "left out of the solve") for client, reason in excluded.items()),
        ],
        pairs_kept=sum(collected.trained[client].pairs_kept for client in heard),
        pairs_rejected=sum(collected.trained[client].pairs_rejected for client in heard),
    )
