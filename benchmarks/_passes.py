"""Watching a run from outside: its local passes, written down and done again; seconds spent in a method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import Samples
from dqnfed_flwr.types import Evaluation


@dataclass(slots=True)
class Passes:
    """Calls of local losses, in their order.

    Attributes
    ----------
    calls : list[tuple[str, Callable]]
        Name of each pass, and the same pass over the same samples at any model [D].
    theta : Tensor | None
        A model that they may be done at.
    """

    calls: list[tuple[str, Callable[[Tensor], object]]] = field(default_factory=list)
    theta: Tensor | None = None

    def add(self, name: str, loss: LocalLoss, work: Callable[[Tensor], object], theta: Tensor) -> None:
        """Write one of `loss` down, with the model that its client has borrowed for it."""
        model = loss.model

        def again(at: Tensor) -> None:
            loss.model = model
            work(at)

        self.calls.append((name, again))
        self.theta = theta

    def repeat(self) -> None:
        """Do all of them again, at one model: what it costs does not depend on the values."""
        theta = torch.zeros(1) if self.theta is None else self.theta
        for _, work in self.calls:
            work(theta)

    def count(self, name: str) -> int:
        """How often the pass `name` was made."""
        return sum(called == name for called, _ in self.calls)


@contextmanager
def written_down() -> Iterator[Passes]:
    """Within, every gradient, loss and evaluation pass of any client is written down as it is made."""
    passes = Passes()
    loss, gradient, evaluate = LocalLoss.loss, LocalLoss.loss_and_gradient, LocalLoss.evaluate

    def noted_loss(self: LocalLoss, theta: Tensor) -> float:
        passes.add("loss", self, lambda at: loss(self, at), theta)
        return loss(self, theta)

    def noted_gradient(self: LocalLoss, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        passes.add("gradient", self, lambda at: gradient(self, at, rows), theta)
        return gradient(self, theta, rows)

    def noted_evaluation(self: LocalLoss, theta: Tensor, samples: Samples) -> Evaluation:
        passes.add("evaluation", self, lambda at: evaluate(self, at, samples), theta)
        return evaluate(self, theta, samples)

    changed = {"loss": noted_loss, "loss_and_gradient": noted_gradient, "evaluate": noted_evaluation}
    for name, method in changed.items():
        setattr(LocalLoss, name, method)
    try:
        yield passes
    finally:
        for name, original in {"loss": loss, "loss_and_gradient": gradient, "evaluate": evaluate}.items():
            setattr(LocalLoss, name, original)


@contextmanager
def clocked(owner: type, name: str) -> Iterator[list[float]]:
    """Within, the seconds of every call of the method `name` of `owner`."""
    method = getattr(owner, name)
    seconds: list[float] = []

    def clocked_method(*arguments: object) -> object:
        since = time.perf_counter()
        try:
            return method(*arguments)
        finally:
            seconds.append(time.perf_counter() - since)

    setattr(owner, name, clocked_method)
    try:
        yield seconds
    finally:
        setattr(owner, name, method)
