"""What a module of the user's needs before it is trained: values, a memory of its own, and the floats of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dqnfed_flwr.errors import ModelError


def check_parameters(module: nn.Module, what: str) -> None:
    """Refuse parameters that cannot be trained as they are, with a `ModelError` that calls the module `what`.

    A program of torch.jit is refused whole. Else these are lazy ones, tensors without values, trained ones that are
    sparse, and trained ones whose memory another tensor of the module has too: a vector of all parameters would part
    them, where torch's optimisers move both.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ModelError(f"{what} is a program of torch.jit, which cannot be trained here; give the nn.Module itself")
    named = list(_tensors(module))
    if any(is_lazy(tensor) for _, tensor in named):
        raise ModelError(f"{what} has lazy layers, whose shapes are not known; give them their sizes")
    if empty := [name for name, tensor in named if tensor.is_meta]:
        raise ModelError(
            f"{what} has {len(empty)} tensors on the meta device, which hold no values ({empty[0]}); load its weights "
            "before it is returned"
        )
    if sparse := [name for name, tensor in named if tensor.requires_grad and tensor.layout is not torch.strided]:
        raise ModelError(f"{what} trains {sparse[0]}, which is sparse; make it dense: to_dense()")
    if tied := _parted(named):
        raise ModelError(
            f"{what} has {tied[0]} and {tied[1]} as two tensors in one memory, which training would part; give both "
            "names the same nn.Parameter, or one of them a clone()"
        )


def as_dtype(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """The module, changed in place, with its floats in `dtype` and its complex numbers in the one of that width.

    None leaves them. Whole numbers stay, and so do frozen floats of one byte and frozen tensors of other packages'
    classes, which are how quantised layers store weights. Trained ones and buffers whose values lie over each other
    in memory (`expand`) are given a place each, so that they can be written.
    """
    for parameter in module.parameters():
        held = parameter.data
        fitted = _fitted(held, dtype, trained=parameter.requires_grad)
        if fitted is not held:
            parameter.data = fitted
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            fitted = _fitted(buffer, dtype, trained=False)
            if fitted is not buffer:
                setattr(part, name, fitted)
    return module


def other_dtypes(module: nn.Module, dtype: torch.dtype) -> dict[str, int]:
    """How many tensors of a module `as_dtype` casts, by the name of their dtype; those in torch's default not counted.

    Most models are made in the default, whatever the run's dtype is.
    """
    counted: dict[str, int] = {}
    usual = torch.get_default_dtype()
    for _, tensor in _tensors(module):
        wanted = _wanted(tensor, dtype, trained=tensor.requires_grad)
        if tensor.dtype not in (wanted, usual, usual.to_complex()):
            name = str(tensor.dtype).removeprefix("torch.")
            counted[name] = counted.get(name, 0) + 1
    return counted


def own_copy(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy of a module that holds the `shared` tensors of the original, and all others anew.

    What layers have computed from their parameters and keep as attributes, such as the weight of torch's older
    `weight_norm` and of pruned layers, cannot be copied by torch; it is cut off from them, for a pass makes it anew.
    """
    memo = {id(tensor): tensor for tensor in shared}
    for part in module.modules():
        kept = (tensor for value in vars(part).values() for tensor in _held(value))
        memo |= {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}
    return deepcopy(module, memo)


def _held(value: object) -> Iterator[Tensor]:
    """The tensors that an attribute of a layer holds, by itself or in lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _held(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _held(part)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _parted(named: list[tuple[str, Tensor]]) -> tuple[str, str] | None:
    """Two tensors that begin at the same place in memory, of which one is trained."""
    places: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in named:
        if tensor.layout is not torch.strided or not _plain(tensor) or not tensor.numel():
            continue
        first, other = places.setdefault(tensor.data_ptr(), (name, tensor))
        if first != name and (tensor.requires_grad or other.requires_grad):
            return first, name
    return None


def _plain(tensor: Tensor) -> bool:
    return type(tensor.data) is Tensor


def _wanted(tensor: Tensor, dtype: torch.dtype, *, trained: bool) -> torch.dtype:
    stored = not trained and (tensor.dtype.itemsize == 1 or not _plain(tensor))
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() and not stored else tensor.dtype


def _fitted(tensor: Tensor, dtype: torch.dtype | None, *, trained: bool) -> Tensor:
    if dtype is not None:
        tensor = tensor.to(_wanted(tensor, dtype, trained=trained))
    if tensor.layout is not torch.strided or not _plain(tensor):
        return tensor
    overlaps = any(step == 0 and side > 1 for side, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.contiguous() if overlaps else tensor
