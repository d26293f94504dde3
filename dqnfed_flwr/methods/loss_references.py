"""A running reference of every client's loss: what it may be expected to be by now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import State
from dqnfed_flwr.types import Float64Array

CLIENTS, VALUES, COUNTS = "reference_clients", "reference_losses", "reference_counts"


class LossReferences:
    """What a client's loss has come down to, round by round (FedMDFG).

    A loss at or below the reference enters it as one of the rounds that the client has taken part in so far; a round
    with a loss above counts as one whose loss was the reference.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}

    def update(self, clients: Sequence[int], losses: Float64Array) -> int:
        """Take in the losses of a round; how many lie above their client's reference."""
        risen = 0
        for client, loss in zip(clients, map(float, losses), strict=True):
            reference, count = self._known.get(client, (loss, 0))
            if loss <= reference:
                reference = (reference * count + loss) / (count + 1)
            else:
                risen += 1
            self._known[client] = (reference, count + 1)
        return risen

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Clients, references and rounds taken part in."""
        items = sorted(self._known.items())
        return {
            CLIENTS: np.array([client for client, _ in items], np.int64),
            VALUES: np.array([reference for _, (reference, _) in items], np.float64),
            COUNTS: np.array([count for _, (_, count) in items], np.int64),
        }

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        columns = (np.array(state[name]) for name in (CLIENTS, VALUES, COUNTS))
        self._known = {int(client): (float(loss), int(count)) for client, loss, count in zip(*columns, strict=True)}
