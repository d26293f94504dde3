"""The anchors of DQN-Fed by themselves, without its guarantee: what the anchored form is compared with.

`momentum` is heavy-ball momentum (Polyak 1964) on the mean gradient, `server-lbfgs` is L-BFGS (Nocedal 1980) on it
with the server's own history. They are the references of the anchored form (Hamidi and Ye, TMLR 2025, in this
project's variant) with the correction left out. No paper proposes them under these names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.methods.anchors import Anchor
from dqnfed_flwr.types import RoundBatch


class AnchorAlone(VectorMethod):
    """step = the anchor's proposal; where that is no descent for the mean loss, eta sum p_k g_k and a new memory.

    Parameters
    ----------
    anchor : Anchor
        From `anchors`.
    lr : float
        eta.
    """

    def __init__(self, anchor: Anchor, lr: float) -> None:
        self._anchor, self._lr = anchor, lr
        self._proposal = torch.zeros(())
        self._reset = False

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Ask the anchor, and judge its proposal by the mean gradient."""
        mean = rows.combine(batch.shares)
        self._proposal = self._anchor.propose(mean, rows, batch)
        descent = float(torch.dot(mean.double(), self._proposal.double()))
        self._reset = bool(mean.any()) and not (math.isfinite(descent) and descent > 0)
        if self._reset:
            self._anchor.forget()
            self._proposal = self._lr * mean

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """What `observe` found [D]."""
        del batch, rows
        return self._proposal

    def notes(self) -> Mapping[str, float]:
        """Whether the anchor was made to begin anew."""
        return {"anchor_reset": float(self._reset)}

    def settle(self, step: Tensor, factor: float) -> None:
        """Hand the step on to the anchor's memory."""
        self._anchor.settle(step, factor)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The anchor's memory."""
        return self._anchor.export_state()

    def restore_state(self, state: State) -> None:
        """Take up the anchor's memory."""
        self._anchor.restore_state(state)
