"""From the rows of a round to a step: method, precision, sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import DEBUG, WARNING

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.linalg.gram import TRUSTED_CONDITION
from dqnfed_flwr.linalg.scaling import one_blas_thread
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.steps import StepScale
from dqnfed_flwr.strategy.hearing import Hearing, slack
from dqnfed_flwr.strategy.intake import Collected
from dqnfed_flwr.types import ClientReply, Combination, Float64Array, RoundBatch

NOT_FINITE = "not-finite"
"""Status of a solve whose step is too long for a number, as figures that a client made up can have it."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A step and what is known of it.

    Attributes
    ----------
    combination : Combination
        The method's answer.
    step : Tensor
        [D].
    norm : float
        |step|.
    slopes : Float64Array
        g_k . step, of the K rows of the round and then of the `others` beside them.
    """

    combination: Combination
    step: Tensor
    norm: float
    slopes: Float64Array

    def scale(self, theta_norm: float, round_number: int) -> StepScale:
        """What a step rule may know of the step, which leads from a model of this norm."""
        found = self.combination
        return StepScale(self.norm, found.length, theta_norm, round_number, found.hints, dim=self.step.numel())


def solve_replies(
    method: Method, collected: Collected, hearing: Hearing, round_number: int, theta_norm: float
) -> tuple[RoundBatch, Solved]:
    """The figures of those who are heard, and the method's step from their rows."""
    method.disown(hearing.disowned)
    rows = collected.rows_of(hearing.heard, hearing.unheard)
    batch = make_batch(collected.trained, hearing, rows, round_number, theta_norm)
    return batch, solve(method, batch, rows)


def make_batch(
    replies: Mapping[int, ClientReply], hearing: Hearing, rows: RoundRows, round_number: int, theta_norm: float
) -> RoundBatch:
    """Gather the figures of those who are heard, which are in rising order, as are the slots of `rows`.

    The shares of those who are apart are 0: they are heard, but the mean is not made of what was set aside before.
    """
    heard = [replies[client] for client in hearing.heard]
    examples = np.array([reply.num_examples for reply in heard], dtype=np.float64)
    trusted = examples * [client not in hearing.apart for client in hearing.heard]
    weighed = trusted if trusted.any() else examples
    losses = np.array([reply.loss for reply in heard])
    cuts = np.array([hearing.cuts.get(client, 1.0) for client in hearing.heard])
    return RoundBatch(
        gram=rows.basis.gram(rows.slots),
        losses=losses,
        rates=np.array([reply.rate for reply in heard]) * cuts**2,
        shares=weighed / weighed.sum(),
        clients=hearing.heard,
        round=round_number,
        figures=_figures(heard),
        examples=examples,
        slack=slack(losses, hearing.entitlement),
        theta_norm=theta_norm,
    )


def _figures(replies: Sequence[ClientReply]) -> dict[str, Float64Array]:
    names = replies[0].figures if replies else {}
    return {name: np.array([reply.figures[name] for reply in replies]) for name in names}


def solve(method: Method, batch: RoundBatch, rows: RoundRows) -> Solved:
    """Ask the method, with a Gramian of the precision that its condition asks for, and sum the rows.

    Parameters
    ----------
    method : Method
        May keep state.
    batch, rows
        Of the round.
    """
    with one_blas_thread():
        method.observe(batch, rows)
        return _solve(method, batch, rows)


def _solve(method: Method, batch: RoundBatch, rows: RoundRows) -> Solved:
    combination = method.combine(batch, rows)
    if not rows.basis.exact and _doubtful(combination, len(batch.clients)):
        log(DEBUG, "Condition %.1e: the Gramian is computed again in float64", combination.condition)
        rows.basis.refine()
        combination = method.combine(replace(batch, gram=rows.basis.gram(rows.slots)), rows)
    step = rows.basis.combine(combination.weights)
    filled = rows.basis.filled
    gram = rows.basis.gram(filled)
    weights = combination.weights[list(filled)]
    with np.errstate(over="ignore", invalid="ignore"):  # looked at below
        products = gram @ weights
        square = float(weights @ products)
    norm = math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.inf
    slopes = products[[filled.index(slot) for slot in (*rows.slots, *rows.others)]]
    if not norm < torch.finfo(step.dtype).max:
        log(WARNING, "The step of round %d is not finite; the model stays", batch.round)
        nothing = replace(combination, weights=np.zeros_like(combination.weights), status=NOT_FINITE)
        return Solved(nothing, torch.zeros_like(step), 0.0, np.zeros_like(slopes))
    return Solved(combination, step, norm, slopes)


def _doubtful(combination: Combination, clients: int) -> bool:
    """Whether float32 blocks may not determine the solution: ill-conditioned, or not of full rank."""
    solved_for = clients - len(combination.excluded)
    return combination.condition > TRUSTED_CONDITION or 0 < combination.rank < solved_for
