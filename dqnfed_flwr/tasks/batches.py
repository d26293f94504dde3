"""Batches as torch's collate makes them: tensors, or tuples, lists and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dqnfed_flwr.tasks._base import Batch


def mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed; what is no tensor stays."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def tensors(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def on_device(batch: Batch, dtype: torch.dtype, device: torch.device) -> Batch:
    """The batch on a device, with floating-point tensors in `dtype`."""

    def move(tensor: Tensor) -> Tensor:
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(device, wanted, non_blocking=True)

    return mapped(batch, move)


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same bits."""
    first, second = list(tensors(one)), list(tensors(other))
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)
    )
