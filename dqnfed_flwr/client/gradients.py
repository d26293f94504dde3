"""The local loss f_k and its derivatives at a flat model, in chunks of the client's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.model_checks import check_fit, check_losses
from dqnfed_flwr.client.samples import HeldSamples, Samples
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.tasks._base import Batch, Task
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.batches import mapped, tensors
from dqnfed_flwr.tasks.classification import CrossEntropy, cross_entropies
from dqnfed_flwr.types import Evaluation, Float64Array

CHUNK_BYTES = {"cpu": 32 * 2**20}
MOST_CHUNK_BYTES = 256 * 2**20
"""Activations kept for one backward pass when the chunk is left to choose, by kind of device and on any other.

Larger ones are no faster on a processor, and a device at the edge has little memory.
"""
CUDA_PART = 32
"""On CUDA that part of the card's memory counts, where it is more.

A large card waits for its kernels to be started: on an H200 a gradient of 512 samples of ResNet-18 took 162 ms in
chunks of 32 and 80 in one; with bf16 790 ms in chunks of 8 and 20 in one (`benchmarks/chunks.py --device cuda`).
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
    """f_k(theta) = mean loss over the training part + ridge/2 |theta|^2, at any theta [D].

    The samples pass through the model `chunk` at a time, always in the same order. Where the task weights the parts of
    a sample, the mean is over all weights of the training part.

    Parameters
    ----------
    model : FlatModel
        Evaluated frozen, so that no buffer changes here (local SGD changes them).
    samples : Samples | tuple[Tensor, Tensor]
        The training part; as tensors inputs [n, ...] and targets [n, ...] on the model's device.
    task : Task | None
        Says the losses; None for cross-entropy.
    ridge : float
        Weight of the quadratic term.
    chunk : int
        Samples a pass; 0 leaves it to `choose_chunk`, by the bytes of the saved activations.
    outputs : int
        Outputs that the model must give for a sample, or for a place of it; 0 takes any number of them.

    Notes
    -----
    Logits are cast to float64 before the log-softmax and losses are summed in float64: a float32 model's loss then
    shows decreases far below one float32 unit. `loss` and `loss_and_gradient` run the same kernels on the same
    chunks, so that their losses at one theta agree to the last bit and can be compared across exchanges.

    Raises
    ------
    DataError
        If the training part is empty, or the task's losses are none.
    ModelError
        If the model does not take the samples, gives another number of logits, or draws random numbers as it is
        evaluated.
    """

    def __init__(
        self,
        model: FlatModel,
        samples: Samples | tuple[Tensor, Tensor],
        *,
        task: Task | None = None,
        ridge: float = 0.0,
        chunk: int = 0,
        outputs: int = 0,
    ) -> None:
        self.samples: Samples = HeldSamples(samples) if isinstance(samples, tuple) else samples
        if not len(self.samples):
            raise DataError("the client has no training sample; give it at least one")
        self.model = model
        self.task = task or CrossEntropy()
        self.ridge = ridge
        if isinstance(self.task, ArrayTask):
            check_fit(model, self.samples, self.task, outputs)
        with model.full_precision():  # what is checked is the task, not the rounding
            weighted = False if isinstance(self.task, CrossEntropy) else check_losses(model, self.samples, self.task)
        self.chunk = chunk or choose_chunk(model, self.samples, self.task)
        self._weight = self._weight_of(self.samples) if weighted else None
        self._precomputed: tuple[Tensor, float, Callable[[], Tensor]] | None = None

    @property
    def num_examples(self) -> int:
        """Training samples of the client."""
        return len(self.samples)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Inputs [n, ...] and targets [n, ...] of the training part, for work that needs them as they are.

        Raises
        ------
        ConfigError
            If they are not held as two tensors.
        """
        held = self.samples.held if isinstance(self.samples, HeldSamples) else None
        if not isinstance(held, tuple) or len(held) != 2:
            raise ConfigError(
                "local.held-bytes: this method needs inputs and class labels in memory; give more than the bytes of a "
                "client's samples, and use task classification"
            )
        return held

    def relabel(self, targets: Tensor) -> None:
        """Train on other targets [n, ...] from now on; they are taken to the device of the inputs."""
        inputs = self.tensors[0]
        self.samples = HeldSamples((inputs, targets.to(inputs.device)))

    def mean(self, batch: Batch, count: int) -> Tensor:
        """The mean loss over a batch of `count` samples, a float64 scalar."""
        summed = self.task.summed(self.model.module, batch, count)
        return summed.loss / (count if summed.weight is None else summed.weight)

    def loss(self, theta: Tensor) -> float:
        """f_k at `theta` [D]: forward passes only."""
        self.model.place(theta)
        with self._forward_only():
            shares = [part.detach() for part in self._parts(self.samples)]
        return _not_negative(_total(shares)) + self._penalty(theta)

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        """f_k and its gradient at `theta` [D], a vector of its own [D] in the dtype of `theta`.

        Both are taken over the mini-batch `rows`, int64 [b]; None takes the whole training part.
        """
        if rows is None and self._precomputed is not None and self._precomputed[0] is theta:
            (_, loss, gradient_of), self._precomputed = self._precomputed, None
            return loss + self._penalty(theta), self._with_ridge(gradient_of(), theta)
        self.model.place(theta)
        samples = self._select(rows)
        shares: list[Tensor] = []
        gradient: Tensor | None = None
        for part in self._parts(samples):
            parts = torch.autograd.grad(part, self.model.parameters, allow_unused=True, materialize_grads=True)
            gradient = self._added(gradient, parts)
            shares.append(part.detach())
        return _not_negative(_total(shares)) + self._penalty(theta), self._with_ridge(gradient, theta)

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
            for loss in self._parts(samples):
                product = self._added(product, _differentiate_twice(loss, self.model.parameters, directions))
        return self._with_ridge(product, vector)

    def logits(self, theta: Tensor) -> Float64Array:
        """Outputs of the model at `theta` for the training part, on the CPU [n, classes]."""
        self.model.place(theta)
        with self._forward_only():
            chunks = self.samples.chunks(self.chunk)
            parts = [self.model.module(inputs).detach().cpu().double() for (inputs, _), _ in chunks]
        return np.asarray(torch.cat(parts).numpy())

    def evaluate(self, theta: Tensor, samples: Samples) -> Evaluation:
        """The task's figures and mean loss (without the ridge) at `theta` on other samples; 0 for none."""
        self.model.place(theta)
        with self._forward_only():
            return self.task.evaluate(self.model.module, samples.chunks(self.chunk), len(samples))

    def sample_losses(self, theta: Tensor, samples: Samples) -> Float64Array:
        """The loss of each of the samples at `theta` [n], without the ridge."""
        self.model.place(theta)
        with self._forward_only():
            chunks = samples.chunks(self.chunk)
            found = [self.task.loss_of_each(self.model.module, batch).numpy() for batch, _ in chunks]
        return np.concatenate([np.zeros(0), *found])

    def scores(self, theta: Tensor, samples: Samples) -> Scores:
        """As `evaluate` of a classifier, sample by sample."""
        self.model.place(theta)
        right, losses = np.zeros(0, dtype=bool), np.zeros(0)
        with self._forward_only():
            for (inputs, labels), _ in samples.chunks(self.chunk):
                logits = self.model.module(inputs).detach()
                each = cross_entropies(logits, labels, "none").cpu()
                right = np.append(right, (logits.argmax(dim=1) == labels).cpu().numpy())
                losses = np.append(losses, each.numpy())
                del inputs
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
        return self.samples if rows is None else self.samples.select(rows)

    def _parts(self, samples: Samples) -> Iterator[Tensor]:
        """The share of each chunk in the mean loss over `samples`, float64 scalars."""
        total: float = len(samples)
        if self._weight is not None:
            total = self._weight if samples is self.samples else self._weight_of(samples)
        for batch, count in samples.chunks(self.chunk):
            part = self.task.summed(self.model.module, batch, count).loss / total
            del batch
            yield part
            del part

    def _weight_of(self, samples: Samples) -> float:
        """The weight of all samples together."""
        total = 0.0
        with torch.no_grad():
            for batch, count in samples.chunks(self.chunk):
                weight = self.task.summed(self.model.module, batch, count).weight
                del batch
                total += count if weight is None else weight.item()
        if not total > 0:
            raise DataError("task: the weights of the client's losses add up to nothing; leave such samples out")
        return total

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


