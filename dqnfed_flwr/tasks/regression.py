"""Numbers for each sample: squared or Huber loss, and the mean absolute error."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dqnfed_flwr.tasks._base import Counter, in_float64
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.counters import MeanAbsoluteError


class Regression(ArrayTask):
    """T outputs [n, T] against targets [n, T]: half the squared error, averaged over the T; less is better."""

    targets = "values"

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [n]."""
        return (0.5 * (in_float64(outputs) - in_float64(targets)).square()).mean(dim=1)

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """One number a target."""
        return (outputs,)

    def metrics(self) -> Mapping[str, Counter]:
        """The mean absolute error, in the units of the targets."""
        return {"mae": MeanAbsoluteError()}


class HuberRegression(Regression):
    """The same with Huber's loss: quadratic below an error of 1, linear beyond."""

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [n]."""
        return nn.functional.huber_loss(in_float64(outputs), in_float64(targets), reduction="none").mean(dim=1)
