"""Second derivatives of a client's loss: as matrices, of a whole small model or its last layer, and as products.

| function | what | cost |
|---|---|---|
| `dense_hessian` | exact, all of it, D up to `MAX_DENSE` | D double backward passes, in batches |
| `head_hessian` | exact, of the last linear layer | a forward pass, and n C^2 m^2 or n C m^2 multiplications |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss, cross_entropy
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.linalg.hessian_blocks import check_dense

BATCH = 64
"""Columns of a dense Hessian that one batched backward pass gives."""
PRODUCTS, TOLERANCE = 20, 0.01
"""Most products of a client's Newton step, each about a gradient, and the relative residual at which it ends."""
ROUNDING = 100
"""So many rounding units of the right-hand side end a solve, however small the tolerance."""


def dense_hessian(loss: LocalLoss, theta: Tensor, rows: Tensor | None = None) -> Tensor:
    """The Hessian of f_k at `theta` [D, D], symmetric to the last bit, the ridge of f_k included once.

    `rows` is the mini-batch, int64 [b]; None for all samples.

    Raises
    ------
    ConfigError
        If D is above `MAX_DENSE`.
    """
    dim, head = loss.model.spec.dim, loss.model.spec.head
    check_dense(dim)
    loss.model.place(theta)
    if head.size == dim and _ends_in_its_head(loss):
        order = torch.from_numpy(head.reshape(-1).argsort()).to(theta.device)
        return head_hessian(loss, theta, by_class=False, rows=rows)[0][order][:, order]
    identity = torch.eye(dim, dtype=theta.dtype, device=theta.device)
    if not (loss.model.recurrent or loss.model.attends):  # their backward passes cannot be batched
        try:
            with loss.twice_differentiable():
                hessian = _in_batches(loss, identity, rows)
            return (hessian + hessian.T) / 2 + loss.ridge * identity
        except RuntimeError:  # nor can those of some functions, such as embeddings with sparse gradients
            pass
    hessian = torch.stack([loss.hessian_product(theta, column, rows) for column in identity])
    return (hessian + hessian.T) / 2


def _in_batches(loss: LocalLoss, identity: Tensor, rows: Tensor | None) -> Tensor:
    """The Hessian of the mean cross-entropy [D, D], some columns at a time."""
    hessian, dim = torch.zeros_like(identity), len(identity)
    for inputs, labels, samples in chunks(loss, rows):
        part = cross_entropy(loss.model.module(inputs), labels, samples)
        gradient = loss.model.flat(loss.model.gradients(part, create_graph=True))
        if not gradient.requires_grad:
            continue
        for start in range(0, dim, BATCH):
            basis = identity[start : start + BATCH]
            columns = loss.model.gradients(gradient, basis, retain_graph=True, batched=True)
            hessian[start : start + BATCH] += torch.cat([c.reshape(len(basis), -1) for c in columns], dim=1)
    return hessian


def head_hessian(loss: LocalLoss, theta: Tensor, *, by_class: bool, rows: Tensor | None = None) -> Tensor:
    """The Hessian of f_k with respect to the last layer alone, at `theta` [D]: [1, C m, C m].

    With features h (1 appended where a bias is trained) and class probabilities p, it is the mean of
    (diag p - p p^T) x (h h^T), plus the ridge. Values are in the order of `ParamSpec.head`: class by class. With
    `by_class` only the blocks of one class with itself, [C, m, m]. `rows` are as in `dense_hessian`.

    Raises
    ------
    ConfigError
        If the model does not end in a linear layer over the classes.
    """
    loss.model.place(theta)
    layer = _head(loss)
    total: Tensor | None = None
    for inputs, _, samples in chunks(loss, rows):
        with torch.no_grad():
            features, logits = _through(loss, layer, inputs)
        if features is None:
            raise ConfigError("form: the model does not return what its last layer gives once; use another form")
        part = _head_part(features, logits, layer, by_class=by_class) / samples
        total = part if total is None else total + part
    if total is None:
        raise ConfigError("a mini-batch without samples has no Hessian; draw at least one")
    symmetric = (total + total.mT) / 2
    return symmetric + loss.ridge * torch.eye(total.shape[-1], dtype=total.dtype, device=total.device)


def _head(loss: LocalLoss) -> nn.Linear:
    layer = _last_module(loss)
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"form: last-layer needs a model whose last trained module is nn.Linear, found {type(layer).__name__}; "
            "use another form"
        )
    return layer


