"""Whether a loss is a function of the model on the path that training takes: at a second model, and in both modes.

The guarantee compares losses of one client at several models, and steps along gradients. Both mean nothing where a
layer goes on with what it computed from earlier parameters, where the gradient is that of another function, or where
training mode gives something that is no loss. So before round 1 a few samples go through a user's own model at a second
model, near the first. What is found is refused, with the layer at fault and a remedy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dqnfed_flwr.client.flat_model import FlatModel, check_depends, independent
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.loss_checks import (
    TRIED,
    asked,
    check_losses,
    differ,
    first_difference,
    layer_of,
    loss_of,
    since,
    summed_copy,
)
from dqnfed_flwr.data.user import told
from dqnfed_flwr.errors import DataError, DQNFedError, ModelError
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.batches import Batch, mapped, same, tensors
from dqnfed_flwr.tasks.classification import CrossEntropy

NEAR = 1e-2
"""How far from the first model the second lies, as a share of each parameter's root mean square."""
STEPS, WIDE_STEPS = (1e-5, 1e-7), (1e-3, 1e-2)
"""Of the central difference in float64, and in a narrower type, where one may be lost in rounding."""
SLOPE, WIDE_SLOPE = 1e-3, 1e-2
"""By how much the difference may differ from the slope of the gradient, as a share of the slope's size."""
LEAST = 0.1
"""Root mean square that a parameter is taken to have at least: some begin at 0."""
ROUNDINGS = 4
"""Units of rounding in a loss."""
MOST_COPIED = 1 << 26
"""Values of a model up to which it is copied in float64."""


def check_path(loss: LocalLoss, build: Callable[[torch.dtype], nn.Module], *, passes: bool) -> None:
    """Check the loss of a user's own model at a second model, near the first.

    `build` makes the module anew, in a dtype, on the CPU. `passes` says whether clients train it by local SGD, in
    training mode. Model and buffers are as before afterwards. `ModelError` if the loss does not depend on the
    parameters, a module built anew has another one with the same parameters and buffers, the gradient is not its
    derivative, or training mode gives something that is no loss; `DataError` as of `check_losses`.
    """
    model, start = loss.model, loss.model.theta
    few, count = loss.samples.first(TRIED)
    try:
        with model.full_precision():
            if isinstance(loss.task, CrossEntropy):  # others were checked when the loss was made
                check_losses(model, loss.samples, loss.task)
            there = _away(model, NEAR, seed=1)
            model.place(there)
            check_depends(model, summed_copy(model, few, count, loss.task).loss)
            model.check_trained()
            found = _check_rebuilt(model, build(there.dtype), few, count, loss.task)
            try:
                _check_slope(model, build, few, count, loss.task)
            except RuntimeError as cause:  # of torch, where a loss cannot be differentiated
                raise ModelError(
                    f"model: the gradient of {type(model.module).__name__} raised {told(cause)}; gradients are asked "
                    "for by torch.autograd.grad: checkpoint with use_reentrant=False, and leave requires_grad alone"
                ) from cause
            if passes:
                check_training(loss)
                again = loss_of(model, few, count, loss.task)[1]
                if again != found:  # by kernels and values that are the same
                    raise ModelError(
                        f"model: {type(model.module).__name__} has a loss of {found:.9g}, and of {again:.9g} after a "
                        "training pass with the same parameters and buffers: it keeps something else. Keep what "
                        "training changes in buffers (register_buffer)"
                    )
    finally:
        model.place(start)


class Kept:
    """What a pass in evaluation mode leaves as it is: parameters and buffers; see `check`."""

    def __init__(self, model: FlatModel) -> None:
        self._model, self._theta = model, model.theta.clone()
        self._buffers = model.spec.read_buffers(model.module)

    def check(self) -> None:
        """`ModelError` that names the first parameter or buffer that has other values now."""
        model, start = self._model, 0
        changed = ""
        for name, size in zip(model.spec.names, model.spec.sizes, strict=True):
            part, start = slice(start, start + size), start + size
            if not changed and not torch.equal(model.theta[part].nan_to_num(), self._theta[part].nan_to_num()):
                changed = name
        for name, buffer in model.spec.read_buffers(model.module).items():
            if not changed and not same(buffer, self._buffers[name]):
                changed = name
        if changed:
            raise ModelError(
                f"model: {type(model.module).__name__} changes {changed} as it is evaluated; initialise it before the "
                "model is returned, and bound weights (max_norm, clamp) by a parametrisation or in the loss"
            )


