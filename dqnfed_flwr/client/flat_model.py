"""A torch module whose trainable parameters are views of one vector: setting a model moves no data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dqnfed_flwr.client.autocast import Autocast
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.params import ParamSpec

KNOWN_LAYERS = ("torch.nn.modules.", "dqnfed_flwr.models.")
"""Where layers come from of which it is known what they draw."""


class FlatModel:
    """A module on its device that computes at the vector [D] that was placed last.

    The model is frozen: what it computes is a function of `theta`, the buffers and the input alone. Dropout is off
    and BatchNorm uses its running statistics. Recurrent layers stay in training mode with their dropout set to zero,
    which is the same function, because cuDNN differentiates them in no other mode. `training` lifts all that for
    local SGD. With `bf16` forward passes run as `Autocast` says.

    Attributes
    ----------
    theta : Tensor
        [D], the vector placed last; at first the module's own parameters.
    parameters : list[nn.Parameter]
        The trainable parameters of `module`, views of `theta`, in the order of `spec`.
    recurrent, attends : bool
        Whether the module holds recurrent layers, or torch's attention layers: their kernels depend on torch's mode.
    draws : bool
        Whether it may draw random numbers while it trains: it holds dropout, or layers that are not known here.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, bf16: bool = False) -> None:
        self.module = module.to(device)
        self._autocast = Autocast(self.module, device) if bf16 else None
        self.spec = ParamSpec.of(self.module)
        self._sizes = list(self.spec.sizes)
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in self.spec.names]
        self._dropout = {layer: layer.dropout for layer in self.module.modules() if isinstance(layer, nn.RNNBase)}
        self.recurrent = bool(self._dropout)
        self.attends = any(isinstance(layer, nn.MultiheadAttention) for layer in self.module.modules())
        self.draws = any(map(_draws, self.module.modules()))
        if self.recurrent and device.type == "cuda":
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        self.theta = self.spec.flatten(self.module)
        self.place(self.theta)
        self._freeze()

    def place(self, theta: Tensor) -> None:
        """Compute at `theta` from now on. The vector is not copied: what is written to it later counts."""
        like = self.theta
        if (theta.shape, theta.dtype, theta.device) != (like.shape, like.dtype, like.device):
            raise ShapeError(
                f"the vector is {theta.dtype} {tuple(theta.shape)} on {theta.device}; "
                f"this model needs {like.dtype} {tuple(like.shape)} on {like.device}"
            )
        self.theta = theta.detach()
        for parameter, view in zip(self.parameters, self.views(self.theta), strict=True):
            parameter.data = view

    def full_precision(self) -> AbstractContextManager[None]:
        """No autocast within."""
        return self._autocast.off() if self._autocast else nullcontext()

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of `vector` [D] in the shapes of the parameters, in their order."""
        parts = torch.split(vector, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.spec.shapes, strict=True)]

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """One vector [D] from tensors in the shapes of the parameters."""
        return torch.cat([part.reshape(-1) for part in parts])

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode within: dropout on, BatchNorm uses and updates the statistics of the batch."""
        self.module.train()
        for layer, dropout in self._dropout.items():
            layer.dropout = dropout
        try:
            yield
        finally:
            self._freeze()

    def _freeze(self) -> None:
        self.module.eval()
        for layer in self._dropout:
            layer.dropout = 0.0
            layer.train()


def _draws(layer: nn.Module) -> bool:
    if not type(layer).__module__.startswith(KNOWN_LAYERS):
        return True
    inner = getattr(layer, "dropout", 0.0)  # recurrent and attention layers drop by themselves
    drops = inner > 0 if isinstance(inner, int | float) else False
    return drops or isinstance(layer, _DropoutNd | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
