"""A torch module whose trainable parameters are views of one vector: setting a model moves no data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dqnfed_flwr.errors import ModelError, ShapeError
from dqnfed_flwr.params import ParamSpec, in_reals
from dqnfed_flwr.tasks.batches import mapped

KNOWN_LAYERS = ("torch.nn.modules.", "dqnfed_flwr.models.")
"""Where layers come from of which it is known what they draw."""


class Autocast:
    """Every forward pass of a module under `torch.autocast`, with its outputs back in float32 for the loss.

    It belongs to the module, so that gradients, local passes and figures have the same bits at the same model. Losses
    by which clients judge are taken with it `off`: what rounding does to a loss is often more than what a step does.
    Weights are cast anew each time they are used: torch's cache of cast weights would not see that a vector was placed.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._device, self._on = device.type, True
        self._open: list[ExitStack] = []
        module.register_forward_pre_hook(self._enter)
        module.register_forward_hook(self._leave, always_call=True)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Full precision within."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        stack = ExitStack()
        stack.enter_context(torch.autocast(self._device, torch.bfloat16, enabled=self._on, cache_enabled=False))
        self._open.append(stack)

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        self._open.pop().close()
        return mapped(outputs, lambda tensor: tensor.float() if tensor.dtype == torch.bfloat16 else tensor)


class FlatModel:
    """A module on its device that computes at the vector [D] that was placed last.

    The model is frozen: what it computes is a function of `theta`, the buffers and the input alone. Dropout is off
    and BatchNorm uses its running statistics. Recurrent layers stay in training mode with their dropout set to zero,
    which is the same function, because cuDNN differentiates them in no other mode. `training` lifts all that for
    local SGD. With `bf16` forward passes run as `Autocast` says. Embeddings give dense gradients, which are the same.
    Without a device the module is somebody else's, and stays where and as it is.

    Vectors hold reals: a complex parameter [...] is a view of reals [..., 2], and so are the parts of a gradient.

    Attributes
    ----------
    theta : Tensor
        [D], the vector placed last; at first the module's own parameters, in the dtype that holds all of theirs.
    parameters : list[nn.Parameter]
        The trainable parameters of `module`, views of `theta`, in the order of `spec`; copies where dtypes differ.
    recurrent, attends : bool
        Whether the module holds recurrent layers, or torch's attention layers: their kernels depend on torch's mode.
    draws : bool
        Whether it may draw random numbers while it trains: it holds dropout, or layers that are not known here.
    rounds : bool
        Whether forward passes run in bfloat16, but in `full_precision`.
    copies_inputs : bool
        Whether the module is given copies of its inputs; see `copy_inputs`.
    """

    def __init__(self, module: nn.Module, device: torch.device | None, *, bf16: bool = False) -> None:
        self.module = module if device is None else module.to(device)
        self._autocast = Autocast(self.module, device) if bf16 and device is not None else None
        self.rounds = self._autocast is not None
        self.spec = ParamSpec.of(self.module)
        self._sizes, self._shapes = list(self.spec.sizes), self.spec.real_shapes
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in self.spec.names]
        self._dtypes = [parameter.dtype for parameter in self.parameters]
        self._trained = {name: (*_place(self.module, name), named[name]) for name in self.spec.names}
        self._frozen = [(*_place(self.module, n), p, p.data) for n, p in named.items() if not p.requires_grad]
        self._pointers: list[int] = []  # where trained parameters lay when they were placed
        self._dropout = {layer: layer.dropout for layer in self.module.modules() if isinstance(layer, nn.RNNBase)}
        self.recurrent = bool(self._dropout)
        self.attends = any(isinstance(layer, nn.MultiheadAttention) for layer in self.module.modules())
        for layer in self.module.modules() if device else ():  # without a device the module is somebody else's
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                layer.sparse = False  # sparse gradients differentiate once only, and vectors are dense
        self.draws = any(map(_draws, self.module.modules()))
        self.copies_inputs = False
        self.theta = self.spec.flatten(self.module)
        if self.recurrent and self.theta.is_cuda:
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        self.place(self.theta)
        self.freeze()

    def place(self, theta: Tensor) -> None:
        """Compute at `theta` from now on. The vector is not copied: what is written to it later counts.

        Frozen parameters are put back first, see `put_back`.
        """
        like = self.theta
        if (theta.shape, theta.dtype, theta.device) != (like.shape, like.dtype, like.device):
            raise ShapeError(
                f"the vector is {theta.dtype} {tuple(theta.shape)} on {theta.device}; "
                f"this model needs {like.dtype} {tuple(like.shape)} on {like.device}"
            )
        self.put_back()
        self.theta = theta.detach()
        kinds = zip(self.parameters, self.views(self.theta), self._dtypes, strict=True)
        for parameter, view, dtype in kinds:
            # the view itself, but where parameters have several dtypes
            parameter.data = torch.view_as_complex(view) if dtype.is_complex else view.to(dtype)
        self._pointers = [parameter.data_ptr() for parameter in self.parameters]
        torch.autograd.graph.increment_version(self.parameters)  # layers may look for it before they use a cache

    def copy_inputs(self) -> None:
        """Hand the module copies of its inputs from now on: it changes them in place, and samples are held."""
        if not self.copies_inputs:
            self.copies_inputs = True
            self.module.register_forward_pre_hook(_with_copies, with_kwargs=True)

    def put_back(self) -> None:
        """Undo what a forward pass did to the frozen part: adapters may merge into weights, and make new ones of them.

        The frozen parameters are again those that clients of one process share, in their own memory.
        """
        for layer, own, parameter, values in self._frozen:
            if layer._parameters.get(own) is not parameter:
                if own in vars(layer):
                    delattr(layer, own)
                layer.register_parameter(own, parameter)
            if values.layout is torch.strided and parameter.data_ptr() != values.data_ptr():
                parameter.data = values

    def check_trained(self) -> None:
        """Refuse a model whose forward pass put other values in the place of a trained parameter: `ModelError`.

        No gradient, or no step, would reach them.
        """
        for (name, (layer, own, parameter)), pointer in zip(self._trained.items(), self._pointers, strict=True):
            if layer._parameters.get(own) is not parameter or parameter.data_ptr() != pointer:
                raise ModelError(
                    f"model: {type(self.module).__name__} puts other values in the place of {name} as it computes, "
                    "which no training would reach; have forward() use the parameters that __init__ made"
                )

    def full_precision(self) -> AbstractContextManager[None]:
        """No autocast within."""
        return self._autocast.off() if self._autocast else nullcontext()

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of `vector` [D] in the shapes of the parameters, in their order; of complex ones the reals [..., 2]."""
        parts = torch.split(vector, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """One vector [D] from tensors in the shapes of `views`."""
        return torch.cat([part.reshape(-1) for part in parts])

    def gradients(
        self,
        value: Tensor,
        weights: Tensor | None = None,
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
        batched: bool = False,
    ) -> tuple[Tensor, ...]:
        """Gradients of `value` in the shapes of `views`, dense, zero for parameters that it does not depend on.

        The arguments are those of `torch.autograd.grad`; `batched` says that `weights` are many, one behind the other.
        Of a complex parameter, torch gives the derivatives by real and imaginary part as one complex number.
        """
        found = torch.autograd.grad(
            value,
            self.parameters,
            weights,
            retain_graph=retain_graph,
            create_graph=create_graph,
            is_grads_batched=batched,
            allow_unused=True,
            materialize_grads=True,
        )
        return tuple(map(dense_reals, found))

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode within: dropout on, BatchNorm uses and updates the statistics of the batch.

        What travels in no message is afterwards as it was: buffers that are not kept, and extra states of layers. Else
        it would depend on which client of a process had the model before.
        """
        staying = _Staying(self.module, self.spec.buffers)
        self.module.train()
        for layer, dropout in self._dropout.items():
            layer.dropout = dropout
        try:
            yield
        finally:
            self.freeze()
            staying.put_back()

    def freeze(self) -> None:
        """Evaluation mode, with recurrent layers as the class says."""
        self.module.eval()
        for layer in self._dropout:
            layer.dropout = 0.0
            layer.train()


