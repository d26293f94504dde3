"""The part of a model that is not trained: it never travels, and clients of one process hold it once."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from dqnfed_flwr.params import NOTHING_FROZEN, frozen_fingerprint

_KNOWN: WeakValueDictionary[tuple[str, torch.device], Frozen] = WeakValueDictionary()
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
        with _LOOKING:
            known = _KNOWN.get((fingerprint, device))
            if known is None:
                known = cls(fingerprint, {name: p.detach().to(device) for name, p in own.items()})
                _KNOWN[fingerprint, device] = known
        for name, parameter in own.items():
            parameter.data = known.tensors[name]
        return known


def copied(module: nn.Module) -> nn.Module:
    """A copy of `module` that shares its frozen parameters."""
    return deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})
