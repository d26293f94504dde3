"""Gradient inversion: samples from gradients, from sketches of them, or from one weighted sum and what goes with it.

Two attacks, both told how many samples there are. `unmixed` is algebra, for a first layer that is linear with ReLU
behind it. `descended` is told the classes too, and searches for samples whose gradients match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from dqnfed_flwr.types import Float64Array

Misfit = Callable[[Tensor, Tensor], Tensor]
"""How far gradients [K, D] and losses [K] are from what the server received, for each client [K]."""
STEP, SMOOTH = 0.1, 1e-3
"""Of a search: the first step of a pixel, and the weight of the total variation."""
STARTS, STEPS, ROUNDS, LARGEST = 512, 60, 6, 32
"""Of `unmixed`: columns sought at a time, steps of each, how often, and samples at most."""
WIDE, NARROW = 0.3, 1e-5
"""Below which a value counts as 0, in the first step and in the last."""


def unmixed(weight: Float64Array, bias: Float64Array, samples: int) -> Float64Array | None:
    """The b samples [b, n] whose gradient of a first layer is `weight` [m, n] and `bias` [m].

    weight = delta^T x = L R by its singular values, delta^T = L Q, x = Q^-1 R. Where ReLU is off delta is 0, and no
    other combination of the columns of L has so many zeros: Q is found by sparsity, as in Dimitrov and others, "SPEAR:
    Exact Gradient Inversion of Batches in Federated Learning", NeurIPS 2024, here by reweighted least squares in place
    of lucky draws. The bias gradient, sum_i delta_i, says how long the samples are. Weights that samples have in a sum
    are part of delta. None where L has not rank b, or b is above `LARGEST`.
    """
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    if not 1 < samples <= min(LARGEST, len(values)) or values[samples - 1] < 1e-6 * values[0]:
        return None
    left, right = left[:, :samples], values[:samples, None] * right[:samples]
    active = left[np.linalg.norm(left, axis=1) > 1e-6]
    even, back = np.linalg.qr(active / np.linalg.norm(active, axis=1, keepdims=True))
    columns = np.linalg.solve(back, _sparsest(even / np.linalg.norm(even, axis=1, keepdims=True)).T)
    lengths = np.linalg.lstsq(left @ columns, bias, rcond=None)[0]
    return np.asarray(np.linalg.lstsq(columns * lengths, right, rcond=None)[0])


def _sparsest(rows: Float64Array) -> Float64Array:
    """Independent q [b, b], one a line, with as many zeros in `rows` q as can be found; `rows` are [m, b]."""
    draws, count = torch.Generator().manual_seed(0), rows.shape[1]
    sides = torch.from_numpy(rows)
    outer = (sides[:, :, None] * sides[:, None, :]).flatten(1)
    pool, chosen = np.zeros((0, count)), np.zeros((0, count))
    for _ in range(ROUNDS):
        found = torch.randn(STARTS, count, dtype=torch.float64, generator=draws)
        for width in np.geomspace(WIDE, NARROW, STEPS):
            weights = 1 / ((found @ sides.T) ** 2 + width**2)
            found = torch.linalg.eigh((weights @ outer).view(-1, count, count))[1][:, :, 0]
        pool = np.vstack([pool, found.numpy()])
        zeros = (np.abs(pool @ rows.T) < 10 * NARROW).sum(1)
        chosen = _independent(pool[np.argsort(-zeros, kind="stable")])
        if len(chosen) == count and (np.abs(chosen @ rows.T) < 10 * NARROW).sum(1).min() > 1.5 * count:
            break
    return chosen


def _independent(lines: Float64Array) -> Float64Array:
    """Of unit vectors [N, b] the first ones that are no combination of those before."""
    kept = lines[:1]
    basis = lines[:1].copy()
    for line in lines[1:]:
        rest = line - (basis @ line) @ basis
        if (length := float(np.linalg.norm(rest))) > 1e-2:
            kept, basis = np.vstack([kept, line]), np.vstack([basis, rest / length])
        if len(kept) == lines.shape[1]:
            break
    return kept


def descended(model: nn.Module, labels: Tensor, misfit: Misfit, starts: Sequence[Tensor], iterations: int) -> Tensor:
    """The samples [K, n, ...] with `labels` [K, n] that fit best, from each of `starts`, values within -1 and 1.

    Geiping and others, "Inverting Gradients: How easy is it to break privacy in federated learning?", NeurIPS 2020:
    Adam by the signs of the derivatives, a misfit of directions, total variation.
    """
    best, least = starts[0].clone(), torch.full((len(labels),), torch.inf)
    for start in starts:
        samples = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([samples], STEP)
        slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations, STEP / 100)
        for _ in range(iterations):
            wrong = misfit(*gradients(model, samples, labels)).sum() + SMOOTH * _variation(samples)
            samples.grad = torch.autograd.grad(wrong, samples)[0].sign()
            optimiser.step()
            slower.step()
            samples.data.clamp_(-1, 1)
        wrongs = misfit(*gradients(model, samples, labels)).detach()
        better = wrongs < least
        best[better], least[better] = samples.detach()[better], wrongs[better]
    return best


def gradients(model: nn.Module, samples: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [K, D] and loss [K] of each client at the model, both to be differentiated by the samples."""
    parameters = list(model.parameters())
    losses = [cross_entropy(model(own), wanted) for own, wanted in zip(samples, labels, strict=True)]
    parts = [torch.autograd.grad(loss, parameters, create_graph=True) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in each]) for each in parts]), torch.stack(losses)


def conv(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 3x3 convolutions, the second halving the sides, and a linear layer: a small net without pooling."""
    channels, height, width = input_shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * ((height + 1) // 2) * ((width + 1) // 2), num_classes)),
    )


def _variation(samples: Tensor) -> Tensor:
    """Mean difference of neighbours, summed over clients."""
    across, down = samples.diff(dim=-1).abs().mean(), samples.diff(dim=-2).abs().mean()
    return len(samples) * (across + down)


def like_rows(rows: Tensor) -> Misfit:
    """Each client's gradient is known [K, D]."""
    return lambda found, _: 1 - cosine_similarity(found, rows)


def like_sketches(sketches: Tensor, sketch: Callable[[Tensor], Tensor]) -> Misfit:
    """Each client's sketch is known [K, m]."""
    return lambda found, _: 1 - cosine_similarity(sketch(found), sketches)


def like_sum(
    total: Tensor, weights: Tensor, sketches: Tensor, losses: Tensor, sketch: Callable[[Tensor], Tensor]
) -> Misfit:
    """Known are the sum [D], its weights [K], the Gramian of the sketches, and losses [K]: one misfit for all."""
    gram = sketches @ sketches.T

    def misfit(found: Tensor, said: Tensor) -> Tensor:
        own = sketch(found)
        wrong = 1 - cosine_similarity(weights @ found, total, dim=0)
        wrong = wrong + ((own @ own.T - gram) ** 2).sum() / (gram**2).sum() + ((said / losses - 1) ** 2).mean()
        return wrong.expand(len(said))

    return misfit


def correlations(found: Float64Array, true: Float64Array) -> NDArray[np.float64]:
    """Of the pixels of samples [N, d] and [M, d], each with each [N, M]; 0 for a flat sample."""

    def even(samples: Float64Array) -> Float64Array:
        centred = samples - samples.mean(1, keepdims=True)
        return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9))

    return np.asarray(even(found) @ even(true).T)
