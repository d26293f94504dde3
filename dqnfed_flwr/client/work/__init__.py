"""Local work: from the model received to the row that a client sends.

Here are what it is, and the three kinds that any method may be fed with: a gradient, L-BFGS passes, epochs of SGD. The
work of one method lies in its folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dqnfed_flwr.client.curvature import Curvature, Differentiable, Observation, Point, Rate
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import RoundMemory
from dqnfed_flwr.client.parts import Opened
from dqnfed_flwr.config import LocalSettings
from dqnfed_flwr.params import Line
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import ClientTask, under

MEMORY = "work/"
_SHUFFLE, _SUBSET, _DROPOUT, ROUNDING, ROW_ROUNDING = 0, 1, 2, 4, 5  # streams of the seed; 3 is FedCorr's
BatchLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Loss of a mini-batch: module, inputs, labels."""


@dataclass(frozen=True, slots=True)
class RngKey:
    """What every random choice of a client in a round is a function of; rounds count from 1, partitions from 0."""

    seed: int
    round: int
    partition: int

    def generator(self, stream: int) -> np.random.Generator:
        """A generator of its own for each stream."""
        return np.random.default_rng((self.seed, self.round, self.partition, stream))


@dataclass(frozen=True, slots=True)
class Proximal:
    """A proximal term weight/2 |theta - anchor|^2, anchor [D]."""

    anchor: Tensor
    weight: float


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What local work is done with: `loss` is f_k, `curvature` gives the rate, `memory` is kept for the method.

    `held_out` gives the samples of a part of the data that is not trained on, None where it is empty.
    """

    plan: RunPlan
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

    Vectors go out as they are, or in so many `bits` a value.
    """

    row: Tensor
    rate: Rate
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)


class LocalWork(ABC):
    """One kind of local work; a client has one object of it for its life."""

    def __init__(self, context: ClientContext) -> None:
        self._plan, self._settings, self._loss = context.plan, context.plan.settings, context.loss
        self._curvature, self._memory = context.curvature, context.memory
        self._held_out = context.held_out

    def visit(self, request: LocalRequest) -> Point:
        """Loss over all samples at the received model, and the gradient, of the round's mini-batch if there is one."""
        settings, theta = self._settings, request.line.theta
        rows = mini_batch(self._loss, settings.local.gradient_batch, request.key)
        loss, gradient = self._loss.loss_and_gradient(theta, rows)
        if rows is not None or self._loss.model.rounds:  # a loss that was rounded judges nothing
            loss = self._loss.loss(theta)
        recomputes = settings.curvature.kind == "secant" and settings.curvature.previous == "recomputed"
        wanted = recomputes and self._plan.reads_curvature
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
        if not self._plan.reads_curvature:
            return LocalResult(point.gradient, self.plain_rate(point.gradient))
        return LocalResult(point.gradient, self._curvature.observe(point).rate)


class LbfgsWork(LocalWork):
    """Row: the gradient after E L-BFGS passes, or their displacement over the rate (Algorithm 1)."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row and its rate; for E = 1 those of the plain gradient."""
        if not self._plan.reads_curvature:
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


def mini_batch(loss: LocalLoss, size: int, key: RngKey) -> Tensor | None:
    """Rows int64 [b] of the mini-batch of a round, drawn without replacement; None where all samples are taken.

    They are `size`, or fewer where every target of those drawn first is ignored: then others are drawn that count.
    """
    if not 0 < size < loss.num_examples:
        return None
    draw = key.generator(_SUBSET)
    rows = draw.choice(loss.num_examples, size, replace=False)
    if loss.counting is not None and not loss.counting[rows].any():  # else the mean over them would be over nothing
        counting = np.flatnonzero(loss.counting)
        rows = draw.choice(counting, min(size, len(counting)), replace=False)
    return torch.from_numpy(np.sort(rows)).to(loss.model.theta.device)


def sgd(
    loss: LocalLoss,
    theta: Tensor,
    settings: LocalSettings,
    key: RngKey,
    *,
    proximal: Proximal | None = None,
    objective: Callable[[Tensor], Tensor] | None = None,
    batch_loss: BatchLoss | None = None,
) -> Tensor:
    """Run `epochs` epochs of SGD from `theta`, each over a new order of the samples.

    v <- momentum * v + g, theta <- theta - lr * v, from v = 0, with g as `batch_gradients` gives it. The rate is
    lr * decay^(round - 1). Without `proximal` the term is `settings.proximal` around `theta` (FedProx). Returned is
    theta - theta_k [D].
    """
    local = theta.clone()
    views = loss.model.views(local)
    velocities = loss.model.views(torch.zeros_like(local)) if settings.momentum else []
    rate = settings.lr * settings.decay ** (key.round - 1)
    proximal = proximal or Proximal(theta, settings.proximal)
    passes = batch_gradients(loss, local, settings, key, proximal, objective=objective, batch_loss=batch_loss)
    for moves in passes:
        for velocity, move in zip(velocities, moves, strict=settings.momentum > 0):
            velocity.mul_(settings.momentum).add_(move)
        for view, move in zip(views, velocities or moves, strict=True):
            view.add_(move, alpha=-rate)
    return theta - local


