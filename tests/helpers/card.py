"""A card that is not there: tensors of the processor that behave as if they were on CUDA.

Within `Card`, a tensor that is made on or moved to CUDA is marked. It says that it is there, has no memory that NumPy
could read, and computes with no vector of the host; what is made of it is marked as well. So a trip through the host
that a run does not announce, and a mix of both, fails here as it would on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda", 0)
_HOST = torch.device("cpu")
_ACROSS = ("copy_", "to", "cpu", "__get__", "__set__", "__repr__")
"""What may be given vectors of both kinds."""
_READ = ("numpy", "__array__")


class OnCard(Tensor):
    """A tensor that lies on the card."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Card(TorchFunctionMode):
    """As long as it is entered, there is a card; `copied` has the sizes of what came to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do what was asked for, and mark what is made."""
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        given = list(_tensors([*args, *named.values()]))
        marked = any(isinstance(tensor, OnCard) for tensor in given)
        target = _HOST if name == "cpu" else _target(args, named)
        if not marked and target != DEVICE:
            return func(*args, **named)
        if func == torch.Tensor.device.__get__:
            return DEVICE
        if marked and name in _READ:
            raise AssertionError("memory of a card is read as if it were the host's")
        if marked and name not in _ACROSS and any(t.ndim and not isinstance(t, OnCard) for t in given):
            raise AssertionError(f"{name}: a vector of the host beside one of the card")
        args = tuple(_HOST if _is_card(arg) else arg for arg in args)
        named = {key: _HOST if _is_card(value) else value for key, value in named.items()}
        made = func(*args, **named)
        if target is None and any(made is tensor for tensor in given):
            return made
        there = marked if target is None else target == DEVICE
        if marked and target == _HOST and isinstance(made, Tensor):
            self.copied.append(made.numel())
            made = made.clone()
        return _marked(made, OnCard if there else Tensor)


def _is_card(value: Any) -> bool:
    return isinstance(value, torch.device) and value == DEVICE


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _target(args: Iterable[Any], named: Mapping[str, Any]) -> torch.device | None:
    found = [value for value in (*args, *named.values()) if isinstance(value, torch.device)]
    return torch.device(named["device"]) if isinstance(named.get("device"), str) else found[0] if found else None


def _marked(made: Any, kind: type[Tensor]) -> Any:
    if isinstance(made, Tensor) and not isinstance(made, torch.nn.Parameter) and type(made) in (Tensor, OnCard):
        return made if type(made) is kind else made.as_subclass(kind)
    return tuple(_marked(one, kind) for one in made) if type(made) is tuple else made
