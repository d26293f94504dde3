"""Models of one process, shared by all clients that compute with the same one; what is not trained is held once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.parts import ClientSource
from dqnfed_flwr.client.path_checks import check_path
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.data.user import number_of
from dqnfed_flwr.models import MODELS
from dqnfed_flwr.models.making import own_copy
from dqnfed_flwr.params import NOTHING_FROZEN, frozen_fingerprint
from dqnfed_flwr.tasks import TASKS, task_of
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.classification import CrossEntropy

_FROZEN: WeakValueDictionary[tuple[str, torch.device], Frozen] = WeakValueDictionary()
_LOOKING_FOR_FROZEN = threading.Lock()
_Key = tuple[Settings, int, int, tuple[int, ...], str, int, torch.device]
_Range = tuple[int, int]
_KNOWN: WeakValueDictionary[_Key, SharedModels] = WeakValueDictionary()
_LOOKING = threading.Lock()


@dataclass(eq=False)
class Frozen:
    """The frozen parameters of a model on a device. Hold on to it: it is shared as long as somebody does.

    Attributes
    ----------
    fingerprint : str
        As `params.frozen_fingerprint`.
    tensors : dict[str, Tensor]
        Their values, by name.
    """

    fingerprint: str
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, device: torch.device) -> Frozen:
        """Take the frozen parameters of `module` to the device, or put those in their place that are there already."""
        fingerprint = frozen_fingerprint(module)
        if fingerprint == NOTHING_FROZEN:
            return cls(fingerprint)
        own = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        with _LOOKING_FOR_FROZEN:
            known = _FROZEN.get((fingerprint, device))
            if known is None:
                known = cls(fingerprint, {name: p.detach().to(device) for name, p in own.items()})
                _FROZEN[fingerprint, device] = known
        for name, parameter in own.items():
            parameter.data = known.tensors[name]
        return known


def copied(module: nn.Module) -> nn.Module:
    """A copy of `module` that shares its frozen parameters."""
    return own_copy(module, (p for p in module.parameters() if not p.requires_grad))


class SharedModels:
    """Equal models that clients borrow in turn; one is built at once, others where several compute at the same time.

    Hold on to it: clients share it as long as somebody does.

    Parameters
    ----------
    build : Callable[[torch.dtype], nn.Module]
        Makes the module on the CPU, the same each time, in a dtype.
    dtype : torch.dtype
        It computes in.
    device : torch.device
        Where it computes.
    bf16 : bool
        As in `FlatModel`.
    known : bool
        Whether model and task are the package's own, which tests check.

    Attributes
    ----------
    spec : ParamSpec
        Order of parameters and buffers.
    frozen : Frozen
        What is not trained.
    buffers : dict[str, Tensor]
        Persistent buffers as they were built.
    """

    def __init__(
        self,
        build: Callable[[torch.dtype], nn.Module],
        dtype: torch.dtype,
        device: torch.device,
        *,
        bf16: bool = False,
        known: bool = False,
    ) -> None:
        self._build, self._dtype, self._device, self._bf16 = build, dtype, device, bf16
        self._checked, self._checking = known, threading.Lock()
        module = build(dtype)
        self.frozen = Frozen.of(module, device)
        first = FlatModel(module, device, bf16=bf16)
        self.spec = first.spec
        self.buffers = first.spec.read_buffers(first.module)
        self._idle = [first]
        self._copies_inputs = False
        self._fitting: _Range | None = None

    @contextmanager
    def lend(self) -> Iterator[FlatModel]:
        """A model that nobody else uses meanwhile. Its vector and buffers are those of whoever had it before.

        One that was in use when an error was raised is not lent again. `ModelError` if it has put other parameters in
        the place of trained ones.
        """
        try:
            model = self._idle.pop()
        except IndexError:
            model = self._another()
        if self._copies_inputs:
            model.copy_inputs()
        yield model
        model.check_trained()
        model.put_back()
        self._copies_inputs |= model.copies_inputs
        self._idle.append(model)

    @property
    def checked(self) -> bool:
        """Whether `check` has nothing to do."""
        return self._checked

    def trust(self) -> None:
        """Leave the `check` out: another process had it in this run."""
        self._checked = True

    def check(self, loss: LocalLoss, *, passes: bool) -> None:
        """Have the loss of one client of the process checked, the first, as `check_path` does; none after `trust`."""
        with self._checking:
            if not self._checked:
                check_path(loss, self._build, passes=passes)
                self._checked = True

    def suit(self, data: ClientSource, outputs: int) -> bool:
        """Whether it is known, without a pass, that a classifier with so many outputs takes these samples in memory."""
        if self._fitting is None or not isinstance(data, ClientData) or not data.y_train.size:
            return False
        if self.spec.buffers and len(data.y_train) == 1:  # statistics cannot be taken of one sample
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
        module = self._build(self._dtype)
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
            task = task_of(settings)

            def build(dtype: torch.dtype) -> nn.Module:
                return task.build(data.input_shape, outputs, seed=settings.seed, dtype=dtype)

            bf16, known = settings.local.autocast == "bf16", settings.model in MODELS and settings.task in TASKS
            found = _KNOWN[key] = SharedModels(build, DTYPES[settings.dtype], device, bf16=bf16, known=known)
    return found


def forget_models() -> None:
    """Build models anew from now on; clients that hold some go on with them."""
    with _LOOKING:
        _KNOWN.clear()


def _tokens(data: ClientData) -> _Range:
    """The least and the greatest token of all parts; nothing for other samples."""
    parts = [x for x in (data.x_train, data.x_validation, data.x_test) if x.size and data.input_kind == "tokens"]
    return min((int(x.min()) for x in parts), default=0), max((int(x.max()) for x in parts), default=0)
