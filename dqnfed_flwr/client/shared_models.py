"""Models of one process, shared by all clients that compute with the same one: as many as compute at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
from torch import nn

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.frozen import Frozen
from dqnfed_flwr.client.parts import ClientSource
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.data.objects import number_of
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.classification import CrossEntropy

_Key = tuple[Settings, int, int, tuple[int, ...], str, int, torch.device]
_Range = tuple[int, int]

_KNOWN: WeakValueDictionary[_Key, SharedModels] = WeakValueDictionary()
_LOOKING = threading.Lock()


class SharedModels:
    """Equal models that clients borrow in turn; one is built at once, others where several compute at the same time.

    Hold on to it: clients share it as long as somebody does.

    Parameters
    ----------
    build : Callable[[], nn.Module]
        Makes the module, the same each time.
    device : torch.device
        Where it computes.
    bf16 : bool
        As in `FlatModel`.

    Attributes
    ----------
    spec : ParamSpec
        Order of parameters and buffers.
    frozen : Frozen
        What is not trained.
    buffers : dict[str, Tensor]
        Persistent buffers as they were built.
    """

    def __init__(self, build: Callable[[], nn.Module], device: torch.device, *, bf16: bool = False) -> None:
        self._build, self._device, self._bf16 = build, device, bf16
        module = build()
        self.frozen = Frozen.of(module, device)
        first = FlatModel(module, device, bf16=bf16)
        self.spec = first.spec
        self.buffers = first.spec.read_buffers(first.module)
        self._idle = [first]
        self._fitting: _Range | None = None

    @contextmanager
    def lend(self) -> Iterator[FlatModel]:
        """A model that nobody else uses meanwhile. Its vector and buffers are those of whoever had it before.

        One that was in use when an error was raised is not lent again.
        """
        try:
            model = self._idle.pop()
        except IndexError:
            model = self._another()
        yield model
        self._idle.append(model)

    def suit(self, data: ClientSource, outputs: int) -> bool:
        """Whether it is known, without a pass, that a classifier with so many outputs takes these samples in memory."""
        if self._fitting is None or not isinstance(data, ClientData) or not data.y_train.size:
            return False
        if not 0 <= data.y_train.min() <= data.y_train.max() < outputs:
            return False
        lowest, highest = _tokens(data)
        return self._fitting[0] <= lowest and highest <= self._fitting[1]

    def suited(self, data: ClientSource, task: Task) -> None:
        """A client's samples were passed through the model, and fit it."""
        if isinstance(data, ClientData) and isinstance(task, CrossEntropy):
            lowest, highest = _tokens(data)
            known = self._fitting or (lowest, highest)
            self._fitting = min(known[0], lowest), max(known[1], highest)

    def _another(self) -> FlatModel:
        module = self._build()
        Frozen.of(module, self._device)  # its frozen part takes no memory of its own
        return FlatModel(module, self._device, bf16=self._bf16)


def shared_models(settings: Settings, data: ClientSource, outputs: int, device: torch.device) -> SharedModels:
    """The models of a run for samples of this form; clients that ask for the same ones are given the same.

    Raises
    ------
    ModelError
        If the model cannot be built.
    """
    numbers = number_of("task", settings.task), number_of("model", settings.model)
    key = (settings, *numbers, tuple(data.input_shape), data.input_kind, outputs, device)
    with _LOOKING:
        found = _KNOWN.get(key)
        if found is None:
            task, dtype = task_of(settings), DTYPES[settings.dtype]

            def build() -> nn.Module:
                return task.build(data.input_shape, outputs, seed=settings.seed, dtype=dtype)

            found = _KNOWN[key] = SharedModels(build, device, bf16=settings.local.autocast == "bf16")
    return found


def forget_models() -> None:
    """Build models anew from now on; clients that hold some go on with them."""
    with _LOOKING:
        _KNOWN.clear()


def _tokens(data: ClientData) -> _Range:
    """The least and the greatest token of all parts; nothing for other samples."""
    parts = [x for x in (data.x_train, data.x_validation, data.x_test) if x.size and data.input_kind == "tokens"]
    return min((int(x.min()) for x in parts), default=0), max((int(x.max()) for x in parts), default=0)