def _with_copies(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return mapped(args, Tensor.clone), mapped(kwargs, Tensor.clone)


class _Staying:
    """The buffers of a module that do not travel, and the extra states of its layers, as they are now."""

    def __init__(self, module: nn.Module, travelling: Sequence[str]) -> None:
        kept = set(travelling)
        places = ((layer, f"{path}." if path else "") for path, layer in module.named_modules())
        slots = ((layer, own, prefix + own) for layer, prefix in places for own in layer._buffers)
        self._buffers = [(layer, own, layer._buffers[own]) for layer, own, name in slots if name not in kept]
        self._values = [None if held is None else held.clone() for *_, held in self._buffers]
        stateful = (layer for layer in module.modules() if _has_extra_state(layer))
        self._states = [(layer, deepcopy(layer.get_extra_state())) for layer in stateful]

    def put_back(self) -> None:
        for (layer, own, held), values in zip(self._buffers, self._values, strict=True):
            layer._buffers[own] = held
            if held is not None and values is not None and held.layout is torch.strided:
                held.detach().copy_(values)
        for layer, state in self._states:
            layer.set_extra_state(state)


def _has_extra_state(layer: nn.Module) -> bool:
    """Whether a layer can give such a state and take it back."""
    kind = type(layer)
    return (
        kind.get_extra_state is not nn.Module.get_extra_state and kind.set_extra_state is not nn.Module.set_extra_state
    )


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that holds a parameter, and its name there."""
    path, _, own = name.rpartition(".")
    return module.get_submodule(path), own


def dense_reals(gradient: Tensor) -> Tensor:
    """A gradient as torch gives it, sparse or complex, as the dense reals that it stands for."""
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    if dense.is_complex() and dense.requires_grad:  # backwards through a view, passes could not be batched
        return torch.stack([dense.real, dense.imag], dim=-1)
    return in_reals(dense)


def _draws(layer: nn.Module) -> bool:
    if not type(layer).__module__.startswith(KNOWN_LAYERS):
        return True
    inner = getattr(layer, "dropout", 0.0)  # recurrent and attention layers drop by themselves
    drops = inner > 0 if isinstance(inner, int | float) else False
    return drops or isinstance(layer, _DropoutNd | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def check_depends(model: FlatModel, loss: Tensor, where: str = "in evaluation mode") -> None:
    """`ModelError` where a loss cannot be differentiated by any trained parameter."""
    if not loss.requires_grad:
        raise ModelError(independent(model.module, where))


def independent(module: nn.Module, where: str) -> str:
    """The words for a loss that does not depend on what is trained, with the layers that change by mode."""
    own = [(name, layer) for name, layer in module.named_modules() if type(layer).train is not nn.Module.train]
    layers = ", ".join(f"{type(layer).__name__} {name!r}" if name else type(layer).__name__ for name, layer in own[:3])
    merging = f" ({layers} changes with the mode, as layers do that merge weights: switch that off)" if own else ""
    return (
        f"model: {where} the loss of {type(module).__name__} does not depend on any parameter that is trained"
        f"{merging}; compute the outputs from the parameters in both modes, without no_grad, detach and .data"
    )
