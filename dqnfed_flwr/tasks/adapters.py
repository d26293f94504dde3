"""Adapters of `peft`, known by what they can do: nothing here imports it."""

from __future__ import annotations

from typing import Any

from torch import nn


def adapted(module: nn.Module) -> list[tuple[str, Any]]:
    """The models of `peft` in a module, the outermost ones, by name; the module itself has the name ''."""
    found: list[tuple[str, Any]] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(f"{outer}." if outer else "") for outer, _ in found)
        if not inside and hasattr(part, "merge_and_unload") and hasattr(part, "save_pretrained"):
            found.append((name, part))
    return found


def merged(module: nn.Module) -> nn.Module:
    """The module with each adapter of `peft` added to the weights that it adapts; changed in place."""
    for name, part in adapted(module):
        whole: nn.Module = part.merge_and_unload()
        if not name:
            return whole
        outer, _, last = name.rpartition(".")
        setattr(module.get_submodule(outer), last, whole)
    return module