def batch_gradients(
    loss: LocalLoss,
    local: Tensor,
    settings: LocalSettings,
    key: RngKey,
    proximal: Proximal,
    *,
    objective: Callable[[Tensor], Tensor] | None = None,
    batch_loss: BatchLoss | None = None,
) -> Iterator[tuple[Tensor, ...]]:
    """Gradients in the shapes of the parameters at `local` [D], one a mini-batch; the caller moves `local` in between.

    A gradient is that of the mini-batch's mean loss plus ridge * local, plus weight * (local - anchor) where
    the proximal term has a weight. The last mini-batch of an epoch may be smaller; where the model has buffers, a
    single sample that is left over joins the mini-batch before it, for statistics need two. A mini-batch in which every
    target is ignored has the gradient 0 of its loss. The model trains: its buffers change, and dropout draws from the
    key's own stream.

    A `batch_loss` takes the place of the mean loss, and an `objective` of it is minimised in its place.
    """
    model = loss.model
    model.place(local)
    views = model.views(local)
    anchors = model.views(proximal.anchor) if proximal.weight else []
    with _seeded_dropout(key, model), model.training():
        for batch, count in loss.samples.batches(_rows(loss, settings, key)):
            part = batch_loss(model.module, *batch) if batch_loss else loss.mean(batch, count)
            del batch
            part = objective(part) if objective else part
            moves = model.gradients(part)
            if loss.ridge:  # never in place: two parameters may share one gradient
                moves = _plus(moves, loss.ridge, views)
            if proximal.weight:
                moves = _plus(moves, proximal.weight, (v - anchor for v, anchor in zip(views, anchors, strict=True)))
            yield moves


def batches_in_passes(loss: LocalLoss, settings: LocalSettings) -> int:
    """How many mini-batches `batch_gradients` goes through."""
    return settings.epochs * len(_split(torch.arange(loss.num_examples), *_sizes(loss, settings)))


def lbfgs_passes(
    loss: Differentiable, curvature: Curvature, point: Point, seen: Observation, settings: LocalSettings
) -> tuple[Tensor, Rate]:
    """Algorithm 1 from theta-hat^1 = `point.theta`: gradients at E models, each an L-BFGS step from the one before.

    With g^e the gradient at theta-hat^e and B_e the history of the pairs in `seen` and of those passed so far,

        theta-hat^{e+1} = theta-hat^e - lr p^e,    p^1 = g^1,    p^e = B_e g^e for e > 1

    (p^e = g^e while there is no pair). In the paper's count theta-hat^1 is theta^t and theta-hat^0 is theta^{t-1},
    whose pair is in `seen` where the settings ask for it.

    All passes use the mini-batch of `point`. The model's buffers stay as they are: a pair compares two models of one
    function. The state of `curvature` is not changed.

    Returned are the vector g [D] that `settings.gradient` names, and the rate g . B_E g: `final` is g^E, `pseudo` is
    (theta-hat^1 - theta-hat^{E+1}) / lr, the sum of the p^e. For E = 1 both are g^1.
    """
    history = curvature.history(seen.pairs)
    theta, gradient, direction = point.theta, point.gradient, point.gradient
    total = direction
    for _ in range(settings.epochs - 1):
        following = theta - settings.lr * direction
        _, new_gradient = loss.loss_and_gradient(following, point.rows)
        history.push(following - theta, new_gradient - gradient)
        theta, gradient = following, new_gradient
        direction = history.inverse_product(gradient) if len(history) else gradient
        total = total + direction
    row = total if settings.gradient == "pseudo" else gradient
    rate = float(torch.dot(row, history.inverse_product(row)))
    return row, curvature.rate(row, rate, len(history), seen.rate.pairs_rejected + history.rejected)


def _plus(moves: tuple[Tensor, ...], factor: float, others: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.add(move, other, alpha=factor) for move, other in zip(moves, others, strict=True))


def _rows(loss: LocalLoss, settings: LocalSettings, key: RngKey) -> Iterator[Tensor]:
    """The samples of each mini-batch, int64 [b]."""
    size, least = _sizes(loss, settings)
    shuffle = key.generator(_SHUFFLE)
    for _ in range(settings.epochs):
        order = torch.from_numpy(shuffle.permutation(loss.num_examples)).to(loss.model.theta.device)
        yield from _split(order, size, least)


def _sizes(loss: LocalLoss, settings: LocalSettings) -> tuple[int, int]:
    """Of a mini-batch, and the least that it may have."""
    size = settings.batch_size or loss.num_examples
    return size, min(2, size) if loss.model.spec.buffers else 1


def _split(order: Tensor, size: int, least: int) -> list[Tensor]:
    """Parts of `size`; a last one of fewer than `least` joins the one before."""
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) < least:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _seeded_dropout(key: RngKey, model: FlatModel) -> AbstractContextManager[None]:
    """Draw dropout masks from the key's own stream; a model that draws nothing needs no generator."""
    if not model.draws:
        return nullcontext()
    return seeded(int(key.generator(_DROPOUT).integers(2**63)), model.theta.device)


def make_work(context: ClientContext) -> LocalWork:
    """A fresh object of the work that the plan names, with that of the anchor behind it where there is one."""
    plan = context.plan
    work: LocalWork = resolve_name(plan.work.source)(context)
    return resolve_name(plan.method.around)(context, work) if plan.stage is None and plan.sends_anchor_row else work
