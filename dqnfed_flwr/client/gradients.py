"""The local loss f_k and its derivatives at a flat model, in chunks of the client's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.model_checks import check_fit
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.types import Evaluation, Float64Array

Samples = tuple[Tensor, Tensor]
CHUNK_BYTES = {"cpu": 32 * 2**20}
MOST_CHUNK_BYTES = 256 * 2**20
"""Activations kept for one backward pass when the chunk is left to choose, by kind of device and on any other.

Larger ones are no faster on a processor, and a device at the edge has little memory.
"""
MAX_CHUNK = 4096
FEWEST = 16
"""Samples of a chunk that may fill `MOST_CHUNK_BYTES` on any device.

Every chunk reads all parameters and adds a gradient of their size: four samples of ResNet-18 at a time take a quarter
longer than sixteen (`benchmarks/chunks.py`).
"""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a model answers each of n samples: whether it is right, bool [n], and its cross-entropy, float64 [n]."""

    right: NDArray[np.bool_]
    losses: Float64Array


class LocalLoss:
    """f_k(theta) = mean cross-entropy over the training part + ridge/2 |theta|^2, at any theta [D].

    The samples pass through the model `chunk` at a time, always in the same order.

    Parameters
    ----------
    model : FlatModel
        Evaluated frozen, so that no buffer changes here (local SGD changes them).
    samples : tuple[Tensor, Tensor]
        Inputs [n, ...] and labels int64 [n] of the training part, on the model's device.
    ridge : float
        Weight of the quadratic term.
    chunk : int
        Samples a pass; 0 leaves it to `choose_chunk`, by the bytes of the saved activations.
    outputs : int
        Logits that the model must give for a sample; 0 takes any number of them.

    Notes
    -----
    Logits are cast to float64 before the log-softmax and losses are summed in float64: a float32 model's loss then
    shows decreases far below one float32 unit. `loss` and `loss_and_gradient` run the same kernels on the same
    chunks, so that their losses at one theta agree to the last bit and can be compared across exchanges.

    Raises
    ------
    DataError
        If the training part is empty.
    ModelError
        If the model does not take the samples, gives another number of logits, or draws random numbers as it is
        evaluated.
    """

    def __init__(
        self, model: FlatModel, samples: Samples, *, ridge: float = 0.0, chunk: int = 0, outputs: int = 0
    ) -> None:
        if not len(samples[1]):
            raise DataError("the client has no training sample; give it at least one")
        self.model = model
        self.samples = samples
        self.ridge = ridge
        check_fit(model, samples[0], outputs)
        self.chunk = chunk or choose_chunk(model, *samples)
        self._precomputed: tuple[Tensor, float, Callable[[], Tensor]] | None = None

    @property
    def num_examples(self) -> int:
        """Training samples of the client."""
        return len(self.samples[1])

    def loss(self, theta: Tensor) -> float:
        """f_k at `theta` [D]: forward passes only."""
        self.model.place(theta)
        total = 0.0
        with self._forward_only():
            for inputs, labels in self._chunks(*self.samples):
                total += cross_entropy(self.model.module(inputs), labels, self.num_examples).item()
        return total + self._penalty(theta)

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        """f_k and its gradient at `theta` [D], a vector of its own [D] in the dtype of `theta`.

        Both are taken over the mini-batch `rows`, int64 [b]; None takes the whole training part.
        """
        if rows is None and self._precomputed is not None and self._precomputed[0] is theta:
            (_, loss, gradient_of), self._precomputed = self._precomputed, None
            return loss + self._penalty(theta), self._with_ridge(gradient_of(), theta)
        self.model.place(theta)
        samples = self._select(rows)
        total = 0.0
        gradient: Tensor | None = None
        for inputs, labels in self._chunks(*samples):
            part = cross_entropy(self.model.module(inputs), labels, len(samples[1]))
            parts = torch.autograd.grad(part, self.model.parameters, allow_unused=True, materialize_grads=True)
            gradient = self._added(gradient, parts)
            total += part.item()
        return total + self._penalty(theta), self._with_ridge(gradient, theta)

    def precompute(self, theta: Tensor, loss: float, gradient: Callable[[], Tensor]) -> None:
        """Have `loss_and_gradient` answer with these, once, when it is asked at this very tensor `theta` [D].

        `loss` is the mean cross-entropy over the training part, without the ridge; `gradient` makes the gradient of
        that [D], a vector of its own.
        """
        self._precomputed = (theta, loss, gradient)

    def hessian_product(self, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        """The Hessian of f_k at `theta` times `vector` [D], by differentiating the gradient once more.

        `rows` is as in `loss_and_gradient`.
        """
        self.model.place(theta)
        samples = self._select(rows)
        directions = self.model.views(vector)
        product: Tensor | None = None
        with self.twice_differentiable():
            for inputs, labels in self._chunks(*samples):
                loss = cross_entropy(self.model.module(inputs), labels, len(samples[1]))
                product = self._added(product, _differentiate_twice(loss, self.model.parameters, directions))
        return self._with_ridge(product, vector)

    def logits(self, theta: Tensor) -> Float64Array:
        """Outputs of the model at `theta` for the training part, on the CPU [n, classes]."""
        self.model.place(theta)
        with self._forward_only():
            parts = [self.model.module(inputs).detach().cpu().double() for inputs, _ in self._chunks(*self.samples)]
        return np.asarray(torch.cat(parts).numpy())

    def evaluate(self, theta: Tensor, samples: Samples) -> Evaluation:
        """Right answers and mean cross-entropy (without the ridge) at `theta` on other samples; 0 for none."""
        self.model.place(theta)
        correct, loss = 0, 0.0
        with self._forward_only():
            for inputs, labels in self._chunks(*samples):
                logits = self.model.module(inputs)
                correct += int((logits.argmax(dim=1) == labels).sum().item())
                loss += cross_entropy(logits, labels, len(samples[1])).item()
        return Evaluation(correct=correct, examples=len(samples[1]), loss=loss)

    def scores(self, theta: Tensor, samples: Samples) -> Scores:
        """As `evaluate`, sample by sample."""
        self.model.place(theta)
        right, losses = np.zeros(0, dtype=bool), np.zeros(0)
        with self._forward_only():
            for inputs, labels in self._chunks(*samples):
                logits = self.model.module(inputs).detach()
                each = _cross_entropies(logits, labels, "none").cpu()
                right = np.append(right, (logits.argmax(dim=1) == labels).cpu().numpy())
                losses = np.append(losses, each.numpy())
        return Scores(right, losses)

    def _added(self, total: Tensor | None, parts: Sequence[Tensor]) -> Tensor:
        if total is None:
            return self.model.flat(parts)
        for view, part in zip(self.model.views(total), parts, strict=True):
            view.add_(part)
        return total

    def _with_ridge(self, total: Tensor | None, vector: Tensor) -> Tensor:
        if total is None:
            raise DataError("a mini-batch without samples has no gradient; draw at least one")
        return total.add_(vector, alpha=self.ridge) if self.ridge else total

    def _select(self, rows: Tensor | None) -> Samples:
        inputs, labels = self.samples
        return (inputs, labels) if rows is None else (inputs[rows], labels[rows])

    def _chunks(self, inputs: Tensor, labels: Tensor) -> Iterator[Samples]:
        return (
            (inputs[start : start + self.chunk], labels[start : start + self.chunk])
            for start in range(0, len(labels), self.chunk)
        )

    def _penalty(self, theta: Tensor) -> float:
        if not self.ridge:
            return 0.0
        exact = torch.float32 if theta.device.type == "mps" else torch.float64
        norm: float = torch.linalg.vector_norm(theta, dtype=exact).item()
        return 0.5 * self.ridge * norm * norm

    def _forward_only(self) -> AbstractContextManager[object]:
        """Recurrent and attention layers take other kernels, with other rounding, where no gradient can be asked."""
        return torch.enable_grad() if self.model.recurrent or self.model.attends else torch.no_grad()

    def twice_differentiable(self) -> AbstractContextManager[object]:
        """Fused kernels, of cuDNN for recurrent layers and of attention, can be differentiated once only."""
        stack = ExitStack()
        if self.model.recurrent and self.model.theta.is_cuda:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False, deterministic=True, allow_tf32=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        return stack


def _differentiate_twice(loss: Tensor, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> Sequence[Tensor]:
    first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    along = torch.stack([(g * v).sum() for g, v in zip(first, directions, strict=True)]).sum()
    return torch.autograd.grad(along, parameters, allow_unused=True, materialize_grads=True)


def cross_entropy(logits: Tensor, labels: Tensor, samples: int) -> Tensor:
    """Share of a chunk in the mean cross-entropy over `samples` samples, a float64 scalar.

    `logits` are [n, classes], `labels` int64 [n].
    """
    return _cross_entropies(logits, labels, "sum") / samples


def _cross_entropies(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """In float64; MPS has none: its logits move to the CPU."""
    if logits.device.type == "mps":
        logits, labels = logits.cpu(), labels.cpu()
    return nn.functional.cross_entropy(logits.double(), labels, reduction=reduction)


def choose_chunk(model: FlatModel, inputs: Tensor, labels: Tensor) -> int:
    """Samples whose saved activations fill at most the bytes of the device: a power of two, at most `MAX_CHUNK`.

    `FEWEST` samples, or as many of them as fit, may fill `MOST_CHUNK_BYTES` instead. Counted is what one sample leaves
    behind for its backward pass; the parameters, which all share, do not count.
    """
    shared = {tensor.untyped_storage().data_ptr() for tensor in model.module.state_dict().values()}
    saved: dict[int, torch.UntypedStorage] = {}  # held, so that no other takes its place, and the count is the same

    def count(tensor: Tensor) -> None:  # a hook that gave the tensor back would tie a knot that is never freed
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            saved[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
        cross_entropy(model.module(inputs[:1].clone()), labels[:1].clone(), 1)
    size = sum(storage.nbytes() for storage in saved.values())
    most = CHUNK_BYTES.get(model.theta.device.type, MOST_CHUNK_BYTES)
    chunk = MAX_CHUNK
    while chunk > 1 and chunk * size > (most if chunk > FEWEST else MOST_CHUNK_BYTES):
        chunk //= 2
    return chunk
