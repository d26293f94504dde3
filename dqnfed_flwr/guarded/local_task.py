"""What a user says of a client's loss, and the same as `client.gradients.LocalLoss` takes it: a task over batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from logging import WARNING
from typing import Any, NoReturn

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor, nn

from dqnfed_flwr.errors import ConfigError, DataError, DQNFedError, ModelError, shortened
from dqnfed_flwr.tasks._base import Datasets, Summed, Task
from dqnfed_flwr.tasks.batches import Batch, all_tensors, in_float64, mapped, tensors

NEARLY = 1e-4
"""Relative difference that rounding may make."""
ANYWHERE = 0.5
"""An output at which every usual criterion is finite: a logit, a probability, a rate, a variance."""


def _as_pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping) or not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(
            f"a batch is {type(batch).__name__}; need a pair of inputs and targets. Say how to take it apart, such as "
            "pair=operator.itemgetter('img', 'label')"
        )
    return batch[0], batch[1]


@dataclass(frozen=True, slots=True)
class LocalTask:
    """What a client's loss is made of: f_k = mean over all samples of criterion(model(inputs), targets).

    Attributes
    ----------
    model : nn.Module
        The module that the federation trains, on its device. The arrays received are put into it; what does not travel
        keeps the values that it has here. What requires a gradient and travels is what the guarantee is about.
    batches : Iterable
        All training samples of the client, such as its `DataLoader`. They are gone through more than once.
    criterion : Callable[[outputs, targets], Tensor]
        Mean loss of a batch, a scalar; where it may fall below 0, see `floor` of `Guaranteed`.
    pair : Callable[[batch], tuple[inputs, targets]]
        Takes a batch apart; by default it is a pair already.
    count : Callable[[batch], int] | None
        How many samples a batch has, by which its mean loss counts; by default `len(targets)`. Give it where the first
        axis of the targets is not the sample: sequences first [L, n], graphs, boxes.
    load : Callable[[model, dict[str, Tensor]], object] | None
        Puts the arrays received into the model, such as `peft.set_peft_model_state_dict`; by default they go by name.
    held_out : Iterable | None
        Samples that the client does not train on, the same ones each time, for a strategy whose `judge` asks for them.
        In batches as in `batches`, where each tensor has the sample as its first axis, else one sample a batch.
    """

    model: nn.Module
    batches: Iterable[Any]
    criterion: Callable[[Any, Any], Tensor]
    pair: Callable[[Any], tuple[Any, Any]] = _as_pair
    count: Callable[[Any], int] | None = None
    load: Callable[[nn.Module, dict[str, Tensor]], object] | None = None
    held_out: Iterable[Any] | None = None


class MeanTask(Task):
    """The criterion's mean of a batch, times its number of samples: the batch is the least that it can be asked about.

    A batch counts nothing where the criterion is NaN whatever the model says, as it is where every target is ignored.
    """

    def __init__(self, local: LocalTask) -> None:
        self._local = local

    def model(self) -> nn.Module:
        """The user's own."""
        return self._local.model

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """None: the client has loaded its batches."""
        raise ConfigError("a guarded client has batches, no data sets; ask its LocalTask for them")

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The criterion for each sample by itself [n], of what the model gives for all at once; 0 where nothing counts.

        A batch with a count of the user's own is taken for one sample.
        """
        outputs, targets = model(batch[0]), batch[1]
        count = 1 if self._local.count else len(targets)
        if count > 1:
            _check_rows(count, {"inputs": batch[0], "outputs": outputs, "targets": targets})

        def loss_of(row: int) -> Tensor:
            def cut(part: Tensor) -> Tensor:
                return part[row : row + 1] if count > 1 else part

            mean = self._mean(one := _changed(outputs, cut), target := mapped(targets, cut))
            return torch.zeros_like(mean) if self._says_nothing(mean, one, target) else mean

        try:
            return torch.stack([loss_of(row) for row in range(count)])
        except DQNFedError:
            raise
        except Exception as cause:  # whatever a criterion of the user's own does
            words = shortened(f"held_out: the criterion raised {type(cause).__name__}: {cause}")
            raise DataError(f"{words}, for one of {count} samples; make each batch one: batch_size=1") from cause

    def summed(self, model: nn.Module, batch: Batch, count: int) -> Summed:
        """Mean loss times `count`, and `count` as the weight; nothing and 0 where the batch counts nothing."""
        with torch.enable_grad():  # kernels for inference alone may round otherwise
            outputs = model(batch[0])
            mean = self._mean(outputs, batch[1])
            if self._says_nothing(mean, outputs, batch[1]):
                nothing = torch.zeros((), dtype=torch.float64, requires_grad=True)
                return Summed(nothing, torch.zeros((), dtype=torch.float64))
            return Summed(in_float64(mean) * count, torch.tensor(float(count), dtype=torch.float64))

    def check_mean(self, model: nn.Module, batch: Batch) -> None:
        """`DataError` where the criterion adds up a batch instead of taking its mean: it is asked about two parts."""
        inputs, targets = batch
        with torch.no_grad():
            outputs = model(inputs)
            if not all(isinstance(part, Tensor) and part.ndim for part in (outputs, targets)):
                return
            whole, half = len(targets), len(targets) // 2
            if half == 0 or len(outputs) != whole:
                return
            together, one, other = (
                float(self._local.criterion(outputs[part], targets[part]))
                for part in (slice(None), slice(half), slice(half, None))
            )
        mean = (half * one + (whole - half) * other) / whole
        if math.isclose(together, one + other, rel_tol=NEARLY) and not math.isclose(together, mean, rel_tol=NEARLY):
            raise DataError(
                "the criterion adds up the losses of a batch, and larger batches would count more; it must be their "
                'mean: reduction="mean"'
            )

    def _mean(self, outputs: Any, targets: Any) -> Tensor:
        """The criterion's scalar."""
        loss = self._local.criterion(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ModelError("the criterion gives no scalar; it must be the mean loss of the batch")
        return loss.reshape(())

    def _says_nothing(self, mean: Tensor, outputs: Any, targets: Any) -> bool:
        """Whether the criterion's `mean` is NaN, at other outputs too, while these are finite."""
        if not mean.isnan() or not all(bool(part.isfinite().all()) for part in _outputs_of(outputs)):
            return False
        with torch.no_grad():
            return bool(self._local.criterion(_changed(outputs, _elsewhere), targets).isnan())


class EachTask(MeanTask):
    """The same, where the losses of a batch are those of its samples, added up."""

    summed = Task.summed

    def check_mean(self, model: nn.Module, batch: Batch) -> None:
        """`DataError` where the criterion's mean of a batch is no mean of what it gives for each sample by itself."""
        with torch.no_grad():
            each, mean = self.losses(model, batch).double(), float(self._mean(model(batch[0]), batch[1]))
        least, most = float(each.min()), float(each.max())
        room = NEARLY * max(abs(least), abs(most))
        if math.isfinite(mean) and not least - room <= mean <= most + room:
            raise DataError(
                f"held_out: the criterion gives {mean:.6g} for {len(each)} samples, and {least:.6g} to {most:.6g} for "
                "each by itself; it must be a mean of what samples have by themselves. One that compares samples with "
                "each other (contrastive, ranking) takes a batch for one: LocalTask(..., count=lambda batch: 1)"
            )


class LoaderSamples:
    """The batches of a loader as they come: pairs on the model's device, each with its number of samples.

    Batches without a sample are left out; `least` batches there must be. With `warn` the first pass says where that
    number is hardly right.
    """

    counted = False
    nbytes = 0

    def __init__(
        self, local: LocalTask, device: torch.device, begin: Callable[[], None], *, warn: bool, least: int = 1
    ) -> None:
        self._local, self._device, self._begin, self._warn, self._least = local, device, begin, warn, least
        self._read = 0

    def __len__(self) -> int:
        """Samples of the last whole pass."""
        return self._read

    def chunks(self, size: int) -> Iterator[tuple[Batch, int]]:
        """All batches; `size` is the loader's own."""
        del size
        found = read = 0
        seen = _Axes(getattr(self._local.batches, "batch_size", None)) if self._warn else None
        self._begin()
        for batch in self._local.batches:
            inputs, targets = (_on(part, self._device) for part in self._local.pair(batch))
            count = self._count(batch, targets)
            if seen is not None:
                seen.add(inputs, targets)
            found, read = found + 1, read + count
            del batch
            if count:
                yield (inputs, targets), count
            del inputs, targets
        if found < self._least:
            raise DataError(
                "there is no batch: the data set is empty, or drop_last drops all of it, or the batches can be gone "
                "through once only; a client needs one batch at least, in a loader or a list"
            )
        self._read, self._warn = read, False
        if seen is not None and self._local.count is None:
            seen.warn()

    def first(self, count: int) -> tuple[Batch, int]:
        """The first batch with a sample, whatever `count`."""
        for found in self.chunks(count):
            return found
        raise DataError("no batch has a sample that counts: all are empty, or all their targets are ignored")

    def _refuse(self, rows: object) -> NoReturn:
        raise ConfigError("samples of a loader cannot be picked; take its batches as they come")

    batches = select = _refuse

    def _count(self, batch: Any, targets: Any) -> int:
        if self._local.count is None:
            if not isinstance(targets, Tensor | np.ndarray | list) or not np.ndim(targets):
                raise DataError(
                    f"the targets of a batch are {type(targets).__name__}; need a tensor, an array or a list with an "
                    "entry for each sample, or LocalTask(..., count=) to say how many samples a batch has"
                )
            return len(targets)
        found = self._local.count(batch)
        if isinstance(found, bool) or int(found) != found or found < 0:
            raise DataError(f"count gave {found!r} for a batch; it must give the number of its samples, 0 or more")
        return int(found)


class _Axes:
    """Looks in the shapes of batches for signs that the first axis of the targets is not the sample."""

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size
        self._firsts: set[int] = set()
        self._seconds: set[int] = set()
        self._unlike = ""

    def add(self, inputs: Any, targets: Any) -> None:
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor) or not inputs.ndim:
            return
        if len(inputs) != len(targets) and not self._unlike:
            self._unlike = f"inputs {list(inputs.shape)} and targets {list(targets.shape)} of a batch differ there"
        if inputs.ndim > 1 and targets.ndim > 1 and len(targets):
            self._firsts.add(len(targets))
            self._seconds.add(inputs.shape[1])

    def warn(self) -> None:
        """Where there is such a sign."""
        if not self._unlike and len(self._firsts) == 1 and len(self._seconds) > 1:
            first = next(iter(self._firsts))
            if first != self._batch_size:
                self._unlike = f"it is {first} in every batch, while the second goes from {min(self._seconds)} to "
                self._unlike += f"{max(self._seconds)}"
        if self._unlike:
            _say(self._unlike)