def check_training(loss: LocalLoss, size: int = TRIED) -> None:
    """Have a batch of at most `size` samples go through the model in training mode; its buffers stay.

    `DataError` if a single sample, all that the client has or a batch holds, cannot be trained on; `ModelError` if
    training mode gives something that is no loss.
    """
    model, task = loss.model, loss.task
    batch, count = loss.samples.first(size)
    kept, kinds = model.spec.read_buffers(model.module), list[str]()
    try:
        with _kinds_of(model.module, kinds), seeded(0, model.theta.device):
            task.summed(model.module, mapped(batch, Tensor.clone), count)
            with model.training():
                trained = task.summed(model.module, mapped(batch, Tensor.clone), count).loss
    except Exception as cause:  # whatever model and task of the user's own do
        raise _why_not_trained(cause, model.module, kinds, count) from cause
    finally:
        model.spec.write_buffers(kept, model.module)
    check_depends(model, trained, "in training mode")


def _why_not_trained(cause: Exception, module: nn.Module, kinds: Sequence[str], count: int) -> DQNFedError:
    if len(set(kinds)) > 1:
        return ModelError(
            f"model: {type(module).__name__} gives {kinds[0]} in evaluation mode and {kinds[-1]} in training mode, in "
            "which local passes train it; have it give the same in both (torchvision: aux_logits=False), or write a "
            "task whose losses() takes both"
        )
    if count == 1:
        return DataError(
            f"task: one training sample in a batch, on which {type(layer_of(cause) or module).__name__} cannot train "
            f"({told(cause)}); give the client two samples or more, leave local.batch-size above 1, or use GroupNorm"
        )
    return ModelError(f"model: {type(module).__name__} in training mode raised {told(cause)}")


def _check_rebuilt(model: FlatModel, module: nn.Module, few: Batch, count: int, task: Task) -> float:
    """The loss at the model placed, which a module built anew has, too, with the same parameters and buffers."""
    spec, device = model.spec, model.theta.device
    spec.unflatten(model.theta.to("cpu"), module)  # before its mode changes: layers may merge weights then
    spec.write_buffers({name: value.to("cpu") for name, value in spec.read_buffers(model.module).items()}, module)
    other = FlatModel(module, device)
    if model.copies_inputs:
        other.copy_inputs()
    found, anew = (loss_of(each, few, count, task)[1] for each in (model, other))
    if differ(found, anew):
        first, then = (asked(each, few, count, task) for each in (model, other))
        at = first_difference(model.module, first, then, other.module)
        raise ModelError(
            f"model: with other parameters the loss is {found:.9g}, and {anew:.9g} in a model built anew with them"
            f"{since(at)}: a layer goes on with what it computed from earlier ones. Compute from the parameters in "
            "every pass: no cached or merged weights while it is evaluated"
        )
    return found


def _check_slope(
    model: FlatModel, build: Callable[[torch.dtype], nn.Module], few: Batch, count: int, task: Task
) -> None:
    """The gradient against a central difference: in float64, or as the model computes where it takes no float64."""
    try:
        slopes = _slopes_in_float64(model, build, few, count, task)
    except Exception:  # layers that are written for float32 alone
        slopes = None
    if slopes is None:
        slopes = _agreeing([_slopes(model, few, count, task, step) for step in WIDE_STEPS])
    if slopes.flat:
        if loss_of(model, few, count, task)[2]:  # samples without a weight say nothing
            raise ModelError(independent(model.module, "in evaluation mode"))
    elif not math.isfinite(slopes.slope):
        raise ModelError(
            f"model: the loss of {type(model.module).__name__} is finite and its gradient is not; look for a division "
            "by 0, a square root or logarithm at 0, or a norm of zeros in the forward pass"
        )
    elif not slopes.agree:
        raise ModelError(
            f"model: along one direction the loss changes at a rate of {slopes.difference:.4g}, by its gradient at "
            f"{slopes.slope:.4g}, most for {slopes.worst}: the gradient is not its derivative. Look for detach(), "
            "no_grad(), rounding or a backward() of your own in the forward pass, or an adapter applied twice"
        )


@dataclass(frozen=True, slots=True)
class _Slopes:
    """How fast a loss changes along one direction v."""

    slope: float  # g . v
    difference: float  # central difference of the loss
    size: float  # that g . v has typically, as the signs of v are drawn
    rounding: float  # of the difference
    share: float  # of the size by which the two may differ
    worst: str = ""  # the parameter at which they differ most, where they do not agree

    @property
    def flat(self) -> bool:
        """Whether the loss is the same in every direction, up to the rounding of float64."""
        most = self.rounding if self.share == SLOPE else 0.0
        return max(self.size, abs(self.difference)) <= most

    @property
    def agree(self) -> bool:
        most = self.share * max(self.size, abs(self.difference)) + self.rounding
        return abs(self.slope - self.difference) <= most


