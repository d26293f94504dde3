"""The user's model and generators of random numbers, borrowed: handed back exactly as they came, whatever is raised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from dqnfed_flwr.randomness import seeded

SEED = 0
"""Of the stream that batches are drawn from, the same at every model, so that losses can be compared."""


class Modes:
    """The modes that the layers of a model are in, and the dropout of recurrent ones."""

    def __init__(self, model: nn.Module) -> None:
        self._modes = {layer: layer.training for layer in model.modules()}
        self._dropout = {layer: layer.dropout for layer in self._modes if isinstance(layer, nn.RNNBase)}

    def restore(self) -> None:
        """Take the model back to them, by way of `train`: layers that merge their weights in a mode undo it there."""
        for layer, mode in self._modes.items():  # a layer before those in it
            if layer.training != mode:
                layer.train(mode)
        for layer, mode in self._modes.items():
            layer.training = mode
        for recurrent, probability in self._dropout.items():
            recurrent.dropout = probability


@contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers, their storages and values, modes, hooks and extra state are afterwards as before."""
    with ExitStack() as stack:  # each is given back, whatever is raised in giving back another
        stack.callback(_unhook, model, set(model._forward_pre_hooks))
        stack.callback(_Values(model).restore)
        for layer in model.modules():
            if _keeps_more(layer):
                stack.callback(layer.set_extra_state, deepcopy(layer.get_extra_state()))
        stack.callback(Modes(model).restore)  # the last is the first to be called
        yield


def _unhook(model: nn.Module, kept: set[int]) -> None:
    """Take off what was hooked to the model's forward passes meanwhile."""
    for key in set(model._forward_pre_hooks).difference(kept):
        model._forward_pre_hooks.pop(key)
        model._forward_pre_hooks_with_kwargs.pop(key, None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the generators of torch, NumPy and Python as they were, whatever is drawn within."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    try:
        with seeded(SEED, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def begin_streams() -> None:
    """Have the generators of torch, NumPy and Python draw as in every other pass."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002


class _Values:
    """What a model's layers hold: which tensors, in which storages, with which values."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [(layer, dict(layer._parameters), dict(layer._buffers)) for layer in model.modules()]
        tensors: dict[int, Tensor] = {}
        for _, parameters, buffers in self._layers:
            held = [*parameters.values(), *buffers.values()]
            tensors |= {id(tensor): tensor for tensor in held if tensor is not None}
        self._tensors = [(t, t.data, t.detach().clone(), t.requires_grad) for t in tensors.values()]

    def restore(self) -> None:
        """Put them back."""
        with torch.no_grad():
            for tensor, storage, values, trained in self._tensors:
                tensor.data = storage
                if not torch.equal(storage, values):
                    storage.copy_(values)
                if tensor.is_leaf:
                    tensor.requires_grad_(trained)
        for layer, parameters, buffers in self._layers:
            for held, kept in ((layer._parameters, parameters), (layer._buffers, buffers)):
                held.clear()
                held.update(kept)  # type: ignore[arg-type]


def _keeps_more(layer: nn.Module) -> bool:
    """Whether a layer saves more than tensors, and can take it back."""
    kind = type(layer)
    return (
        kind.get_extra_state is not nn.Module.get_extra_state and kind.set_extra_state is not nn.Module.set_extra_state
    )