@lru_cache(maxsize=64)
def _say(sign: str) -> None:
    """Warn once in a process, whose clients may be many."""
    log(
        WARNING,
        "guard: batches count by the first axis of their targets, which may not be the sample: %s; say how many "
        "samples a batch has, such as LocalTask(..., count=lambda batch: batch[1].shape[1])",
        sign,
    )


def _on(part: Any, device: torch.device) -> Any:
    return part.to(device) if isinstance(part, Tensor) else part


def _outputs_of(outputs: Any) -> Iterator[Tensor]:
    """Tensors of floating point among a model's outputs."""
    held = outputs if isinstance(outputs, Tensor | Mapping | list | tuple) else getattr(outputs, "__dict__", {})
    return (part for part in tensors(held) if part.is_floating_point() or part.is_complex())


def _elsewhere(output: Tensor) -> Tensor:
    """An output of the same kind with other numbers."""
    return torch.full_like(output, ANYWHERE) if output.is_floating_point() or output.is_complex() else output


def _check_rows(count: int, parts: Mapping[str, Any]) -> None:
    """`DataError` unless all parts of a batch have a row for each of so many samples."""
    held = {name: list(_outputs_of(part) if name == "outputs" else tensors(part)) for name, part in parts.items()}
    shapes = {name: [list(part.shape) for part in each] for name, each in held.items()}
    alike = all(shape[:1] == [count] for each in shapes.values() for shape in each)
    if not alike or not all(shapes.values()) or not all_tensors([parts["inputs"], parts["targets"]]):
        found = ", ".join(f"{name} {', '.join(map(str, each)) or 'no tensor'}" for name, each in shapes.items())
        raise DataError(
            f"held_out: a batch of {count} samples has {found}, and cannot be taken apart; all must be tensors whose "
            "first axis is the sample, or each batch one sample: DataLoader(..., batch_size=1)"
        )


def _changed(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Outputs of the same kind with every tensor changed."""
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_changed(part, change) for part in outputs))
    if isinstance(outputs, list | tuple):
        return type(outputs)(_changed(part, change) for part in outputs)
    found = copy.copy(outputs)
    if isinstance(outputs, Mapping):  # among them those of transformers, whose entries are attributes as well
        for key, value in outputs.items():
            found[key] = _changed(value, change)
    else:
        for key, value in getattr(outputs, "__dict__", {}).items():
            setattr(found, key, _changed(value, change))
    return found
