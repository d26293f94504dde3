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

from dqnfed_flwr.client.flat_model import FlatModel, check_depends
from dqnfed_flwr.client.loss_checks import check_losses, loss_words, not_finite
from dqnfed_flwr.client.model_checks import check_fit
from dqnfed_flwr.client.samples import HeldSamples, Samples, choose_chunk
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.batches import Batch, mapped
from dqnfed_flwr.tasks.classification import CrossEntropy, cross_entropies
from dqnfed_flwr.types import Evaluation, Float64Array


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
    check : bool
        Whether to check that model, samples and task fit together; False where the same have been checked before.

    Notes
    -----
    Logits are cast to float64 before the log-softmax and losses are summed in float64: a float32 model's loss then
    shows decreases far below one float32 unit. `loss` and `loss_and_gradient` run the same kernels on the same
    chunks, so that their losses at one theta agree to the last bit and can be compared across exchanges. Under autocast
    they do not: `loss` and `sample_losses`, by which clients judge, are in the model's dtype there, too.

    Attributes
    ----------
    counting : NDArray[np.bool_] | None
        Which samples have any weight [n]; None where all have.

    Raises
    ------
    DataError
        If the training part is empty, every target in it is ignored, the task's losses are none, or the model does
        not take the samples.
    ModelError
        If the model gives another number of logits, or draws random numbers as it is evaluated.
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
        check: bool = True,
    ) -> None:
        self.samples: Samples = HeldSamples(samples) if isinstance(samples, tuple) else samples
        if self.samples.counted and not len(self.samples):
            raise DataError("the client has no training sample; give it at least one")
        self.model = model
        self.task = task or CrossEntropy()
        self.ridge = ridge
        weighted = self._checked(outputs) if check else False
        self.chunk = chunk or choose_chunk(model, self.samples, self.task)
        self._weight: float | None = None
        self._read = 0.0  # the weight that the last pass read, where it is not known before
        self.counting: NDArray[np.bool_] | None = None
        self._looked_through = isinstance(self.task, CrossEntropy)  # finite where its data are
        if weighted:
            self.look_through(weighted=True)
        self._precomputed: tuple[Tensor, float, Callable[[], Tensor]] | None = None

    def _checked(self, outputs: int) -> bool:
        """Whether the task weights parts of samples; errors as the class says."""
        if isinstance(self.task, ArrayTask):
            check_fit(self.model, self.samples, self.task, outputs)
        with self.model.full_precision():  # what is checked is the task, not the rounding
            weighted = not isinstance(self.task, CrossEntropy) and check_losses(self.model, self.samples, self.task)
        return weighted and self.samples.counted  # else the weight is known after a pass

    @property
    def num_examples(self) -> int:
        """Training samples of the client; as the last pass read them, where their number is not known before."""
        return len(self.samples) if self.samples.counted else int(self._read)

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

    def look_through(self, *, weighted: bool = False) -> None:
        """Ask for the loss of every training sample, at the model placed last; nothing where that is done.

        Where the losses are `weighted`, note the weights. `DataError` if the loss of a sample, or of a loader's batch,
        is not finite, or nothing weighs.
        """
        if self._looked_through:
            return
        total, each, faults, read = 0.0, list[NDArray[np.bool_]](), dict[int, float](), 0
        counted = self.samples.counted
        with torch.no_grad():
            for batch, count in self.samples.chunks(self.chunk):
                summed = self.task.summed(self.model.module, batch, count)
                if not summed.loss.isfinite():
                    faults |= not_finite(self.model, batch, self.task, read) if counted else {read: summed.loss.item()}
                if weighted:
                    total += count if summed.weight is None else summed.weight.item()
                    each.append((self.task.weight_of_each(self.model.module, batch) > 0).numpy())
                read += count if counted else 1
                del batch, summed
        if faults:
            raise DataError(loss_words(faults, read, "sample" if counted else "batch"))
        if weighted:
            self._weight, counting = _positive(total), np.concatenate(each)
            self.counting = None if counting.all() else counting
        self._looked_through = True

    def relabel(self, targets: Tensor) -> None:
        """Train on other targets [n, ...] from now on; they are taken to the device of the inputs."""
        inputs = self.tensors[0]
        self.samples = HeldSamples((inputs, targets.to(inputs.device)))

    def mean(self, batch: Batch, count: int) -> Tensor:
        """The mean loss over a batch of `count` samples, a float64 scalar; 0, as its gradient, where none counts."""
        summed = self.task.summed(self.model.module, batch, count)
        if summed.weight is None:
            return summed.loss / count
        return summed.loss / torch.where(summed.weight > 0, summed.weight, 1.0)

    def loss(self, theta: Tensor) -> float:
        """f_k at `theta` [D]: forward passes only, in full precision."""
        self.model.place(theta)
        with self._forward_only(), self.model.full_precision():
            shares = [part.detach() for part in self._parts(self.samples)]
        return _total(shares) / self._divisor + self._penalty(theta)

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
            check_depends(self.model, part)
            gradient = self._added(gradient, self.model.gradients(part))
            shares.append(part.detach())
        return _total(shares) / self._divisor + self._penalty(theta), self._with_ridge(gradient, theta)

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
                product = self._added(product, _differentiate_twice(self.model, loss, directions))
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
            chunks = samples.chunks(self.chunk)
            if not isinstance(self.task, CrossEntropy):  # predictions and counters may change what they are given
                chunks = ((mapped(batch, Tensor.clone), count) for batch, count in chunks)
            return self.task.evaluate(self.model.module, chunks, len(samples))

    def sample_losses(self, theta: Tensor, samples: Samples) -> Float64Array:
        """The loss of each of the samples at `theta` [n], without the ridge, in full precision."""
        self.model.place(theta)
        with self._forward_only(), self.model.full_precision():
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
        if self._divisor != 1:
            total.div_(self._divisor)
        return total.add_(vector, alpha=self.ridge) if self.ridge else total

    def _select(self, rows: Tensor | None) -> Samples:
        return self.samples if rows is None else self.samples.select(rows)

    def _parts(self, samples: Samples) -> Iterator[Tensor]:
        """The share of each chunk in the mean loss over `samples`, float64 scalars; see `_divisor`."""
        total = 1.0 if not samples.counted else float(len(samples))
        if self._weight is not None:
            total = self._weight if samples is self.samples else self._weight_of(samples)
        read = 0.0
        for batch, count in samples.chunks(self.chunk):
            summed = self.task.summed(self.model.module, batch, count)
            part, weight = summed.loss / total, summed.weight
            del batch, summed
            yield part
            del part
            if not samples.counted:
                read += count if weight is None else weight.item()
        if not samples.counted and not read > 0:
            raise DataError("no batch has a sample that counts: all are empty, or all their targets are ignored")
        self._read = read

    @property
    def _divisor(self) -> float:
        """What the shares of the last pass are still to be divided by; 1 where their number was known before."""
        return 1.0 if self.samples.counted else self._read

    def _weight_of(self, samples: Samples) -> float:
        """The weight of all samples together."""
        total = 0.0
        with torch.no_grad():
            for batch, count in samples.chunks(self.chunk):
                weight = self.task.summed(self.model.module, batch, count).weight
                del batch
                total += count if weight is None else weight.item()
        return _positive(total)

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


def _positive(weight: float) -> float:
    """The weight of some samples together; `DataError` where none counts."""
    if not weight > 0:
        raise DataError(
            "task: the weights of the client's losses add up to nothing: every target is ignored; give it targets, "
            "or leave it out"
        )
    return weight


def _total(shares: Sequence[Tensor]) -> float:
    """The sum of what the chunks had of a loss, read when all are begun: a card is not waited for in between."""
    total = 0.0
    for share in shares:  # not `sum`, which from Python 3.12 on gives other bits
        total += share.item()
    return total


def _differentiate_twice(model: FlatModel, loss: Tensor, directions: Sequence[Tensor]) -> Sequence[Tensor]:
    first = model.gradients(loss, create_graph=True)
    along = torch.stack([(g * v).sum() for g, v in zip(first, directions, strict=True)]).sum()
    return model.gradients(along)


def cross_entropy(logits: Tensor, labels: Tensor, samples: int) -> Tensor:
    """Share of a chunk in the mean cross-entropy over `samples` samples, a float64 scalar.

    `logits` are [n, classes], `labels` int64 [n].
    """
    return cross_entropies(logits, labels, "sum") / samples
