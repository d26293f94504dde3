"""One class of several: for each sample, or at every place of it, such as a pixel, or the token that follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from torch import Tensor, nn

from dqnfed_flwr.data.dataset import IGNORED
from dqnfed_flwr.tasks._base import Counter, Losses, Summed
from dqnfed_flwr.tasks.arrays import ArrayTask, OutputTask
from dqnfed_flwr.tasks.batches import Batch, in_float64
from dqnfed_flwr.tasks.counters import MeanIou, RightShare
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


class PlaceLosses(OutputTask):
    """Cross-entropy at every place, each place with the same weight; places of class -1 count nothing."""

    percent = True
    floor = 0.0
    classes_last = False

    def losses_of(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropies [n, places] with weight 1, or 0 where nothing is asked."""
        logits = in_float64(outputs.movedim(-1, 1) if self.classes_last else outputs)
        asked = (targets != IGNORED).to(logits.device)
        classes = targets.to(logits.device)
        losses = nn.functional.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="none")
        return losses.flatten(1), asked.flatten(1).to(losses.dtype)

    def predictions(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Classes, predicted and right, of the places that count."""
        inputs, targets = batch
        found = model(inputs).argmax(dim=-1 if self.classes_last else 1)
        asked = targets != IGNORED
        return found[asked], targets[asked]


class NextTokenLosses(PlaceLosses):
    """Losses and figure of `NextToken`; a subclass says `model` and `datasets`, as for fine-tuning."""

    classes_last = True

    def metrics(self) -> Mapping[str, Counter]:
        """Share of right tokens."""
        return {"accuracy": RightShare()}


class Places(ArrayTask):
    """The data and the model of a task on places."""

    targets = "places"
    least_outputs = 2
    meant = "one logit a class at every place"


class Segmentation(PlaceLosses, Places):
    """Logits [n, C, H, W] against classes [n, H, W]; the figure is the mean intersection over union."""

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """One logit a class at every pixel."""
        return (outputs, *target.shape)

    def metrics(self) -> Mapping[str, Counter]:
        """Mean intersection over union of the classes that occur."""
        return {"iou": MeanIou()}


class NextToken(NextTokenLosses, Places):
    """Logits [n, L, V] against the tokens that follow [n, L]; the figure is the share of right ones."""

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """One logit a token of the vocabulary at every place."""
        return (*target.shape, outputs)


def cross_entropies(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Cross-entropies of logits [n, C] and labels int64 [n], in float64."""
    if logits.device.type == "mps":
        labels = labels.cpu()
    return nn.functional.cross_entropy(in_float64(logits), labels, reduction=reduction)
