"""The tasks that come with the package: their data are arrays, from the setting `data`, their model that of `model`."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from dqnfed_flwr.errors import DataError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.tasks._base import Batch, Datasets, Losses, Task

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

    @abstractmethod
    def output_shape(self, target: Tensor, outputs: int) -> tuple[int, ...]:
        """The shape of what a model must give for one sample with this target."""

    def model(self) -> nn.Module:
        """Not asked: `build` makes the model of the settings, which depends on the data."""
        raise NotImplementedError("the model of such a task depends on its data; use build")

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Not asked: the data are those of the settings."""
        raise DataError("task: the data of such a task come from the setting data")

    def build(self, input_shape: tuple[int, ...], outputs: int, *, seed: int, dtype: torch.dtype) -> nn.Module:
        """The model of the settings for samples of this form."""
        return build_model(
            self.settings.model, input_shape, outputs, seed=seed, dtype=dtype, least_outputs=self.least_outputs
        )
