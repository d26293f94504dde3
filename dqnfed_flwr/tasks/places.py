"""One class of several at every place of a sample: a pixel, or the token that follows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dqnfed_flwr.data.dataset import IGNORED
from dqnfed_flwr.tasks._base import Counter
from dqnfed_flwr.tasks.arrays import ArrayTask, OutputTask
from dqnfed_flwr.tasks.batches import in_float64
from dqnfed_flwr.tasks.counters import MeanIou, RightShare


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
