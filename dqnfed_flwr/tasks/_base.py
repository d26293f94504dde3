"""A task: all that a client knows of its problem. Write one to train something else than a classifier.

Four methods say it: the model, a client's data sets, the loss of each sample, and the figures of a client on data that
it did not train on. Everything else, from chunks to L-BFGS, is written against them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dqnfed_flwr.data.targets import TargetForm
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import ConfigError, DataError, DQNFedError, ModelError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks.adapters import merged
from dqnfed_flwr.types import Evaluation, Figure

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings

Batch = Any
"""What `collate` makes of samples; by default torch's own, with the inputs first and the targets second."""
Losses = Tensor | tuple[Tensor, Tensor]
"""The loss of each sample [n], or of each part of it [n, ...]; or such losses with a weight for each of them."""


class Counter(Protocol):
    """A figure in the making, such as a metric of torchmetrics."""

    def update(self, predictions: Tensor, targets: Tensor, /) -> None:
        """Take in a batch."""

    def compute(self) -> Any:
        """The figure of all batches: a number."""


class Sequence(Protocol):
    """A map-style data set: torch's, torchvision's and Hugging Face's fit."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Datasets:
    """A client's samples: what it trains on, what its figures are measured on, and what it keeps apart, if anything."""

    train: Sequence
    test: Sequence
    validation: Sequence | None = None


@dataclass(frozen=True, slots=True)
class Summed:
    """Losses of a batch, added up with their weights: float64 scalars. `weight` is None where every sample counts 1."""

    loss: Tensor
    weight: Tensor | None = None


