"""The Gauss-Newton matrix of a client's loss: products, and estimates of its diagonal and its Frobenius norm.

G = mean of J^T (diag p - p p^T) J over the samples, J the Jacobian of a sample's logits and p its probabilities, plus
the ridge. It is the Hessian without the second derivatives of the model itself: positive semi-definite for every
model, and the Hessian of one that is linear in its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.work.hessians import chunks, differentiate
from dqnfed_flwr.errors import DataError


def gauss_newton_product(loss: LocalLoss, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
    """G at `theta` times `vector` [D].

    J v is had from two backward passes, the second through the first (Schraudolph 2002 uses a forward pass); `rows`
    is as in `LocalLoss.loss_and_gradient`.

    Raises
    ------
    DataError
        If the mini-batch is empty.
    """
    model = loss.model
    model.place(theta)
    total: Tensor | None = None
    with loss.twice_differentiable():
        for inputs, _, samples in chunks(loss, rows):
            logits = model.module(inputs)
            weights = torch.zeros_like(logits, requires_grad=True)
            pulled = model.flat(differentiate((weights * logits).sum(), model.parameters, create_graph=True))
            (moved,) = torch.autograd.grad(pulled @ vector, weights, retain_graph=True, materialize_grads=True)
            p = logits.detach().softmax(dim=-1)
            bent = p * (moved - (p * moved).sum(dim=-1, keepdim=True)) / samples
            part = model.flat(differentiate((bent.detach() * logits).sum(), model.parameters))
            total = part if total is None else total + part
    if total is None:
        raise DataError("a mini-batch without samples has no curvature; draw at least one")
    return total.add_(vector, alpha=loss.ridge)


def gauss_newton_diagonal(loss: LocalLoss, theta: Tensor, generator: np.random.Generator, probes: int) -> Tensor:
    """An unbiased estimate [D] of the diagonal of the Gauss-Newton matrix of f_k at `theta`, never negative.

    With S S^T the Hessian of the cross-entropy in a sample's logits z and v random signs, the expectation of
    (d/d theta sum_n (S_n v_n) . z_n)^2 is that diagonal: products of different samples and classes vanish in the mean
    (Hutchinson's argument). For a model that is linear in theta it is the diagonal of the Hessian.

    Parameters
    ----------
    loss, theta
        As in `dense_hessian`; all samples count.
    generator : np.random.Generator
        Draws the signs.
    probes : int
        Independent estimates that are averaged; the relative standard deviation of an entry is about
        sqrt(2 / probes).
    """
    loss.model.place(theta)
    total = torch.zeros_like(theta)
    for _ in range(probes):
        gradient = torch.zeros_like(theta)
        for inputs, _, samples in chunks(loss, None):
            logits = loss.model.module(inputs)
            signs = torch.from_numpy(2.0 * generator.integers(0, 2, tuple(logits.shape)) - 1).to(logits)
            part = (_root_times(logits.detach().softmax(dim=-1), signs) * logits).sum() / samples**0.5
            gradient += loss.model.flat(differentiate(part, loss.model.parameters))
        total += gradient.square_()
    return total / probes + loss.ridge


def curvature_product(loss: LocalLoss, matrix: str) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Products (theta, vector, rows) with the Hessian of f_k, or with its Gauss-Newton matrix."""
    return loss.hessian_product if matrix == "hessian" else partial(gauss_newton_product, loss)


def frobenius_norm(
    product: Callable[[Tensor], Tensor], like: Tensor, generator: np.random.Generator, probes: int
) -> float:
    """An estimate of |A|_F from products with vectors v of random signs: E |A v|^2 = |A|_F^2.

    Parameters
    ----------
    product : Callable[[Tensor], Tensor]
        A times a vector.
    like : Tensor
        [D], for size, dtype and device.
    generator, probes
        Where the signs come from, and how many vectors are tried.
    """
    squared = 0.0
    for _ in range(probes):
        signs = torch.from_numpy(2.0 * generator.integers(0, 2, len(like)) - 1).to(like)
        squared += float(torch.linalg.vector_norm(product(signs))) ** 2
    return math.sqrt(squared / probes)


def _root_times(p: Tensor, signs: Tensor) -> Tensor:
    """S v for S = diag(sqrt p) - p sqrt(p)^T, so that S S^T = diag(p) - p p^T."""
    roots = p.sqrt() * signs
    return roots - p * roots.sum(dim=-1, keepdim=True)