def _ends_in_its_head(loss: LocalLoss) -> bool:
    """Whether the loss is that of a linear layer on features that no parameter has a part in."""
    layer = _last_module(loss)
    if not isinstance(layer, nn.Linear):
        return False
    with torch.enable_grad():
        features, _ = _through(loss, layer, loss.tensors[0][:1])
    return features is not None and not features.requires_grad


def _through(loss: LocalLoss, layer: nn.Linear, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """What goes into the last layer [n, m], None where it has another use than to give the logits; and the logits."""
    caught: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: caught.append((inputs[0], output)))
    try:
        logits: Tensor = loss.model.module(inputs)
    finally:
        hook.remove()
    if len(caught) != 1:
        return None, logits
    ((features, output),) = caught
    return features if features.ndim == 2 and torch.equal(output, logits) else None, logits


def _last_module(loss: LocalLoss) -> nn.Module:
    return loss.model.module.get_submodule(loss.model.spec.names[-1].rpartition(".")[0])


def _head_part(features: Tensor, logits: Tensor, layer: nn.Linear, *, by_class: bool) -> Tensor:
    if layer.bias is not None and layer.bias.requires_grad:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    p = logits.softmax(dim=1)
    if by_class:
        return torch.stack([(features * (q * (1 - q))[:, None]).T @ features for q in p.T])
    outer = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    width = features.shape[1] * p.shape[1]
    return torch.einsum("nab,ni,nj->aibj", outer, features, features).reshape(1, width, width)


def chunks(loss: LocalLoss, rows: Tensor | None) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and labels, `loss.chunk` samples at a time, with the number of samples in all."""
    inputs, labels = loss.tensors if rows is None else (loss.tensors[0][rows], loss.tensors[1][rows])
    for start in range(0, len(labels), loss.chunk):
        yield inputs[start : start + loss.chunk], labels[start : start + loss.chunk], len(labels)


@dataclass(frozen=True, slots=True)
class Solution:
    """What conjugate gradients found: x as `vector` [D], after so many `iterations`, each with a product.

    A `negative` solve ended at a direction of curvature <= 0; x is the iterate before it, 0 where that was the first
    one. The residual is |A x - b| / |b|, 0 for b = 0.
    """

    vector: Tensor
    iterations: int
    negative: bool
    residual: float


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, *, iterations: int, tolerance: float = 0.0
) -> Solution:
    """Solve A x = b for a symmetric A that is given by its `product` with a vector [D]; b is `right` [D].

    Hestenes and Stiefel 1952, from x = 0, truncated at the first direction p with p . A p <= 0 (Nocedal and Wright,
    Numerical Optimization, algorithm 7.1). Each iterate x has x . b > 0. Inner products are summed in float64.

    The solve ends after so many `iterations`, or when |A x - b| <= tolerance |b|: the inexact Newton steps of Dembo,
    Eisenstat and Steihaug 1982.
    """
    x, residual = torch.zeros_like(right), right.clone()
    start = squared = _dot(residual, residual)
    enough = max(tolerance, ROUNDING * torch.finfo(right.dtype).eps) ** 2 * start
    direction, done, negative = residual.clone(), 0, False
    while done < iterations and squared > enough:
        image = product(direction)
        done += 1
        curvature = _dot(direction, image)
        if not curvature > 0:
            negative = True
            break
        length = squared / curvature
        x.add_(direction, alpha=length)
        residual.sub_(image, alpha=length)
        before, squared = squared, _dot(residual, residual)
        direction.mul_(squared / before).add_(residual)
    return Solution(x, done, negative, math.sqrt(squared / start) if start else 0.0)


def _dot(a: Tensor, b: Tensor) -> float:
    exact = torch.float32 if a.device.type == "mps" else torch.float64
    return float(torch.dot(a.to(exact), b.to(exact)))


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
            linear = _Linear(model, model.module(inputs), samples)
            if len(inputs) == samples:
                self._kept = [linear]
            yield linear


class _Linear:
    """A chunk's logits, linear in the parameters about the point: its part of the products with G."""

    def __init__(self, model: FlatModel, logits: Tensor, samples: int) -> None:
        self._model, self._logits, self._samples = model, logits, samples
        self._weights = torch.zeros_like(logits, requires_grad=True)
        self._pulled = model.gradients((self._weights * logits).sum(), create_graph=True)  # J^T weights
        self._p = logits.detach().softmax(dim=-1)

    def product(self, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        moved = self._along(vectors)
        bent = self._p * (moved - (self._p * moved).sum(dim=-1, keepdim=True)) / self._samples
        return self._model.gradients(self._logits, bent, retain_graph=True)

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
            gradient += loss.model.flat(loss.model.gradients(part))
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
