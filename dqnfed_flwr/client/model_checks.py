"""Whether a model, which may be the user's own, computes what a client needs of it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.samples import HeldSamples, Samples
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import DataError, DQNFedError, ModelError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Batch, Task
from dqnfed_flwr.tasks.arrays import ArrayTask

_TRIED = 8
"""Samples on which a model is asked twice."""
_AGREEMENT = 1e-4
"""Relative difference between the loss of samples in one batch and one by one that rounding may make."""


def check_fit(model: FlatModel, samples: Samples, task: ArrayTask, outputs: int) -> None:
    """Pass one sample through the model, the least and the greatest token, and where it may draw a few samples, twice.

    There is at least one sample; `outputs` is the number of outputs it must give, 0 for any. `ModelError` if the model
    raises anything, gives something else, or gives something else the second time.
    """
    inputs, targets = _looked_at(samples)
    found = _answer(model, inputs[:1], 0)
    wanted = task.output_shape(targets[0], outputs)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(found, Tensor) or found.ndim != 1 + len(wanted) or (outputs and found.shape[1:] != wanted):
        sides = ", ".join(str(side) if side else "outputs" for side in (1, *wanted))
        raise ModelError(
            f"model: {_described(model, inputs)} gave {shape}; need {task.meant}, [{sides}]: build the last layer for "
            "num_classes outputs"
        )
    check_tokens(model, inputs)
    if model.draws and not _repeats(model, inputs[:_TRIED]):
        raise ModelError(
            f"model: {type(model.module).__name__} gives the same samples other logits each time, though it was set to "
            "evaluate: its loss is no function of the model. Use nn.Dropout, or dropout(x, training=self.training)"
        )


def check_losses(model: FlatModel, samples: Samples, task: Task) -> bool:
    """Ask the task for the losses of a few samples, together and by themselves; whether it weights parts of them.

    Raises
    ------
    DataError
        If they are not finite, negative, or depend on the other samples of the batch.
    ModelError
        If model or task raise anything, or give something else with other random numbers.
    """
    few, count = samples.first(_TRIED)
    weighted, total, weight = _loss_of(model, few, count, task)
    if not math.isfinite(total):
        raise DataError(f"task: the loss of the first {count} samples is {total:g}; a loss is a finite number")
    if any(_loss_of(model, few, count, task, seed)[1] != total for seed in (0, 1)):
        raise ModelError(
            "task: the same samples have another loss each time, or with other random numbers; a loss is a function "
            "of the model and the sample: draw no random numbers in losses()"
        )
    alone = [_loss_of(model, batch, 1, task) for batch, _ in samples.batches(torch.split(torch.arange(count), 1))]
    if least := [(place, loss) for place, (_, loss, _) in enumerate(alone) if loss < 0]:
        place, loss = least[0]
        raise DataError(
            f"task: the loss of sample {place} is {loss:g}; a loss is never negative: add a constant, or use another"
        )
    apart, weight_apart = sum(loss for _, loss, _ in alone), sum(part for *_, part in alone)
    if _differ(apart, total) or (weighted and _differ(weight_apart, weight)):
        raise DataError(
            f"task: {count} samples have a loss of {total:.9g} in one batch and of {apart:.9g} one by one; a sample's "
            "loss must depend on that sample and the model alone"
        )
    return weighted


def check_figures(model: FlatModel, samples: Samples, task: Task) -> None:
    """Have the task count its figures on a few of these samples, or on all where so few do not suffice.

    Raises
    ------
    ConfigError, DataError
        If metrics or predictions raise, or give no number.
    """
    few = samples.select(torch.arange(min(_TRIED, len(samples))))
    with torch.no_grad():
        try:
            task.evaluate(model.module, few.chunks(_TRIED), len(few))
        except DataError:  # such as a curve, which needs both classes
            task.evaluate(model.module, samples.chunks(_TRIED), len(samples))


def _differ(one: float, other: float) -> bool:
    """Whether two sums differ by more than rounding."""
    return abs(one - other) > _AGREEMENT * max(abs(one), abs(other), 1e-6)


def _loss_of(model: FlatModel, batch: Batch, count: int, task: Task, seed: int = 0) -> tuple[bool, float, float]:
    """Whether a batch is weighted, its loss and its weight."""
    try:
        with seeded(seed, model.theta.device), torch.no_grad():
            summed = task.summed(model.module, batch, count)
    except DQNFedError:
        raise
    except Exception as cause:  # whatever model and task of the user's own do
        raise ModelError(f"task: losses() raised {told(cause)}") from cause
    weight = float(count) if summed.weight is None else summed.weight.item()
    return summed.weight is not None, summed.loss.item(), weight


def _looked_at(samples: Samples) -> Batch:
    """All samples where they are held, else a few."""
    return samples.first(len(samples) if isinstance(samples, HeldSamples) else _TRIED)[0]


def check_held_out_tokens(model: FlatModel, samples: Samples) -> None:
    """`check_tokens` of samples that are not trained on; of those that are not held, a few."""
    if len(samples):
        check_tokens(model, _looked_at(samples)[0])


def check_tokens(model: FlatModel, inputs: Tensor) -> None:
    """Pass the samples with the least and the greatest token [n, ...] through the model; features are left alone.

    `ModelError` if it raises anything: layers of embeddings may have no row for them.
    """
    if len(inputs) and not inputs.is_floating_point():
        _answer(model, _extreme(inputs), 0)


def _answer(model: FlatModel, inputs: Tensor, seed: int) -> object:
    try:
        with seeded(seed) if model.draws else nullcontext(), torch.no_grad():
            answer: object = model.module(inputs.clone())
    except Exception as cause:  # whatever layers of the user's own do
        whole = "" if inputs.is_floating_point() else f"; whole numbers count as tokens, here {_range(inputs)}"
        words = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise ModelError(f"model: {_described(model, inputs)} raised {words}{whole}") from cause
    return answer


def _repeats(model: FlatModel, inputs: Tensor) -> bool:
    """Whether other random numbers leave the logits as they are."""
    one, other = (torch.as_tensor(_answer(model, inputs, seed)) for seed in (0, 1))
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _extreme(tokens: Tensor) -> Tensor:
    """The samples that hold the least and the greatest token."""
    flat = tokens.reshape(len(tokens), -1)
    return tokens[torch.stack([flat.amin(1).argmin(), flat.amax(1).argmax()])]


def _range(tokens: Tensor) -> str:
    return f"{int(tokens.min())} to {int(tokens.max())}: store samples as float, or build the model for so many tokens"


def _described(model: FlatModel, inputs: Tensor) -> str:
    sample = f"shape {list(inputs.shape[1:])}, {str(inputs.dtype).removeprefix('torch.')}"
    return f"{type(model.module).__name__} on a sample of {sample}"
