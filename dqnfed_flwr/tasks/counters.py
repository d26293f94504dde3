"""The figures of the tasks that come with the package, counted batch by batch."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


class MeanAbsoluteError:
    """The mean of |prediction - target|."""

    higher_is_better = False

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in a batch of equal shapes."""
        self._total += (predictions.double() - targets.double()).abs().sum().item()
        self._count += targets.numel()

    def compute(self) -> float:
        """NaN without a target."""
        return self._total / self._count if self._count else math.nan


class Auroc:
    """The area under the ROC curve of scores against flags, as scikit-learn counts it."""

    higher_is_better = True

    def __init__(self) -> None:
        self._scores: list[Tensor] = []
        self._flags: list[Tensor] = []

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in scores [n] and flags 0 or 1 [n]."""
        self._scores.append(predictions.double())
        self._flags.append(targets)

    def compute(self) -> float:
        """NaN where all flags are alike: there is no curve."""
        from sklearn.metrics import roc_auc_score  # a second, for a figure that few tasks have

        flags = np.concatenate([part.numpy() for part in self._flags]) if self._flags else np.zeros(0)
        if len(np.unique(flags)) < 2:
            return math.nan
        return float(roc_auc_score(flags, np.concatenate([part.numpy() for part in self._scores])))


class RightShare:
    """The share of classes that are right."""

    higher_is_better = True

    def __init__(self) -> None:
        self._right, self._count = 0, 0

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in classes, predicted and right."""
        self._right += int((predictions == targets).sum().item())
        self._count += targets.numel()

    def compute(self) -> float:
        """NaN without a target."""
        return self._right / self._count if self._count else math.nan


class MeanIou:
    """The intersection over union of each class that is there or predicted, averaged."""

    higher_is_better = True

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Take in classes, predicted and right."""
        both = np.stack([targets.flatten().numpy(), predictions.flatten().numpy()])
        classes, codes = np.unique(both, return_inverse=True)
        right, found = codes.reshape(both.shape)
        pairs, counts = np.unique(right * len(classes) + found, return_counts=True)
        for pair, count in zip(pairs, counts, strict=True):
            first, second = divmod(int(pair), len(classes))
            key = int(classes[first]), int(classes[second])
            self._pairs[key] = self._pairs.get(key, 0) + int(count)

    def compute(self) -> float:
        """NaN without a target."""
        classes = {label for pair, count in self._pairs.items() if count for label in pair}
        shares = [self._share(label) for label in classes]
        return float(np.mean(shares)) if shares else math.nan

    def _share(self, label: int) -> float:
        union = sum(count for pair, count in self._pairs.items() if label in pair)
        return self._pairs.get((label, label), 0) / union
