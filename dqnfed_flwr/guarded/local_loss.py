"""A client's mean training loss and its gradient, from a model, batches and a criterion of the user's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.guarded.arrays import Arrays
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.types import FloatArray

SEED = 0
"""Of the stream that batches are drawn from, the same at every model, so that losses can be compared."""


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
        The module that the federation trains, on its device. Its values do not matter: they are set to the model
        received. Parameters that require gradients are what the guarantee is about.
    batches : Iterable
        All training samples of the client, such as its `DataLoader`. They are gone through more than once.
    criterion : Callable[[outputs, targets], Tensor]
        Mean loss of a batch, a scalar that is not negative.
    pair : Callable[[batch], tuple[inputs, targets]]
        Takes a batch apart; by default it is a pair already.
    """

    model: nn.Module
    batches: Iterable[Any]
    criterion: Callable[[Any, Any], Tensor]
    pair: Callable[[Any], tuple[Any, Any]] = _as_pair


class GuardedLoss:
    """f_k at any model that is placed: a function of the parameters and buffers alone.

    Dropout is off and BatchNorm uses its running statistics. Batches are drawn from the same streams of random numbers
    at every model, so that shuffling and augmentation are the same. It is to be used within `undisturbed` and `frozen`,
    so that the user's training is as it would be without this.

    Raises
    ------
    ModelError
        If no parameter requires a gradient, or two names share one parameter.
    """

    def __init__(self, task: LocalTask) -> None:
        self._task, self._model = task, task.model
        named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        if not named:
            raise ModelError("no parameter of the model requires a gradient; the guarantee needs one at least")
        shared = (
            dict(self._model.named_parameters(remove_duplicate=False)).keys()
            - dict(self._model.named_parameters()).keys()
        )
        if shared:
            raise ModelError(
                f"{sorted(shared)} are other names of parameters; a model that shares some cannot be guarded"
            )
        self._parameters = dict(named)
        self._keys: dict[str, str] = {}  # the model's names, by those of the arrays received
        self.samples = 0
        """Of the client, as the last pass counted them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trainable arrays as the server calls them, in the order of the row."""
        theirs = {ours: key for key, ours in self._keys.items()}
        return tuple(theirs[name] for name in self._parameters)

    def place(self, arrays: Arrays) -> None:
        """Compute at these arrays: a state of the model by its names, or all of it in its order.

        `ModelError` if they do not fit the model.
        """
        state = self._model.state_dict()
        if len(arrays) != len(state):
            raise ModelError(
                f"the model received has {len(arrays)} arrays, the one of the local loss {len(state)}; build the same"
            )
        self._keys = dict(zip(arrays, arrays if set(arrays) == set(state) else state, strict=True))
        for key, values in arrays.items():
            place = state[self._keys[key]]
            if tuple(values.shape) != tuple(place.shape):
                raise ModelError(f"{key!r} has shape {values.shape}; the local model's has {tuple(place.shape)}")
            with torch.no_grad():
                place.copy_(torch.tensor(values))

    def loss(self) -> float:
        """f_k; infinite or NaN where the model diverges."""
        total, count = 0.0, 0
        for loss, size in self._losses():
            total, count = total + size * loss.item(), count + size
        return self._checked(total, count)

    def loss_and_row(self) -> tuple[float, FloatArray]:
        """f_k, and its gradient float32 [D] in the order of `names`."""
        total, count = 0.0, 0
        sums = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        for loss, size in self._losses():
            parts = torch.autograd.grad(loss * size, list(self._parameters.values()), allow_unused=True)
            for added, part in zip(sums.values(), parts, strict=True):
                if part is not None:
                    added.add_(part)
            total, count = total + size * loss.item(), count + size
        row = torch.cat([(part.double() / max(count, 1)).reshape(-1).float() for part in sums.values()])
        return self._checked(total, count), row.cpu().numpy()

    def _losses(self) -> Iterator[tuple[Tensor, int]]:
        """Mean loss of each batch, and its size."""
        device = next(iter(self._parameters.values())).device
        _begin_streams(self._task)
        with torch.enable_grad():  # kernels for inference alone may round otherwise
            for batch in self._task.batches:
                inputs, targets = (_on(part, device) for part in self._task.pair(batch))
                if not isinstance(targets, Tensor | np.ndarray | list):
                    raise DataError(
                        f"the targets of a batch are {type(targets).__name__}; need a tensor, an array or a list with "
                        "an entry for each sample"
                    )
                loss = self._task.criterion(self._model(inputs), targets)
                if not isinstance(loss, Tensor) or loss.numel() != 1:
                    raise ModelError("the criterion gives no scalar; it must be the mean loss of the batch")
                yield loss.reshape(()), len(targets)

    def _checked(self, total: float, count: int) -> float:
        if not count:
            raise DataError(
                "there is no training sample, or batches that can be gone through once only; give a loader or a list"
            )
        if total < 0:
            raise ModelError(f"the mean loss is {total / count:.6g}; the guarantee needs one that is not negative")
        self.samples = count
        return total / count


def _begin_streams(task: LocalTask) -> None:
    """Have batches drawn as at every other model."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    if isinstance(generator := getattr(task.batches, "generator", None), torch.Generator):
        generator.manual_seed(SEED)


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


@contextmanager
def frozen(task: LocalTask) -> Iterator[None]:
    """Evaluation mode within; modes, values and the loader's own generator are afterwards as before.

    Recurrent layers stay in training mode without dropout, since cuDNN differentiates them in no other.
    """
    modes = {layer: layer.training for layer in task.model.modules()}
    dropout = {layer: layer.dropout for layer in modes if isinstance(layer, nn.RNNBase)}
    values = {name: value.detach().clone() for name, value in task.model.state_dict().items()}
    generator = getattr(task.batches, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    task.model.eval()
    for recurrent in dropout:
        recurrent.dropout = 0.0
        recurrent.train()
    try:
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode
        for recurrent, probability in dropout.items():
            recurrent.dropout = probability
        task.model.load_state_dict(values)
        if isinstance(generator, torch.Generator) and state is not None:
            generator.set_state(state)


def _on(part: Any, device: torch.device) -> Any:
    return part.to(device) if isinstance(part, Tensor) else part
