"""Local work of FedMuon; `methods/fedmuon` names the paper and lists the deviations."""

from __future__ import annotations

import torch
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import BlindWork, LocalRequest, LocalResult, Proximal, batch_gradients, batches_in_passes
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.methods.fedmuon import MOMENTUM, FedMuonSettings

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that Muon applies to singular values; it brings those above 0.01 to between 0.68 and 1.14."""
ROUNDS = 5
TINY = 1e-7
BETA = 0.98
"""Weight of the momentum before: it remembers about fifty mini-batches."""
SLOWER = 10
"""Vectors take so much smaller steps than matrices: Adam moves each value by the rate itself."""
BETAS = (0.9, 0.95)
"""Adam's, for vectors, as in the published code."""


class FedMuonWork(BlindWork):
    """Row: theta - theta_k of E epochs, with the momentum M_k at their end, from the mean momentum received.

    At each mini-batch, with its gradient g, and u the last move of the model, factor included, spread over the
    client's S mini-batches:

        M <- beta M + g,    theta <- theta - (1 - alpha) rate orth(M) - alpha decay u / S

    orth(M) is the orthogonal factor of the momentum of a parameter with two dimensions or more. For other parameters
    Adam's step, begun anew in each round, takes the place of rate orth(M); their part of M_k is 0. u is 0 in round 1,
    and after a round whose step was not taken.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row with the rate lr |row|^2, and the momentum."""
        own, settings, model = self._settings.group_of(FedMuonSettings), self._settings.local, self._loss.model
        local, momentum = point.theta.clone(), _received(request, point.theta)
        rate = settings.lr * settings.decay ** (request.key.round - 1) * (1 - own.alignment)
        share = own.alignment * settings.decay / batches_in_passes(self._loss, settings)
        pull = share * request.task.factor * request.line.step if request.line.known and share else None
        views, momenta = model.views(local), model.views(momentum)
        matrices = [at for at, view in enumerate(views) if view.ndim >= 2]
        vectors = [at for at, view in enumerate(views) if view.ndim < 2]
        slow = own.matrix_rate / SLOWER * rate
        adam = torch.optim.Adam([views[at] for at in vectors], lr=slow, betas=BETAS) if vectors else None
        passes = batch_gradients(self._loss, local, settings, request.key, Proximal(point.theta, settings.proximal))
        for moves in passes:
            for at in matrices:
                momenta[at].mul_(BETA).add_(moves[at])
                views[at].add_(orthogonal(momenta[at]), alpha=-own.matrix_rate * rate)
            for at in vectors:
                views[at].grad = moves[at]
            if adam is not None:
                adam.step()
            if pull is not None:
                local.sub_(pull)
        row = point.theta - local
        return LocalResult(row, self.plain_rate(row), {MOMENTUM: momentum})


def _received(request: LocalRequest, theta: Tensor) -> Tensor:
    """The mean momentum [D], a copy to work on; 0 where there is none yet.

    Raises
    ------
    ShapeError
        If the server has one, and it was not sent.
    """
    if MOMENTUM in request.vectors:
        return request.vectors[MOMENTUM].clone()
    if request.task.directives.get(MOMENTUM):
        raise ShapeError(
            "the server has a momentum, but none came with the model; send the message's vectors along with it "
            "(Flower's lists of arrays have no place for them)"
        )
    return torch.zeros_like(theta)


def orthogonal(matrix: Tensor) -> Tensor:
    """About U V^T where U S V^T is the singular value decomposition of `matrix` [n, ...], as [n, rest].

    The shape is that of `matrix`. Singular values below some 1e-3 of the Frobenius norm stay smaller; those of 0 stay.
    """
    flat = matrix.reshape(len(matrix), -1)
    tall = flat.shape[0] > flat.shape[1]
    found = flat.mT if tall else flat
    found = found / found.norm().clamp(min=TINY)
    first, second, third = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = found @ found.mT
        found = first * found + (second * gram + third * gram @ gram) @ found
    result: Tensor = (found.mT if tall else found).reshape(matrix.shape)
    return result