class Task(ABC):
    """A problem to train. `module:Class` in the setting `task` names one; `run(..., task=Mine())` takes an object.

    A class whose `__init__` takes an argument is given the settings of the run.

    Attributes
    ----------
    collate : Callable[[list], Any] | None
        Makes a batch of samples; None for torch's own.
    targets : TargetForm
        The form of y, where the data come from the setting `data`.
    percent : bool
        Whether the first of `metrics` is a share, to be shown in per cent.
    """

    collate: Callable[[list[Any]], Any] | None = None
    targets: TargetForm = "classes"
    percent: bool = False

    @abstractmethod
    def model(self) -> nn.Module:
        """The model; parameters with `requires_grad` are trained.

        Its initial values are drawn under the run's seed.
        """

    @abstractmethod
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """The data sets of client `partition` of `clients`; the same for the same arguments.

        A sample is the same whenever it is asked for: random augmentation would make the loss no function of the model.
        """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> Losses:
        """The loss of each sample of a batch, never negative; see `Losses`.

        A sample's loss depends on that sample and the model alone.
        """

    def metrics(self) -> Mapping[str, Counter]:
        """Fresh counters of the figures of a client, by name; the first is the one that fairness is about.

        Without any, that is the mean loss. The attribute `higher_is_better` of a counter says its direction; without
        it, more is better.
        """
        return {}

    def predictions(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the counters of `metrics` are updated with: predictions and targets."""
        inputs, targets = batch[0], batch[1]
        return model(inputs), targets

    def bound(self, settings: Settings) -> Self:
        """The task for a run with these settings."""
        del settings
        return self

    def merged(self, model: nn.Module) -> nn.Module:
        """The trained model as `dqnfed export` writes it whole; adapters of `peft` become part of the weights.

        Have it do the same for adapters of your own. The model may be changed.
        """
        return merged(model)

    @property
    def figure(self) -> Figure:
        """The figure that fairness is about."""
        for name, counter in self._counters().items():
            return Figure(name, getattr(counter, "higher_is_better", True) is not False, self.percent)
        return Figure("loss", higher=False)

    def build(self, input_shape: tuple[int, ...], outputs: int, *, seed: int, dtype: torch.dtype) -> nn.Module:
        """The model for samples of this form, with initial values that depend on `seed` alone, on the CPU.

        Raises
        ------
        ModelError
            If `model` does not return a module whose shapes are known.
        """
        with seeded(seed), torch.device("cpu"):
            try:
                module = self.model()
            except DQNFedError:
                raise
            except Exception as cause:  # whatever a model of the user's does
                raise ModelError(f"task: model() raised {told(cause)}") from cause
        if not isinstance(module, nn.Module):
            raise ModelError(f"task: model() returned {type(module).__name__}; it must return a torch.nn.Module")
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            raise ModelError("task: model() has lazy layers, whose shapes are not known; give them their sizes")
        return _own_copy(module).to(dtype)

    def summed(self, model: nn.Module, batch: Batch, count: int) -> Summed:
        """The losses of a batch of `count` samples, summed in float64.

        Raises
        ------
        DataError
            If `losses` gives something else than one loss, or one row of them, for each sample.
        """
        found = self.losses(model, batch)
        losses, weights = found if isinstance(found, tuple) else (found, None)
        if not isinstance(losses, Tensor) or not losses.ndim or len(losses) != count:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise DataError(
                f"task: losses gave {shape} for a batch of {count} samples; give one loss a sample, [{count}], or one "
                'for each part of a sample: no mean or sum (reduction="none"), and a collate that keeps every sample'
            )
        if weights is None and losses.ndim == 1:
            return Summed(in_float64(losses).sum())
        parts = in_float64(losses)
        shares = torch.ones_like(parts) if weights is None else in_float64(weights)
        if shares.shape != parts.shape:
            raise DataError(f"task: losses are {tuple(parts.shape)} and their weights {tuple(shares.shape)}")
        return Summed((parts * shares).sum(), shares.sum().detach())

    def loss_of_each(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of each sample of a batch, float64 [n] on the CPU: of its parts their mean by weight, 0 of none."""
        found = self.losses(model, batch)
        losses, weights = found if isinstance(found, tuple) else (found, None)
        parts = in_float64(losses.detach()).cpu()
        if parts.ndim == 1:
            return parts if weights is None else torch.where(weights.detach().cpu() > 0, parts, 0.0)
        parts = parts.flatten(1)
        shares = torch.ones_like(parts) if weights is None else in_float64(weights.detach()).cpu().flatten(1)
        total = shares.sum(dim=1)
        return (parts * shares).sum(dim=1) / torch.where(total > 0, total, 1.0)

    def evaluate(self, model: nn.Module, batches: Iterable[tuple[Batch, int]], examples: int) -> Evaluation:
        """Figures and mean loss over the batches of so many examples, each with its number of samples.

        Where the loss is not finite, neither is a figure: counters are made for numbers, and some raise on others.
        """
        counters = self._counters()
        loss = weight = 0.0
        for batch, count in batches:
            summed = self.summed(model, batch, count)
            loss += summed.loss.item()
            weight += count if summed.weight is None else summed.weight.item()
            if counters and math.isfinite(loss):
                self._count(counters, model, batch)
            del batch  # before the next one is read
        mean = loss / weight if weight else 0.0
        fit, figures = math.isfinite(loss), dict[str, float]()
        if examples:
            figures = {name: _computed(name, counter) if fit else math.nan for name, counter in counters.items()}
        return Evaluation(correct=0, examples=examples, loss=mean, figures=figures or {"loss": mean})

    def _counters(self) -> Mapping[str, Counter]:
        """Fresh counters."""
        try:
            counters = self.metrics()
        except Exception as cause:  # whatever the user's own code does
            raise ConfigError(f"task: metrics() raised {told(cause)}") from cause
        if not isinstance(counters, Mapping) or not all(_counts(counter) for counter in counters.values()):
            raise ConfigError(
                f"task: metrics() returned {counters!r}; it must return counters with update and compute by name, "
                'such as {"mae": torchmetrics.MeanAbsoluteError()}'
            )
        return counters

    def _count(self, counters: Mapping[str, Counter], model: nn.Module, batch: Batch) -> None:
        """Take a batch into all counters."""
        try:
            predictions, targets = (part.detach().cpu() for part in self.predictions(model, batch))
        except Exception as cause:  # whatever the user's own code does
            raise DataError(f"task: predictions() raised {told(cause)}; it must give predictions, targets") from cause
        for name, counter in counters.items():
            try:
                counter.update(predictions, targets)
            except Exception as cause:  # whatever a counter does
                raise DataError(f"task: metric {name!r} raised {told(cause)}") from cause


def _counts(counter: Any) -> bool:
    return callable(getattr(counter, "update", None)) and callable(getattr(counter, "compute", None))


def _computed(name: str, counter: Counter) -> float:
    try:
        found = counter.compute()
    except Exception as cause:  # whatever a counter does
        raise DataError(f"task: metric {name!r} raised {told(cause)}") from cause
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        words = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else f"{type(found).__name__}"
        raise DataError(f"task: metric {name!r} gave {words}; its compute() must give one number") from None


def _own_copy(module: nn.Module) -> nn.Module:
    """A module that nobody else holds: `model()` may return the same one each time."""
    try:
        return deepcopy(module)
    except RuntimeError:  # such as torch's older weight_norm, whose weights are no leaves
        return module


def in_float64(values: Tensor) -> Tensor:
    """The same in float64; MPS has none: its values move to the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
