"""How the clients' losses bend along the steps of a run, and what that asks of the next step.

Along a step u the loss of client k is, to second order,

    f_k(theta - a u) = f_k - a g_k . u + 1/2 a^2 c_k |u|^2,      c_k = u^T H_k u / |u|^2

so a step of factor a leaves the client unharmed where g_k . u >= 1/2 a c_k |u|^2. A rate that is small beside that is
met at first order and refused by the client's test, and the step is cut for everybody. In deep networks, after many
local steps, that is what limits a run: the passes level off in the directions of large curvature, so the slopes along
their mean are small there, while the curvature along it stays.

The clients' answers to a candidate say what c_k is, at no cost: the loss there, the loss before, and the slope. The
next round then asks for g_k . u >= margin 1/2 c_k |u_a|^2, u_a being the anchor's step, which has about the length of
the step. It is a demand on the direction alone: whether a step is taken is decided by the clients' tests as before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array

CLIENTS, CURVATURES = "curvature_clients", "curvatures"
"""Names of the arrays that a checkpoint keeps."""
KEPT = 0.5
"""Share of what was seen before below which a curvature does not fall in a round."""
MOST = 10.0
"""Times the median up to which a curvature counts: no client can have the step to itself by what it says."""


class StepCurvature:
    """The curvature of each client's loss along the last steps.

    Parameters
    ----------
    margin : float
        How many times the fall is asked for that a step of factor 1 needs; 0 asks for none, and nothing is kept.
    """

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._known: dict[int, float] = {}

    def note(self, found: Mapping[int, float]) -> None:
        """Take up c_k as a candidate showed it, by client; what is negative counts as 0, what is not finite not at all.

        The losses of deep networks bend differently from step to step, so that what was seen before counts on, by half
        with each round.
        """
        if not self._margin:
            return
        for client, value in found.items():
            if np.isfinite(value):
                self._known[client] = max(value, KEPT * self._known.get(client, 0.0), 0.0)

    def demands(self, clients: Sequence[int], squared_length: float) -> Float64Array:
        """The least g_k . u that each of the clients needs [K], for a step of about |u|^2 = `squared_length`.

        Clients of which nothing is known need 0.
        """
        known = np.array([self._known.get(client, 0.0) for client in clients])
        typical = float(np.median(known)) if known.size else 0.0
        demands: Float64Array = 0.5 * self._margin * squared_length * np.minimum(known, MOST * typical)
        return demands

    def forget(self, clients: Collection[int]) -> None:
        """Drop what these clients said."""
        self._known = {client: value for client, value in self._known.items() if client not in clients}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Clients and curvatures; empty where nothing is kept."""
        clients = sorted(self._known)
        values = np.array([self._known[client] for client in clients])
        return {CLIENTS: np.array(clients), CURVATURES: values} if clients else {}

    def restore_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take up what `export_state` gave."""
        pairs = zip(
            state.get(CLIENTS, np.array([])).tolist(), state.get(CURVATURES, np.array([])).tolist(), strict=True
        )
        self._known = {int(client): float(value) for client, value in pairs}
