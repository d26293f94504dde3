"""Several flags for each sample, each set or not: binary cross-entropy, and the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dqnfed_flwr.tasks._base import Counter, in_float64
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.counters import Auroc


class MultiLabel(ArrayTask):
    """Logits [n, C] against flags 0 or 1 [n, C]; AUROC over all flags together."""

    targets = "flags"
    percent = True

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropies [n], averaged over the flags."""
        logits, flags = in_float64(outputs), in_float64(targets)
        return nn.functional.binary_cross_entropy_with_logits(logits, flags, reduction="none").mean(dim=1)

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """One logit a flag."""
        return (outputs,)

    def metrics(self) -> Mapping[str, Counter]:
        """The area under the curve; a client whose flags are all alike has none."""
        return {"auroc": Auroc()}

    def predictions(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and flags, one behind the other: the sigmoids of large logits are all 1, and no longer in order."""
        inputs, flags = batch
        return model(inputs).reshape(-1), flags.reshape(-1).long()
