"""Local work: from the model received to the row that a client sends.

Here are what it is, and the three kinds that any method may be fed with: a gradient, L-BFGS passes, epochs of SGD. The
work of one method lies in its folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature, Point, Rate
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import RoundMemory
from dqnfed_flwr.client.parts import Opened
from dqnfed_flwr.client.work.passes import RngKey, lbfgs_passes, mini_batch, sgd
from dqnfed_flwr.config import Settings
from dqnfed_flwr.params import Line
from dqnfed_flwr.types import ClientTask, Packed, under

MEMORY = "work/"


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What local work is done with: `loss` is f_k, `curvature` gives the rate, `memory` is kept for the method.

    `held_out` gives the samples of a part of the data that is not trained on, None where it is empty.
    """

    settings: Settings
    loss: LocalLoss
    curvature: Curvature
    memory: RoundMemory
    held_out: Opened = lambda part: None


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """The task, the key of its random draws, the models that the message brings, and the method's vectors [D]."""

    task: ClientTask
    key: RngKey
    line: Line
    vectors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The client's row [D] and rate d~_k, with the vectors and figures that the method's `extras` ask for.

    Vectors are `packed` where they go out in a few bits a value.
    """

    row: Tensor
    rate: Rate
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    packed: Mapping[str, Packed] = field(default_factory=dict)


class LocalWork(ABC):
    """One kind of local work; a client has one object of it for its life."""

    def __init__(self, context: ClientContext) -> None:
        self._settings, self._loss = context.settings, context.loss
        self._curvature, self._memory = context.curvature, context.memory
        self._held_out = context.held_out

    def visit(self, request: LocalRequest) -> Point:
        """Loss over all samples at the received model, and the gradient, of the round's mini-batch if there is one."""
        settings, theta = self._settings, request.line.theta
        rows = mini_batch(self._loss, settings.local.gradient_batch, request.key)
        loss, gradient = self._loss.loss_and_gradient(theta, rows)
        if rows is not None:
            loss = self._loss.loss(theta)
        recomputes = settings.curvature.kind == "secant" and settings.curvature.previous == "recomputed"
        wanted = recomputes and settings.reads_curvature
        previous = request.line.at(0.0) if wanted and request.line.known else None
        return Point(request.task.exchange, theta, gradient, loss, previous, rows)

    @abstractmethod
    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The client's row, from what `visit` saw. The model's buffers may change."""

    def evaluated(self, request: LocalRequest) -> Tensor:
        """The model [D] whose accuracy is reported; it stands as it did before the round of `request`.

        Its buffers, if it has its own, may be put into place: those received come back after the evaluation.
        """
        return request.line.theta

    def plain_rate(self, row: Tensor) -> Rate:
        """lr |row|^2, where there is no curvature."""
        return self._curvature.rate(row, float("nan"), 0, 0)

    def export(self) -> dict[str, NDArray[Any]]:
        """The client's memory as named arrays."""
        kept = {MEMORY + name: values for name, values in self._memory.export().items()}
        return {**self._curvature.state.export(), **kept}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`.

        Raises
        ------
        ShapeError
            If it is the state of another model.
        """
        self._curvature.state.load({name: v for name, v in state.items() if not name.startswith(MEMORY)})
        self._memory.load(under(MEMORY, state))


class BlindWork(LocalWork):
    """Local passes that need no gradient over all samples first: `visit` gives the loss alone."""

    def visit(self, request: LocalRequest) -> Point:
        """Loss over all samples at the received model; the gradient is empty."""
        theta = request.line.theta
        return Point(request.task.exchange, theta, torch.empty(0), self._loss.loss(theta))


class GradientWork(LocalWork):
    """Row: the gradient at the received model."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """g_k and d~_k, which is that of no curvature where the method reads none."""
        if not self._settings.reads_curvature:
            return LocalResult(point.gradient, self.plain_rate(point.gradient))
        return LocalResult(point.gradient, self._curvature.observe(point).rate)


class LbfgsWork(LocalWork):
    """Row: the gradient after E L-BFGS passes, or their displacement over the rate (Algorithm 1)."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row and its rate; for E = 1 those of the plain gradient."""
        if not self._settings.reads_curvature:
            return LocalResult(point.gradient, self.plain_rate(point.gradient))
        seen = self._curvature.observe(point)
        if self._settings.local.epochs == 1:
            return LocalResult(point.gradient, seen.rate)
        return LocalResult(*lbfgs_passes(self._loss, self._curvature, point, seen, self._settings.local))


class SgdWork(BlindWork):
    """Row: the displacement theta - theta_k of E epochs of SGD."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """theta - theta_k, with the rate lr |row|^2."""
        row = sgd(self._loss, point.theta, self._settings.local, request.key)
        return LocalResult(row, self.plain_rate(row))


def make_work(context: ClientContext) -> LocalWork:
    """A fresh object of the work that the settings name, with that of the anchor behind it where there is one."""
    settings = context.settings
    module, _, name = settings.work.source.partition(":")
    work: LocalWork = getattr(import_module(module), name)(context)
    if settings.stage_settings is settings and settings.sends_anchor_row:
        from dqnfed_flwr.client.work.anchored import AnchoredWork

        return AnchoredWork(context, work)
    return work
