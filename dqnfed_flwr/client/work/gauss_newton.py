"""The Gauss-Newton matrix of a client's loss: products, and estimates of its diagonal and its Frobenius norm.

G = mean of J^T (diag p - p p^T) J over the samples, J the Jacobian of a sample's logits and p its probabilities, plus
the ridge. It is the Hessian without the second derivatives of the model itself: positive semi-definite for every
model, and the Hessian of one that is linear in its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.work.hessians import chunks, differentiate
from dqnfed_flwr.errors import DataError


class GaussNewton:
    """G at one point [D, D], as a product.

    A forward pass and a backward pass that can be differentiated do not depend on the vector. They are computed once
    where the samples fit into one chunk, and again for each product where they do not: no more than one chunk's
    activations are held at a time. The ridge of f_k is included. The model of `loss` stays at `theta` until the last
    product.
    """

    def __init__(self, loss: LocalLoss, theta: Tensor, rows: Tensor | None = None) -> None:
        self._loss, self._theta, self._rows = loss, theta, rows
        self._kept: list[_Linear] = []

    def __call__(self, vector: Tensor) -> Tensor:
        """G times `vector` [D].

        J v is had from two backward passes, the second through the first (Schraudolph 2002 uses a forward pass).

        Raises
        ------
        DataError
            If the mini-batch is empty.
        """
        total: Tensor | None = None
        with self._loss.twice_differentiable():
            for linear in self._kept or self._linearise():
                part = self._loss.model.flat(linear.product(self._loss.model.views(vector)))
                total = part if total is None else total + part
        if total is None:
            raise DataError("a mini-batch without samples has no curvature; draw at least one")
        return total.add_(vector, alpha=self._loss.ridge)

    def _linearise(self) -> Iterator[_Linear]:
        model = self._loss.model
        model.place(self._theta)
        for inputs, _, samples in chunks(self._loss, self._rows):
            linear = _Linear(model.module(inputs), model.parameters, samples)
            if len(inputs) == samples:
                self._kept = [linear]
            yield linear


class _Linear:
    """A chunk's logits, linear in the parameters about the point: its part of the products with G."""

    def __init__(self, logits: Tensor, parameters: list[nn.Parameter], samples: int) -> None:
        self._logits, self._parameters, self._samples = logits, parameters, samples
        self._weights = torch.zeros_like(logits, requires_grad=True)
        self._pulled = differentiate((self._weights * logits).sum(), parameters, create_graph=True)  # J^T weights
        self._p = logits.detach().softmax(dim=-1)

    def product(self, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        moved = self._along(vectors)
        bent = self._p * (moved - (self._p * moved).sum(dim=-1, keepdim=True)) / self._samples
        return torch.autograd.grad(
            self._logits, self._parameters, bent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    def _along(self, vectors: Sequence[Tensor]) -> Tensor:
        """J v [n, classes]."""
        moving = [(pulled, v) for pulled, v in zip(self._pulled, vectors, strict=True) if pulled.requires_grad]
        if not moving:
            return torch.zeros_like(self._p)
        pulled, along = zip(*moving, strict=True)
        (moved,) = torch.autograd.grad(pulled, self._weights, along, retain_graph=True, materialize_grads=True)
        return moved


def gauss_newton_diagonal(loss: LocalLoss, theta: Tensor, generator: np.random.Generator, probes: int) -> Tensor:
    """An unbiased estimate [D] of the diagonal of the Gauss-Newton matrix of f_k at `theta`, never negative.

    With S S^T the Hessian of the cross-entropy in a sample's logits z and v random signs, the expectation of
    (d/d theta sum_n (S_n v_n) . z_n)^2 is that diagonal: products of different samples and classes vanish in the mean
    (Hutchinson's argument). For a model that is linear in theta it is the diagonal of the Hessian. All samples count.
    So many `probes` are averaged; the relative standard deviation of an entry is about sqrt(2 / probes).
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


def curvature_product(
    loss: LocalLoss, matrix: str, theta: Tensor, rows: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """Products of vectors [D] with the Hessian of f_k at `theta` [D], or with its Gauss-Newton matrix there."""
    if matrix == "hessian":
        return lambda vector: loss.hessian_product(theta, vector, rows)
    return GaussNewton(loss, theta, rows)


def frobenius_norm(
    product: Callable[[Tensor], Tensor], like: Tensor, generator: np.random.Generator, probes: int
) -> float:
    """An estimate of |A|_F from products with so many vectors v of random signs: E |A v|^2 = |A|_F^2.

    The vectors have size, dtype and device of `like` [D].
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
