"""What local work is: from the model received to the row that a client sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature, Point, Rate
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import RoundMemory
from dqnfed_flwr.client.work.passes import Turn, mini_batch
from dqnfed_flwr.config import Settings
from dqnfed_flwr.params import Line
from dqnfed_flwr.types import ClientTask

MEMORY = "work/"


@dataclass(frozen=True, slots=True)
class Bench:
    """What local work is done with.

    Attributes
    ----------
    settings : Settings
        Of the run.
    loss : LocalLoss
        f_k.
    curvature : Curvature
        For the rate.
    memory : RoundMemory
        What the client keeps for the method.
    """

    settings: Settings
    loss: LocalLoss
    curvature: Curvature
    memory: RoundMemory


@dataclass(frozen=True, slots=True)
class Occasion:
    """The task, whose turn it is, and the models that the message tells."""

    task: ClientTask
    turn: Turn
    line: Line


@dataclass(frozen=True, slots=True)
class Product:
    """What comes of the work.

    Attributes
    ----------
    row : Tensor
        The client's row [D].
    rate : Rate
        d~_k.
    vectors, figures
        As the method's `extras` ask.
    """

    row: Tensor
    rate: Rate
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


class LocalWork(ABC):
    """One kind of local work; a client has one object of it for its life."""

    def __init__(self, bench: Bench) -> None:
        self._settings, self._loss = bench.settings, bench.loss
        self._curvature, self._memory = bench.curvature, bench.memory

    def visit(self, occasion: Occasion) -> Point:
        """Loss over all samples at the received model, and the gradient, of the round's mini-batch if there is one."""
        settings, theta = self._settings, occasion.line.theta
        rows = mini_batch(self._loss, settings.local.gradient_batch, occasion.turn)
        loss, gradient = self._loss.loss_and_gradient(theta, rows)
        if rows is not None:
            loss = self._loss.loss(theta)
        recomputes = settings.curvature.kind == "secant" and settings.curvature.previous == "recomputed"
        wanted = recomputes and settings.reads_curvature
        previous = occasion.line.at(0.0) if wanted and occasion.line.known else None
        return Point(occasion.task.exchange, theta, gradient, loss, previous, rows)

    @abstractmethod
    def perform(self, occasion: Occasion, point: Point) -> Product:
        """The client's row, from what `visit` saw. The model's buffers may change."""

    def evaluated(self, occasion: Occasion) -> Tensor:
        """The model [D] whose accuracy is reported; it stands as it did before the round of `occasion`.

        Its buffers, if it has its own, may be put into place: those received come back after the evaluation.
        """
        return occasion.line.theta

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
        kept = {name.removeprefix(MEMORY): values for name, values in state.items() if name.startswith(MEMORY)}
        self._curvature.state.load({name: v for name, v in state.items() if not name.startswith(MEMORY)})
        self._memory.load(kept)


class BlindWork(LocalWork):
    """Local passes that need no gradient over all samples first: `visit` gives the loss alone."""

    def visit(self, occasion: Occasion) -> Point:
        """Loss over all samples at the received model; the gradient is empty."""
        theta = occasion.line.theta
        return Point(occasion.task.exchange, theta, torch.empty(0), self._loss.loss(theta))
