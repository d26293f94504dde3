"""A client's mean training loss and its gradient at models received, from what a `LocalTask` says."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.loss_checks import check_losses, loss_words
from dqnfed_flwr.client.path_checks import Kept, check_path
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.guarded.borrowed import SEED, Generators, Modes, begin_streams, borrowed
from dqnfed_flwr.guarded.local_task import EachTask, LoaderSamples, LocalTask, MeanTask
from dqnfed_flwr.guarded.records import Arrays, matched, matched_by_loading
from dqnfed_flwr.models.making import as_dtype, own_copy
from dqnfed_flwr.types import Float64Array, FloatArray


class GuardedLoss:
    """f_k at any model that is placed: a function of the arrays received alone.

    Dropout is off and BatchNorm uses its running statistics. Batches are drawn from the same streams of random numbers
    at every model, so that shuffling and augmentation are the same. It is to be used within `undisturbed` and `frozen`,
    so that the user's training is as it would be without this.

    `generators` are those of the task, where they were looked for already. With `check` the loss is checked, as
    `LocalLoss` does, and batches that are hardly counted right are warned of. `ModelError` if no parameter requires a
    gradient, some have shapes that are not known yet, or complex values; `DataError` if batches can be gone through
    once only.
    """

    def __init__(self, task: LocalTask, generators: Generators | None = None, *, check: bool = True) -> None:
        self._task, self._model, self._check = task, task.model, check
        _check_model(task.model)
        for batches in (task.batches, () if task.held_out is None else task.held_out):
            if isinstance(batches, Iterator) or not _begins_anew(batches):
                raise DataError("the batches can be gone through once only; give a loader or a list")
        self._modes = Modes(task.model)
        self._generators = generators or Generators(task, SEED)
        self._keys: dict[str, str] = {}  # the model's names, by those of the arrays received
        self._local: LocalLoss | None = None
        self._held_out: LoaderSamples | None = None
        self.names: tuple[str, ...] = ()
        """Names of the arrays that travel and are trained as the server calls them, in the order of the row."""

    @property
    def samples(self) -> int:
        """Of the client, as the last pass counted them."""
        return self._placed().num_examples

    def place(self, arrays: Arrays) -> LocalLoss:
        """The loss at these arrays: some or all of the model's state by its names, or all of it in its order.

        They are put there in the modes that the model came in, since layers may merge weights as the mode is set.
        `ModelError` if they do not fit the model, or none of them is trained.
        """
        self._modes.restore()
        if not self._keys:
            self._agree(arrays)
        self._write(arrays)
        local = self._local = self._made() if self._local is None else self._local
        local.model.place(local.model.spec.flatten(local.model.module))
        local.model.freeze()
        return local

    def loss(self) -> float:
        """f_k; infinite or NaN where the model diverges."""
        local = self._placed()
        return local.loss(local.model.theta)

    def loss_and_row(self) -> tuple[float, FloatArray]:
        """f_k, and its gradient float32 [D] in the order of `names`.

        Where it is checked, `DataError` that names the batches at which the loss is not finite.
        """
        local = self._placed()
        loss, gradient = local.loss_and_gradient(local.model.theta)
        if self._check and not math.isfinite(loss):
            local.look_through()
        return loss, gradient.float().cpu().numpy()

    def held_out_losses(self) -> Float64Array:
        """The loss of each sample that is held out [n], in the same order each time; none where there are none.

        Where it is checked, `DataError` if they cannot be told apart, depend on each other, or are not finite.
        """
        task, local, first = self._task, self._placed(), self._held_out is None
        if task.held_out is None:
            return np.zeros(0)
        samples = self._held_out = self._held_out or self._samples(replace(task, batches=task.held_out), least=0)
        losses = local.sample_losses(local.model.theta, samples)
        if len(losses) != len(samples):
            raise DataError(
                f"held_out: {len(samples)} samples by `count` in {len(losses)} batches; where there is a `count`, give "
                "one sample a batch: DataLoader(..., batch_size=1)"
            )
        if self._check and first and len(losses):
            _check_held_out(local, samples, EachTask(task), losses)
        return losses

    def _placed(self) -> LocalLoss:
        if self._local is not None:
            return self._local
        return self.place({name: tensor.detach().cpu().numpy() for name, tensor in self._state().items()})

    def _made(self) -> LocalLoss:
        """The one local loss, of a model in which only what travels is trained."""
        flat = FlatModel(self._model, None)
        samples = self._samples(self._task)
        given = self._task.batches, self._task.held_out
        if any(isinstance(batches, list | tuple) for batches in given):  # a loader makes them anew for every pass
            flat.copy_inputs()
        kept = Kept(flat)
        task = MeanTask(self._task)
        local = LocalLoss(flat, samples, task=task, chunk=1, check=self._check)
        if self._check:
            kept.check()
            task.check_mean(flat.module, samples.first(1)[0])
            first = own_copy(self._model).train()  # takes weights apart again that layers merged to be evaluated
            usual = flat.theta.dtype
            check_path(
                local, lambda to: own_copy(first) if to == usual else as_dtype(own_copy(first), to), passes=False
            )
        return local

    def _samples(self, task: LocalTask, least: int = 1) -> LoaderSamples:
        device = next(p for p in self._model.parameters() if p.requires_grad).device
        return LoaderSamples(task, device, self._begin, warn=self._check, least=least)

    def _begin(self) -> None:
        begin_streams()
        self._generators.begin()

    def _state(self) -> dict[str, Tensor]:
        """The tensors of the model's state, by its names; what is none stays where it is."""
        state = self._model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _agree(self, arrays: Arrays) -> None:
        """Find which array is which, and hold still what does not travel."""
        state, load = self._state(), self._task.load
        named = {name: p for name, p in self._model.named_parameters(remove_duplicate=False) if p.requires_grad}
        if load is None:
            shapes = {name: tuple(value.shape) for name, value in state.items()}
            self._keys = matched(arrays, shapes, named.keys())
        else:
            self._keys = matched_by_loading(arrays, load, self._model, named)
        held = {**named, **state}
        keys: defaultdict[int, list[str]] = defaultdict(list)
        for key, ours in self._keys.items():
            keys[id(held[ours])].append(key)
        own = [p for p in self._model.parameters() if p.requires_grad]
        travelling = [p for p in own if id(p) in keys]
        _check_guarded(self._model, travelling, keys)
        self.names = tuple(keys[id(p)][0] for p in travelling)
        for parameter in own:
            parameter.requires_grad_(id(parameter) in keys)

    def _write(self, arrays: Arrays) -> None:
        """Put arrays into the model."""
        if self._task.load is not None:
            self._task.load(self._model, {key: torch.tensor(values) for key, values in arrays.items()})
            return
        state, loaded = self._state(), dict[str, Tensor]()
        held = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        for key, values in arrays.items():
            place, given = state[self._keys[key]], torch.tensor(values)
            if given.shape != place.shape:
                raise ModelError(f"{key!r} has shape {values.shape}; the local model's has {tuple(place.shape)}")
            if given.is_complex() and not place.is_complex():
                raise ModelError(f"{key!r} is complex; the local model's is {str(place.dtype).removeprefix('torch.')}")
            if id(place) in held:
                with torch.no_grad():
                    place.copy_(given)
            elif not torch.equal(place.detach().cpu(), given.to(place.dtype)):
                loaded[self._keys[key]] = given  # made anew for the state, such as the scale of a quantised layer
        if loaded:
            self._model.load_state_dict({**self._model.state_dict(), **loaded})


