"""Forward passes in bfloat16 where torch finds that safe; parameters, gradients and losses stay as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from dqnfed_flwr.tasks.batches import mapped


class Autocast:
    """Every forward pass of a module under `torch.autocast`, with its outputs back in float32 for the loss.

    It belongs to the module, so that gradient, probe, local passes and evaluation have the same bits at the same model.
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
