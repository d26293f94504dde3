"""What a client keeps for a method from round to round: a personal model, a dual variable, a Hessian."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError

_PARTS = ("before", "after")
_SINCE = "before/since"
logger = logging.getLogger("flwr")


class RoundMemory:
    """Named tensors that change once a round, as they were before and after the last round.

    A round can come twice: its candidate was not accepted, or the server was resumed. It then starts from the same
    tensors again, so the reply has the same bits. A server that goes back further, to a round before the last two that
    this client took part in, finds a client that begins anew: what is kept belongs to rounds that are yet to come, and
    a round that failed instead would cost the client its part in it.

    Parameters
    ----------
    dtype : torch.dtype
        Of the model; the tensors may have others.
    device : torch.device
        Where they lie.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._round = self._since = 0  # `_after` holds after the one, `_before` since the other
        self._before: dict[str, Tensor] = {}
        self._after: dict[str, Tensor] = {}

    def before(self, round_number: int) -> dict[str, Tensor]:
        """What held when `round_number` began; empty for a client that takes part for the first time, or forgot."""
        return self._held(round_number)[0]

    def keep(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Leave what holds after `round_number`. The tensors are not copied: do not write to them later."""
        if round_number <= self._since:
            logger.warning(
                "Round %d comes again; this client can do again only what came after round %d, so what it keeps for "
                "the method begins anew. Set checkpoint-every to 1 to avoid this",
                round_number,
                self._since,
            )
        self._before, self._since = self._held(round_number)
        self._after = dict(tensors)
        self._round = round_number

    def export(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays; empty if nothing is kept. On the CPU nothing is copied."""
        if not self._round:
            return {}
        parts = zip(_PARTS, (self._before, self._after), strict=True)
        arrays = {f"{part}/{name}": t.cpu().numpy() for part, tensors in parts for name, t in tensors.items()}
        since = {_SINCE: np.array(self._since)} if self._before else {}
        return {"round": np.array(self._round), **since, **arrays}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; the arrays are copied.

        An earlier version did not say since when `before` held; then the last round alone can be done again.

        Raises
        ------
        ShapeError
            If they are no such state.
        """
        read: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
        for key, values in arrays.items():
            if key == _SINCE:
                continue
            part, _, name = key.partition("/")
            if part in _PARTS and name:
                read[part][name] = torch.tensor(values, device=self.device)
            elif key != "round":
                raise ShapeError(f"client memory: unknown entry {key!r}; restore what `export` gave")
        self._round = int(arrays["round"]) if "round" in arrays else 0
        self._since = int(arrays[_SINCE]) if _SINCE in arrays else self._round - 1 if read["before"] else 0
        self._before, self._after = read["before"], read["after"]

    def _held(self, round_number: int) -> tuple[dict[str, Tensor], int]:
        """What held when `round_number` began, and the round after which it did first."""
        if round_number > self._round:
            return self._after, self._round
        return (self._before, self._since) if round_number > self._since else ({}, 0)
