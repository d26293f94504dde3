"""A client's loss as others may hear of it: means over its records, each with a bounded part, and noise.

Each record passes through the model alone, in a batch of one, so that what it adds to the mean gradient is its own and
can be cut (Abadi and others, "Deep Learning with Differential Privacy", CCS 2016, without its sampling). Whatever is
computed of loss and gradient afterwards, from the rate to the test of a step, is computed of what is told here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import Samples
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked.budget import LOSSES, Protection
from dqnfed_flwr.masked.records import Release
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.batches import Batch, mapped
from dqnfed_flwr.types import Evaluation, Float64Array

ROOM = 1 << 23
"""Bytes of the gradients of single records held at a time, one at least: 4 to 16 MB are fastest on a processor."""


class RecordLoss(LocalLoss):
    """`LocalLoss` of which every record has a bounded part, with the noise of the `release` that is open.

    `loss` is that of a client that has been checked. A loss or gradient outside of a release is refused.

    Raises
    ------
    ConfigError
        If the model mixes records, as BatchNorm does, or cannot pass them one by one.
    """

    def __init__(self, loss: LocalLoss, protection: Protection) -> None:
        super().__init__(loss.model, loss.samples, task=loss.task, ridge=loss.ridge, chunk=loss.chunk, check=False)
        self._protection = protection
        self.release: Release | None = None
        self._looked_through = True  # a loss or gradient that is not finite has a bounded part, too
        _check_apart(self)

    def loss(self, theta: Tensor) -> float:
        """The mean of losses at `theta` [D], each cut to [0, B], with noise and the ridge; never below 0."""
        noise = self._open().noise("losses of the training part", LOSSES)
        told = self._mean_cut(theta, self.samples) + float(noise[0]) * self._protection.of_loss(len(self.samples))
        return max(told, 0.0) + self._penalty(theta)

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        """The same loss, and the mean of gradients at `theta` [D], each cut to the norm C, with noise and the ridge."""
        if rows is not None:
            raise ConfigError("local.gradient-batch: a budget is for gradients of all records; use 0")
        noise = self._open().noise("gradients", 1, len(theta)) * self._protection.of_gradient(len(self.samples))
        loss = self.loss(theta)
        self.model.place(theta)
        mean = cut_sum(self, self._protection.clip) / len(self.samples)
        told = mean + torch.from_numpy(noise).to(mean)
        return loss, told.to(theta.dtype).add_(theta, alpha=self.ridge)

    def evaluate(self, theta: Tensor, samples: Samples) -> Evaluation:
        """Right answers, where a task counts them, and mean loss on other records, with noise in an open release."""
        found, release = super().evaluate(theta, samples), self.release
        if release is None or not found.examples:
            return found
        count, loss = release.noise("evaluations", 2, 2)  # of the test part and the validation part
        told = max(self._mean_cut(theta, samples) + loss * self._protection.of_test_loss(found.examples), 0.0)
        if not self.task.figure.counted:  # it is the loss
            return Evaluation(0, found.examples, told, {self.task.figure.name: told})
        correct = round(found.correct + count * self._protection.of_count())
        return Evaluation(min(max(correct, 0), found.examples), found.examples, told)

    def hessian_product(self, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refused."""
        raise ConfigError("privacy.epsilon: no budget is for second derivatives; use gradients alone")

    def precompute(self, theta: Tensor, loss: float, gradient: Callable[[], Tensor]) -> None:
        """Refused."""
        raise ConfigError("local.together: gradients of several clients have no bounded parts of records; use 0")

    def _open(self) -> Release:
        if self.release is None:
            raise ConfigError("privacy.epsilon: a loss or gradient that no budget was asked for")
        return self.release

    def _mean_cut(self, theta: Tensor, samples: Samples) -> float:
        return float(cut(self.sample_losses(theta, samples), self._protection.largest).mean())


def cut(losses: Float64Array, largest: float) -> Float64Array:
    """Losses cut to [0, largest]; one that is no number counts as largest."""
    return np.clip(np.nan_to_num(losses, nan=largest), 0.0, largest)


def cut_sum(loss: LocalLoss, clip: float) -> Tensor:
    """The sum of the gradients of single records at the model that is placed [D], each cut to the norm `clip`; float64.

    One that is not finite adds nothing.
    """
    theta = loss.model.theta
    total = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
    size = max(min(loss.chunk, ROOM // (theta.element_size() * len(theta))), 1)
    for batch, _ in loss.samples.chunks(size):
        each = record_gradients(loss.model, loss.task, batch)
        norms = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)
        finite = norms.isfinite()
        each[~finite] = 0.0
        shares = torch.where(finite, clip / norms.clamp(min=clip), 0.0)
        total += (shares.to(each.dtype) @ each).double()
    return total


def record_gradients(model: FlatModel, task: Task, batch: Batch) -> Tensor:
    """The gradient of the loss of each record of a batch at the model that is placed [n, D]."""
    kinds = [parameter.dtype for parameter in model.parameters]

    def alone(theta: Tensor, record: Batch) -> Tensor:
        views = zip(model.spec.names, model.views(theta), kinds, strict=True)
        placed = {name: view.to(kind) for name, view, kind in views}

        def module(*given: Any) -> Any:
            return functional_call(model.module, placed, given)

        return task.summed(module, mapped(record, lambda part: part[None]), 1).loss  # type: ignore[arg-type]

    gradients: Tensor = vmap(grad(alone), in_dims=(None, 0))(model.theta, batch)
    return gradients


def _check_apart(loss: RecordLoss) -> None:
    """`ConfigError` where the gradients of single records cannot be had."""
    name = type(loss.model.module).__name__
    for place, layer in loss.model.module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"model: {name} has {type(layer).__name__} in {place or 'itself'!r}, which mixes records; with "
                "privacy.epsilon use one without, such as resnet18-gn"
            )
    if any(parameter.dtype.is_complex for parameter in loss.model.parameters):
        raise ConfigError(f"model: {name} has complex parameters, whose gradients by record are not made; use reals")
    try:
        batch, _ = next(iter(loss.samples.chunks(min(2, len(loss.samples)))))
        record_gradients(loss.model, loss.task, batch)
    except RuntimeError as error:
        raise ConfigError(
            f"model: {name} does not give the gradient of each record by itself, which privacy.epsilon asks for; use "
            "one of dense, convolutional and normalising layers"
        ) from error
