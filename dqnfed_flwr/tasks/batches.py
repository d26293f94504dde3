"""Batches as torch's collate makes them: tensors, or tuples, lists and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = Any
"""What `collate` makes of samples; by default torch's own, with the inputs first and the targets second."""


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


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with floating-point tensors in `dtype`."""
    return mapped(batch, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def in_float64(values: Tensor) -> Tensor:
    """The same in float64; MPS has none: its values move to the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def all_tensors(batch: Batch) -> bool:
    """Whether a batch consists of tensors alone, with nothing else beside them."""
    if isinstance(batch, Mapping):
        return all(map(all_tensors, batch.values()))
    if isinstance(batch, list | tuple):
        return all(map(all_tensors, batch))
    return isinstance(batch, Tensor)


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same bits."""
    first, second = list(tensors(one)), list(tensors(other))
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)
    )
