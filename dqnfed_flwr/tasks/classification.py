"""One class of several for each sample: cross-entropy, and accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from torch import Tensor, nn

from dqnfed_flwr.tasks._base import Counter, Losses, Summed
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.batches import Batch, in_float64
from dqnfed_flwr.tasks.counters import RightShare
from dqnfed_flwr.types import ACCURACY, Evaluation, Figure


class Classification(ArrayTask):
    """Logits [n, C] against labels int64 [n]; the figure is the share of right answers. Derive from this one."""

    percent = True
    least_outputs = 2
    meant = "one logit a class"
    floor = 0.0

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Losses:
        """Cross-entropies [n] in float64."""
        return cross_entropies(outputs, targets, "none")

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """One logit a class."""
        return (outputs,)

    def metrics(self) -> Mapping[str, Counter]:
        """Accuracy."""
        return {"accuracy": RightShare()}

    def predictions(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Classes, predicted and right."""
        inputs, labels = batch
        return model(inputs).argmax(dim=1), labels


@final
class CrossEntropy(Classification):
    """The task `classification`: torch's own sum of a batch's cross-entropies, and right answers counted.

    No class derives from it: another loss or figure would have no part in what it sums and counts.
    """

    floor = 0.0

    @property
    def figure(self) -> Figure:
        """Accuracy."""
        return ACCURACY

    def summed(self, model: nn.Module, batch: Batch, count: int) -> Summed:
        """The sum that torch's own kernel makes of a batch's cross-entropies."""
        inputs, labels = batch
        return Summed(cross_entropies(model(inputs), labels, "sum"))

    def evaluate(self, model: nn.Module, batches: Iterable[tuple[Batch, int]], examples: int) -> Evaluation:
        """Right answers and mean cross-entropy; 0 for no sample."""
        correct, loss = 0, 0.0
        for (inputs, labels), _ in batches:
            logits = model(inputs)
            correct += int((logits.argmax(dim=1) == labels).sum().item())
            loss += (cross_entropies(logits, labels, "sum") / examples).item()
            del inputs  # before the next ones are read
        return Evaluation(correct=correct, examples=examples, loss=loss)


def cross_entropies(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Cross-entropies of logits [n, C] and labels int64 [n], in float64."""
    if logits.device.type == "mps":
        labels = labels.cpu()
    return nn.functional.cross_entropy(in_float64(logits), labels, reduction=reduction)
