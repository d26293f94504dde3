"""Whether a client's losses are a function of the model and of each sample alone: a few are asked for again.

A loss that is another one when it is asked for twice, or with other samples beside it, cannot be compared with itself.
A forward pass that changes its inputs changes the samples that are held. What is found is refused, with the layer at
fault and a remedy, or put right where the right thing is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.samples import Samples
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import DataError, DQNFedError, ModelError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Summed, Task
from dqnfed_flwr.tasks.batches import Batch, mapped, same, tensors

TRIED = 8
"""Samples on which a loss is asked for."""
NAMED = 4
"""Samples that a line names."""
AGREEMENT = 1e-4
"""Relative difference that rounding may make to two sums of losses, or to what layers answer."""
Run = Callable[[], object]
"""Sends a batch through a model."""


def check_losses(model: FlatModel, samples: Samples, task: Task) -> bool:
    """Ask for the losses of a few samples, together and by themselves; whether parts of them are weighted.

    A model that changes its inputs in place is given copies of them from now on. `DataError` if model or task raise
    anything, losses are not finite or depend on the other samples of the batch, or `losses` changes its batch;
    `ModelError` if they give something else with other random numbers.
    """
    few, count = samples.first(TRIED)
    if not same(few, samples.first(TRIED)[0]):
        raise DataError(
            "task: the first batch is another one each time it is read, so that losses cannot be compared; a data set, "
            "sampler or transform draws from a generator that cannot be set back, or changes what it stores: seed it "
            "by the sample's number, and work on copies"
        )
    weighted, total, weight = loss_of(model, few, count, task)
    if not math.isfinite(total):
        faults = not_finite(model, few, task) if samples.counted else {}
        raise DataError(loss_words(faults or {0: total}, count, "sample" if samples.counted else "batch"))
    seeds = (0, 1 if samples.counted else 0)  # batches of a loader come with the same random numbers in every pass
    if any(loss_of(model, few, count, task, seed)[1] != total for seed in seeds):
        one, other = (asked(model, few, count, task, seed) for seed in seeds)
        at = first_difference(model.module, one, other)
        raise ModelError(
            f"task: the same samples have another loss each time, or with other random numbers{since(at)}; a loss is a "
            "function of the model and the sample: draw no random numbers in losses() or in evaluation mode, and keep "
            "no state between calls"
        )
    if samples.counted:
        _check_apart(model, samples, task, (weighted, total, weight))
    return weighted


def _check_apart(model: FlatModel, samples: Samples, task: Task, together: tuple[bool, float, float]) -> None:
    """Whether a few samples have the same losses one by one as in one batch."""
    (few, count), (weighted, total, weight) = samples.first(TRIED), together
    rows = torch.split(torch.arange(count), 1)
    alone = [loss_of(model, batch, 1, task) for batch, _ in samples.batches(rows)]
    apart, weight_apart = sum(loss for _, loss, _ in alone), sum(part for *_, part in alone)
    if differ(apart, total) or (weighted and differ(weight_apart, weight)):
        first = next(batch for batch, _ in samples.batches(rows[:1]))
        at = first_difference(model.module, asked(model, few, count, task), asked(model, first, 1, task))
        raise DataError(
            f"task: {count} samples have a loss of {total:.9g} in one batch and of {apart:.9g} one by one{since(at)}; "
            "a sample's loss must depend on that sample and the model alone: no statistics of the batch (GroupNorm in "
            "place of BatchNorm without running statistics)"
        )


def not_finite(model: FlatModel, batch: Batch, task: Task, start: int = 0) -> dict[int, float]:
    """Losses of a batch that are not finite, by the number of their sample, counted from `start`."""
    with torch.no_grad():
        losses = task.loss_of_each(model.module, mapped(batch, Tensor.clone)).tolist()
    return {start + row: loss for row, loss in enumerate(losses) if not math.isfinite(loss)}


def loss_words(faults: Mapping[int, float], count: int, kind: str = "sample") -> str:
    """The words for losses that are not finite, by the number of their sample, among so many of this `kind`."""
    some = ", ".join(f"{kind} {row} ({loss:g})" for row, loss in list(faults.items())[:NAMED])
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return (
        f"task: the loss is not finite at {some}{more}, of {count}; clean their inputs and targets, or take a "
        "loss that is finite for every sample (torch's CTCLoss: zero_infinity=True)"
    )


def summed_copy(model: FlatModel, batch: Batch, count: int, task: Task, seed: int = 0) -> Summed:
    """The losses of a copy of a batch, added up; a model that changes its inputs is given copies from now on."""
    given = mapped(batch, Tensor.clone)
    parts = list(tensors(given))  # entries may be taken out, which changes no sample
    versions = [part._version for part in parts]
    try:
        with seeded(seed, model.theta.device):
            summed = task.summed(model.module, given, count)
    except DQNFedError:
        raise
    except Exception as cause:  # whatever model and task of the user's own do
        raise DataError(f"task: losses() {not_taken(cause, batch)}") from cause
    if versions == [part._version for part in parts] and same(parts, list(tensors(batch))):
        return summed
    if model.copies_inputs:
        raise DataError(
            "task: losses() changes its batch in place, so that the next pass would find other samples; work on a "
            "copy, such as y = (y - mean) / scale in place of y -= mean"
        )
    model.copy_inputs()
    return summed_copy(model, batch, count, task, seed)


def loss_of(model: FlatModel, batch: Batch, count: int, task: Task, seed: int = 0) -> tuple[bool, float, float]:
    """Whether a batch is weighted, its loss and its weight."""
    with torch.no_grad():
        summed = summed_copy(model, batch, count, task, seed)
    weight = float(count) if summed.weight is None else summed.weight.item()
    return summed.weight is not None, summed.loss.item(), weight


def asked(model: FlatModel, batch: Batch, count: int, task: Task, seed: int = 0) -> Run:
    """What asks for the losses of a batch, to be called."""
    return lambda: loss_of(model, batch, count, task, seed)


def since(layer: str) -> str:
    """The words that name the layer at fault, if one is known."""
    return f", from layer {layer} on" if layer else ""


@dataclass(frozen=True, slots=True)
class _Call:
    """What went into a layer and what came out."""

    name: str
    given: list[Tensor]
    answer: list[Tensor]


def differ(one: float, other: float) -> bool:
    """Whether two sums of losses differ by more than rounding."""
    return not abs(one - other) <= AGREEMENT * max(abs(one), abs(other), 1e-6)


def first_difference(module: nn.Module, one: Run, other: Run, second: nn.Module | None = None) -> str:
    """The first layer, by kind and name, that is given the same in two runs and answers otherwise; empty if none.

    Where one run has fewer samples than the other, the first of them are compared. `second` is the module of the other
    run; None for the same.
    """
    for first, then in zip(_calls(module, one), _calls(second or module, other), strict=False):
        if _close(first.given, then.given) and not _close(first.answer, then.answer):
            return first.name
    return ""


def _calls(module: nn.Module, run: Run) -> list[_Call]:
    """Each call of a layer in a run, in the order in which they ended."""
    found: list[_Call] = []

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(layer: nn.Module, given: Any, answer: Any) -> None:
            called = f"{type(layer).__name__} {name!r}" if name else type(layer).__name__
            found.append(_Call(called, _copies(given), _copies(answer)))

        return hook

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            stack.callback(layer.register_forward_hook(note(name)).remove)
        run()
    return found


def _copies(of: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors(of)]


def _close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors agree, as far as both have samples."""
    for one, other in zip(some, others, strict=False):
        if one.ndim and other.ndim:
            least = min(len(one), len(other))
            one, other = one[:least], other[:least]
        if one.shape != other.shape or not torch.allclose(one.double(), other.double(), rtol=AGREEMENT, atol=1e-7):
            return False
    return len(some) == len(others)


def layer_of(cause: Exception) -> nn.Module | None:
    """The layer in which something was raised, the innermost; None if in none."""
    found, trace = None, cause.__traceback__
    while trace is not None:
        layer = trace.tb_frame.f_locals.get("self")
        found = layer if isinstance(layer, nn.Module) else found
        trace = trace.tb_next
    return found


def not_taken(cause: Exception, batch: Batch) -> str:
    """The words for samples that a model does not take: what was raised, in which layer, and what form they have."""
    layer = layer_of(cause)
    parameter = None if layer is None else next(layer.parameters(recurse=False), None)
    of = "" if parameter is None else f" of {_dtype(parameter)}"
    place = "" if layer is None else f" in {type(layer).__name__}({' '.join(layer.extra_repr().split())}){of}"
    forms = ", ".join(f"{list(part.shape[1:])} {_dtype(part)}" for part in tensors(batch))
    return f"raised {told(cause)}{place}, for samples of {forms or type(batch).__name__}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