def _check_held_out(local: LocalLoss, samples: LoaderSamples, task: EachTask, losses: Float64Array) -> None:
    """Check that all held-out losses are finite, and those of the first batch, where it has several, their own."""
    few, count = samples.first(1)
    if count > 1:
        task.check_mean(local.model.module, few)
    if faults := {row: loss for row, loss in enumerate(losses) if not math.isfinite(loss)}:
        raise DataError(loss_words(faults, len(losses), "held-out sample"))
    if count > 1:
        with local.model.full_precision():
            check_losses(local.model, HeldSamples(few), task)


def _begins_anew(batches: Iterable[Any]) -> bool:
    """Whether going through batches twice gives two iterators; a loader of torch's, which may start processes, does."""
    return isinstance(batches, DataLoader | Sized) or iter(batches) is not iter(batches)


@contextmanager
def frozen(task: LocalTask) -> Iterator[Generators]:
    """Model, generators that are found and workers that loaders keep are afterwards as before; those generators."""
    _check_model(task.model)
    generators = Generators(task, SEED)
    try:
        with borrowed(task.model):
            yield generators
    finally:
        generators.restore()


def _check_model(model: nn.Module) -> None:
    """`ModelError` where a model cannot be guarded."""
    if any(map(is_lazy, [*model.parameters(), *model.buffers()])):
        raise ModelError("the model has lazy layers, whose shapes are not known; give them their sizes")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ModelError("no parameter of the model requires a gradient; the guarantee needs one at least")


def _check_guarded(model: nn.Module, travelling: list[nn.Parameter], keys: Mapping[int, list[str]]) -> None:
    """`ModelError` unless something is trained and travels, in real numbers, and is held once; `keys` are by id."""
    if not travelling:
        raise ModelError(
            "none of the arrays received is a trained parameter of the local model; the guarantee needs one"
        )
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()}
    places = Counter(tensor.data_ptr() for tensor in tensors.values())
    for parameter in travelling:
        names = keys[id(parameter)]
        if parameter.is_complex():
            raise ModelError(
                f"{names[0]!r} is trained and complex, which cannot be guarded; keep it as pairs of real numbers, and "
                "take torch.view_as_complex of them in forward"
            )
        if len(names) > 1 or places[parameter.data_ptr()] > 1:
            raise ModelError(
                f"{names} are trained and share their values, or share them with another tensor of the model; a model "
                "that shares what it trains cannot be guarded: have one name travel, or train two tensors"
            )
