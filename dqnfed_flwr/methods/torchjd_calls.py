"""Calls to an aggregator of TorchJD that a run can repeat and resume."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.methods._base import State
from dqnfed_flwr.randomness import seeded


class Calls:
    """Calls to an aggregator: seeded by the round, and repeatable within it.

    An aggregator with a memory is asked as it stood before the round; what it remembers of the call counts from the
    next round on. Its memory is by position, so it is forgotten when other clients take part.

    Parameters
    ----------
    method : str
        For messages.
    aggregator, part : Any
        The aggregator, and that part of it that is called: itself, or its weighting.
    seed : int
        Of the run.
    """

    def __init__(self, method: str, aggregator: Any, part: Any, seed: int) -> None:
        self._method, self._seed = method, seed
        self._pair = self._after = (aggregator, part)
        self._stateful = hasattr(aggregator, "reset")
        self._clients: tuple[int, ...] = ()
        self._shape: tuple[int, ...] = ()

    def begin(self, clients: tuple[int, ...]) -> None:
        """Open a round."""
        self._pair = self._after
        if self._stateful and clients != self._clients:
            self._pair[0].reset()
        self._clients = clients

    def __call__(self, values: Tensor, round_number: int) -> Tensor:
        """What the aggregator, or its weighting, makes of rows or Gramian."""
        pair = copy.deepcopy(self._pair) if self._stateful else self._pair
        words = np.random.SeedSequence((self._seed, round_number)).generate_state(1, np.uint64)
        with torch.no_grad(), seeded(int(words[0]) >> 1):
            try:
                made = pair[1](values)
            except (ValueError, RuntimeError) as error:
                raise RunError(
                    f"{self._method} failed in round {round_number} on {len(values)} rows: {error}"
                ) from error
        self._after, self._shape = pair, tuple(values.shape)
        return torch.as_tensor(made)

    def export(self) -> dict[str, NDArray[np.generic]]:
        """The memory: tensors and whole numbers of the modules, and what they were made for."""
        if not self._stateful or not self._shape:
            return {}
        state: dict[str, NDArray[np.generic]] = {
            "clients": np.array(self._clients),
            "shape": np.array(self._shape),
        }
        for path, module in self._after[0].named_modules():
            for name, value in (*module.named_buffers(recurse=False), *vars(module).items()):
                if isinstance(value, Tensor):
                    state[f"{path}/{name}"] = value.numpy().copy()
                elif type(value) is int:
                    state[f"{path}/{name}"] = np.array(value)
        return state

    def restore(self, state: State) -> None:
        """Inverse of `export`; a call on values of the same shape prepares the modules."""
        if "shape" not in state:
            return
        self._clients = tuple(int(client) for client in state["clients"])
        dtype = next((torch.from_numpy(v).dtype for k, v in state.items() if "/" in k and v.dtype.kind == "f"), None)
        self(torch.ones(*(int(size) for size in state["shape"]), dtype=dtype or torch.float64), 0)
        modules = dict(self._after[0].named_modules())
        for key, value in state.items():
            path, slash, name = key.rpartition("/")
            if not slash:
                continue
            kept = value.item() if type(getattr(modules[path], name)) is int else torch.from_numpy(np.array(value))
            setattr(modules[path], name, kept)
