"""What a client keeps for a method from round to round: a personal model, a dual variable, a Hessian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError

_PARTS = ("before", "after")


class RoundMemory:
    """Named tensors that change once a round, as they were before and after the last round.

    A round can come twice: its candidate was not accepted, or the server was resumed. It then starts from the same
    tensors again, so the reply has the same bits.

    Parameters
    ----------
    dtype : torch.dtype
        Of the model; the tensors may have others.
    device : torch.device
        Where they lie.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._round = 0
        self._before: dict[str, Tensor] = {}
        self._after: dict[str, Tensor] = {}

    def before(self, round_number: int) -> dict[str, Tensor]:
        """What held when `round_number` began; empty for a client that takes part for the first time."""
        return self._after if round_number > self._round else self._before

    def keep(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Leave what holds after `round_number`. The tensors are not copied: do not write to them later."""
        self._before = self.before(round_number)
        self._after = dict(tensors)
        self._round = round_number

    def export(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays; empty if nothing is kept. On the CPU nothing is copied."""
        if not self._round:
            return {}
        parts = zip(_PARTS, (self._before, self._after), strict=True)
        arrays = {f"{part}/{name}": t.cpu().numpy() for part, tensors in parts for name, t in tensors.items()}
        return {"round": np.array(self._round), **arrays}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; the arrays are copied.

        Raises
        ------
        ShapeError
            If they are no such state.
        """
        read: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
        for key, values in arrays.items():
            part, _, name = key.partition("/")
            if part in _PARTS and name:
                read[part][name] = torch.tensor(values, device=self.device)
            elif key != "round":
                raise ShapeError(f"client memory: unknown entry {key!r}; restore what `export` gave")
        self._round = int(arrays["round"]) if "round" in arrays else 0
        self._before, self._after = read["before"], read["after"]
