"""Arrays that several clients of a process received, copied once for all of them."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import Tensor

from dqnfed_flwr.types import FloatArray

_Key = tuple[int, torch.dtype, torch.device]

_HELD: dict[_Key, tuple[weakref.ref[FloatArray], Tensor]] = {}
_LOCK = threading.Lock()


def shared_copy(array: FloatArray, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of `array`, the same tensor for whoever asks for the same array while it lives.

    Parameters
    ----------
    array : FloatArray
        Whose values stay as they are, as those of a message do.
    dtype, device : torch.dtype, torch.device
        Of the copy.

    Returns
    -------
    Tensor
        Not to be written to.
    """
    key = (id(array), dtype, device)
    with _LOCK:
        if held := _HELD.get(key):
            return held[1]
        copy = torch.tensor(array, dtype=dtype, device=device)
        _HELD[key] = (weakref.ref(array, lambda _: _HELD.pop(key, None)), copy)
        return copy
