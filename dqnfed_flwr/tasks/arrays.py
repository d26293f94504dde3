"""Tasks whose data are arrays, from the setting `data`, and their model that of `model`; those of numbers and flags.

The tasks of classes have a file of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from dqnfed_flwr.data.sources import Source, source_of
from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.tasks._base import Counter, Datasets, Losses, Task
from dqnfed_flwr.tasks.batches import Batch, in_float64
from dqnfed_flwr.tasks.counters import Auroc, MeanAbsoluteError

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings


class OutputTask(Task):
    """A task on inputs and targets; a subclass says the loss by the model's outputs."""

    @abstractmethod
    def losses_of(self, outputs: Tensor, targets: Tensor) -> Losses:
        """The loss of each sample, from what the model gives for the inputs."""

    def losses(self, model: nn.Module, batch: Batch) -> Losses:
        """`losses_of` the model's outputs."""
        inputs, targets = batch
        return self.losses_of(model(inputs), targets)


class ArrayTask(OutputTask):
    """Such a task whose data and model are those of the settings.

    Derive a task of your own from one of these to change its loss or figures alone.
    """

    least_outputs = 1
    meant = "one output a target"
    """What a model gives for a sample, in words."""

    _settings: Settings | None = None

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    def bound(self, settings: Settings) -> Self:
        """The same task for a run with these settings."""
        found = copy(self)
        found._settings = settings
        return found

    @property
    def settings(self) -> Settings:
        """Of the run; the defaults where there is none."""
        from dqnfed_flwr.config import Settings

        return self._settings or Settings()

    @property
    def source(self) -> Source:
        """What the setting `data` names."""
        return source_of(self.settings.data)

    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """The shape of what a model must give for one sample with this target: a vector, unless a subclass differs."""
        return (outputs,)

    def model(self) -> nn.Module:
        """Not asked: `build` makes the model of the settings, which depends on the data."""
        raise ModelError("task: the model of such a task depends on its data; use build")

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Not asked: the data are those of the settings."""
        raise DataError("task: the data of such a task come from the setting data")

    def build(self, input_shape: tuple[int, ...], outputs: int, *, seed: int, dtype: torch.dtype | None) -> nn.Module:
        """The model of the settings for samples of this form."""
        return build_model(
            self.settings.model, input_shape, outputs, seed=seed, dtype=dtype, least_outputs=self.least_outputs
        )


class Regression(ArrayTask):
    """T outputs [n, T] against targets [n, T]: half the squared error, averaged over the T; less is better."""

    targets = "values"
    floor = 0.0

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [n]."""
        return (0.5 * (in_float64(outputs) - in_float64(targets)).square()).mean(dim=1)

    def metrics(self) -> Mapping[str, Counter]:
        """The mean absolute error, in the units of the targets; none where records are protected."""
        return {} if self.settings.privacy.epsilon else {"mae": MeanAbsoluteError()}


class HuberRegression(Regression):
    """The same with Huber's loss: quadratic below an error of 1, linear beyond."""

    floor = 0.0

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses [n]."""
        return nn.functional.huber_loss(in_float64(outputs), in_float64(targets), reduction="none").mean(dim=1)


class MultiLabel(ArrayTask):
    """Logits [n, C] against flags 0 or 1 [n, C]; AUROC over all flags together."""

    targets = "flags"
    percent = True
    floor = 0.0

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropies [n], averaged over the flags."""
        logits, flags = in_float64(outputs), in_float64(targets)
        return nn.functional.binary_cross_entropy_with_logits(logits, flags, reduction="none").mean(dim=1)

    def metrics(self) -> Mapping[str, Counter]:
        """The area under the curve; a client whose flags are all alike has none. None where records are protected."""
        return {} if self.settings.privacy.epsilon else {"auroc": Auroc()}

    def predictions(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and flags, one behind the other: the sigmoids of large logits are all 1, and no longer in order."""
        inputs, flags = batch
        return model(inputs).reshape(-1), flags.reshape(-1).long()