def _total(shares: Sequence[Tensor]) -> float:
    """The sum of what the chunks had of a loss, read when all are begun: a card is not waited for in between."""
    total = 0.0
    for share in shares:  # not `sum`, which from Python 3.12 on gives other bits
        total += share.item()
    return total


def _not_negative(loss: float) -> float:
    """A training loss; what a client is entitled to, and whether it is harmed, is about losses from 0."""
    if loss < 0:
        raise DataError(
            f"task: the training loss is {loss:g}; a loss is never negative: add a constant, or use another"
        )
    return loss


def _differentiate_twice(loss: Tensor, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> Sequence[Tensor]:
    first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    along = torch.stack([(g * v).sum() for g, v in zip(first, directions, strict=True)]).sum()
    return torch.autograd.grad(along, parameters, allow_unused=True, materialize_grads=True)


def cross_entropy(logits: Tensor, labels: Tensor, samples: int) -> Tensor:
    """Share of a chunk in the mean cross-entropy over `samples` samples, a float64 scalar.

    `logits` are [n, classes], `labels` int64 [n].
    """
    return cross_entropies(logits, labels, "sum") / samples


def choose_chunk(model: FlatModel, samples: Samples, task: Task) -> int:
    """Samples that fill at most the bytes of the device: a power of two, at most `MAX_CHUNK`.

    `FEWEST` samples, or as many of them as fit, may fill `MOST_CHUNK_BYTES` instead. Counted are `bytes_of_one`.
    """
    size, device = bytes_of_one(model, samples, task), model.theta.device
    most = CHUNK_BYTES.get(device.type, MOST_CHUNK_BYTES)
    if device.type == "cuda":
        most = max(most, torch.cuda.get_device_properties(device).total_memory // CUDA_PART)
    chunk = MAX_CHUNK
    while chunk > 1 and chunk * size > (most if chunk > FEWEST else max(most, MOST_CHUNK_BYTES)):
        chunk //= 2
    return chunk


def bytes_of_one(model: FlatModel, samples: Samples, task: Task) -> int:
    """What one sample more leaves behind for the backward pass, or its own bytes where they are more.

    What all samples share does not count: the parameters, and their copies in bfloat16. So two samples are compared
    with one, where there are two.
    """
    one = samples.first(1)
    left = _left_behind(model, task, *one)
    two = samples.first(2)
    if two[1] == 2:
        left = _left_behind(model, task, *two) - left
    return max(left, sum(tensor.nbytes for tensor in tensors(one[0])))


def _left_behind(model: FlatModel, task: Task, batch: Batch, count: int) -> int:
    """Bytes saved for the backward pass of a batch of `count` samples, without the model's own."""
    batch = mapped(batch, lambda tensor: tensor.clone())  # a view's storage would be that of all samples
    shared = {tensor.untyped_storage().data_ptr() for tensor in model.module.state_dict().values()}
    saved: dict[int, torch.UntypedStorage] = {}  # held, so that no other takes its place, and the count is the same

    def keep(tensor: Tensor) -> None:  # a hook that gave the tensor back would tie a knot that is never freed
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            saved[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        task.summed(model.module, batch, count)
    return sum(storage.nbytes() for storage in saved.values())
