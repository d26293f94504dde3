"""Torch's global generators, lent to one user at a time and given back as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LENT = threading.RLock()


@contextmanager
def at_rest() -> Iterator[None]:
    """Nobody who asks for torch's generators has them within, so that a process may be forked.

    A generator that another thread draws from at that moment stays locked in the process for ever.
    """
    with _LENT:
        yield


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Have torch draw from a stream of `seed`, at least 0, within; other threads that ask for the generators wait.

    The CPU's generator is always lent; with a CUDA `device`, that of the device as well.
    """
    import torch

    cuda = [device] if device is not None and device.type == "cuda" else []
    with _LENT, torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed queues a stack trace for CUDA at every call
        for one in cuda:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield
