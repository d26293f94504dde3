"""A task: all that a client knows of its problem. Write one to train something else than a classifier.

Four methods say it: the model, a client's data sets, the loss of each sample, and the figures of a client on data that
it did not train on. Everything else, from chunks to L-BFGS, is written against them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor, nn

from dqnfed_flwr.data.dataset import TargetForm
from dqnfed_flwr.data.sources import Source
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import ConfigError, DataError, DQNFedError, ModelError
from dqnfed_flwr.models.making import as_dtype, check_parameters, own_copy
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks.batches import Batch, in_float64
from dqnfed_flwr.types import Evaluation, Figure

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings

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


_SAY_THE_LOSS = ("floor", "losses", "losses_of", "summed")


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
    floor : float | None
        The least value that the loss of a sample can have, from which an entitlement counts; None where that is not
        known. A class with `losses` or `losses_of` of its own does not inherit it: it says its own.
    """

    collate: Callable[[list[Any]], Any] | None = None
    targets: TargetForm = "classes"
    percent: bool = False
    floor: float | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        nearest = next(vars(base).keys() for base in cls.__mro__ if not vars(base).keys().isdisjoint(_SAY_THE_LOSS))
        if "floor" not in nearest:  # it is about the loss of a class further up
            cls.floor = None

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
        """The loss of each sample of a batch, of any sign; see `Losses`, and `floor`.

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
        return _merged(model)

    @property
    def source(self) -> Source:
        """Where samples come from: its own `datasets`, or what the setting `data` names."""
        return Source(type(self).__name__, "task")

    @property
    def figure(self) -> Figure:
        """The figure that fairness is about."""
        for name, counter in self._counters().items():
            return Figure(name, getattr(counter, "higher_is_better", True) is not False, self.percent)
        return Figure("loss", higher=False)

    def build(self, input_shape: tuple[int, ...], outputs: int, *, seed: int, dtype: torch.dtype | None) -> nn.Module:
        """The model for samples of this form, with initial values that depend on `seed` alone, on the CPU.

        Its floats are cast to `dtype`; None leaves them as `model` made them.

        Raises
        ------
        ModelError
            If `model` does not return a module whose parameters can be trained.
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
        check_parameters(module, "task: model()")
        return as_dtype(_own_copy(module), dtype)

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
        counted = torch.where(shares != 0, parts, 0.0)  # what is ignored may be anything, NaN as well
        return Summed((counted * shares).sum(), shares.sum().detach())

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
        return (torch.where(shares != 0, parts, 0.0) * shares).sum(dim=1) / torch.where(total > 0, total, 1.0)

    def weight_of_each(self, model: nn.Module, batch: Batch) -> Tensor:
        """The weight of each sample of a batch, of its parts the sum, float64 [n] on the CPU; 0 where none counts."""
        found = self.losses(model, batch)
        losses, weights = found if isinstance(found, tuple) else (found, None)
        shares = torch.ones_like(losses) if weights is None else weights
        return in_float64(shares.detach()).cpu().reshape(len(shares), -1).sum(dim=1)

    def evaluate(self, model: nn.Module, batches: Iterable[tuple[Batch, int]], examples: int) -> Evaluation:
        """Figures and mean loss over the batches of so many examples, each with its number of samples.

        Where the loss is not finite, neither is a figure: counters are made for numbers, and some raise on others. Nor
        is there one where examples are given and no target among them counts.
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
            fit = fit and weight > 0
            figures = {name: _computed(name, counter) if fit else math.nan for name, counter in counters.items()}
            figures = figures or {"loss": mean if weight > 0 else math.nan}
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
                counter.update(predictions.clone(), targets.clone())
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
        return own_copy(module)
    except RuntimeError:  # what layers keep in lists of their own, and have computed, cannot be copied
        return module


def adapted(module: nn.Module) -> list[tuple[str, Any]]:
    """The models of `peft` in a module, known by what they can do: the outermost ones, by name."""
    found: list[tuple[str, Any]] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(f"{outer}." if outer else "") for outer, _ in found)
        if not inside and hasattr(part, "merge_and_unload") and hasattr(part, "save_pretrained"):
            found.append((name, part))
    return found


def _merged(module: nn.Module) -> nn.Module:
    """The module with each adapter of `peft` added to the weights that it adapts; changed in place."""
    for name, part in adapted(module):
        whole: nn.Module = part.merge_and_unload()
        if not name:
            return whole
        outer, _, last = name.rpartition(".")
        setattr(module.get_submodule(outer), last, whole)
    return module