def _slopes_in_float64(
    model: FlatModel, build: Callable[[torch.dtype], nn.Module], few: Batch, count: int, task: Task
) -> _Slopes | None:
    """At the model placed, in a module built anew; None where a copy would be large, or computes in narrower floats."""
    if sum(tensor.numel() for tensor in (*model.module.parameters(), *model.module.buffers())) > MOST_COPIED:
        return None
    module = build(torch.float64)
    device = torch.device("cpu") if model.theta.device.type == "mps" else model.theta.device
    model.spec.unflatten(model.theta.to("cpu", torch.float64), module)
    model.spec.write_buffers({k: v.to("cpu") for k, v in model.spec.read_buffers(model.module).items()}, module)
    batch = mapped(few, lambda t: t.to(device, torch.float64) if t.is_floating_point() else t.to(device))
    exact = FlatModel(module, device)
    with torch.no_grad(), _Narrowest() as floats:
        summed_copy(exact, batch, count, task)
    if floats.eps > torch.finfo(torch.float64).eps:
        return None
    return _agreeing([_slopes(exact, batch, count, task, step) for step in STEPS])


def _agreeing(each: Sequence[_Slopes]) -> _Slopes:
    """The first step at which both agree, else the first: a long one meets curvature, a short one rounding."""
    return next((found for found in each if found.agree), each[0])


class _Narrowest(TorchFunctionMode):
    """Notes the coarsest floats that are computed within, by the unit of rounding: models cast on purpose, too."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        floats = (part for part in tensors(answer) if part.is_floating_point())
        self.eps = max([self.eps, *(torch.finfo(part.dtype).eps for part in floats)])
        return answer


def _slopes(model: FlatModel, batch: Batch, count: int, task: Task, step: float) -> _Slopes:
    start = model.theta
    with _Narrowest() as floats:
        loss = summed_copy(model, batch, count, task).loss
    gradient, direction = model.flat(model.gradients(loss)).double(), (_away(model, step, seed=2) - start) / step

    def difference(way: Tensor) -> float:
        """Of the loss, a step ahead and one behind."""
        ends = []
        for sign in (1.0, -1.0):
            model.place(start + sign * step * way)
            ends.append(loss_of(model, batch, count, task)[1])
        model.place(start)
        return (ends[0] - ends[1]) / (2 * step)

    each = gradient * direction.double()
    found = _Slopes(
        slope=float(each.sum()),
        difference=difference(direction),
        size=float(torch.linalg.vector_norm(each)),
        rounding=ROUNDINGS * max(floats.eps, torch.finfo(start.dtype).eps) * abs(loss.item()) / step,
        share=SLOPE if start.dtype == torch.float64 else WIDE_SLOPE,
    )
    return found if found.agree else replace(found, worst=_worst(model.spec, each, direction, difference))


def _worst(spec: ParamSpec, each: Tensor, direction: Tensor, difference: Callable[[Tensor], float]) -> str:
    """The parameter along which alone slope and difference lie furthest apart; `each` is g v, entry by entry [D]."""
    gaps, start = [], 0
    for size in spec.sizes:
        part, start = slice(start, start + size), start + size
        way = torch.zeros_like(direction)
        way[part] = direction[part]
        gaps.append(abs(float(each[part].sum()) - difference(way)))
    return spec.names[int(np.argmax(gaps))]


def _away(model: FlatModel, share: float, *, seed: int) -> Tensor:
    """The model placed, each value moved by `share` of its parameter's root mean square, at least of `LEAST` [D].

    Signs are drawn from the seed.
    """
    generator, moved = torch.Generator().manual_seed(seed), []
    for part in torch.split(model.theta, list(model.spec.sizes)):
        signs = torch.randint(0, 2, part.shape, generator=generator).to(part.device) * 2 - 1
        typical = torch.linalg.vector_norm(part) / max(part.numel(), 1) ** 0.5
        moved.append(part + share * typical.clamp_min(LEAST) * signs)
    return torch.cat(moved)


@contextmanager
def _kinds_of(module: nn.Module, kinds: list[str]) -> Iterator[None]:
    """Note what a module gives, call by call: a kind for each."""
    hook = module.register_forward_hook(lambda _, given, answer: kinds.append(_kind(answer)))
    try:
        yield
    finally:
        hook.remove()


def _kind(answer: object) -> str:
    shape = f" of shape {list(answer.shape[1:])} a sample" if isinstance(answer, Tensor) else ""
    return f"{type(answer).__name__}{shape}"
