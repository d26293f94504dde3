"""What FedCorr's server learns of the clients' labels: their dimensions, who is noisy, and how much.

Xu, Chen, Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022, stage 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config.fedcorr import LEVEL, LID
from dqnfed_flwr.linalg.mixture import upper_component
from dqnfed_flwr.types import RoundBatch


class NoiseEstimates:
    """Local intrinsic dimensions by client, accumulated over passes, and what follows from them.

    Attributes
    ----------
    noise : Float64Array
        Estimated noise of each client [clients], as decided last; 0 for those that count as clean.
    decisions : int
        Decisions made, one a pass.
    fallbacks : int
        Decisions whose mixture did not converge, or for which there were not two different dimensions.
    """

    def __init__(self, clients: int, seed: int) -> None:
        self._seed = seed
        self._sums, self._visits = np.zeros(clients), np.zeros(clients, dtype=np.int64)
        self._levels = np.zeros(clients)
        self.noise = np.zeros(clients)
        self.decisions = self.fallbacks = 0

    def measure(self, batch: RoundBatch) -> None:
        """Take in dimension and noise level of the clients of a round; a dimension of 0 was not measurable."""
        if LID not in batch.figures:
            return
        for client, lid, level in zip(batch.clients, batch.figures[LID], batch.figures[LEVEL], strict=True):
            self._sums[client] += lid
            self._visits[client] += lid > 0
            self._levels[client] = level

    def decide(self) -> None:
        """Tell noisy clients from clean: those whose dimension belongs to the upper of two Gaussians.

        A client that was visited more or less often than others counts with its mean. The noise of a noisy client is
        the level that it reported last.
        """
        measured = np.flatnonzero(self._visits)
        split = upper_component(self._sums[measured] / self._visits[measured], self._seed)
        noisy = measured[split.upper]
        self.noise[:] = 0
        self.noise[noisy] = self._levels[noisy]
        self.decisions += 1
        self.fallbacks += split.status != "converged"

    def export(self) -> dict[str, NDArray[np.generic]]:
        """Everything as named arrays, copied."""
        return {
            "sums": self._sums.copy(),
            "visits": self._visits.copy(),
            "levels": self._levels.copy(),
            "noise": self.noise.copy(),
            "counts": np.array([self.decisions, self.fallbacks]),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export`."""
        self._sums, self._levels = np.array(state["sums"], np.float64), np.array(state["levels"], np.float64)
        self._visits, self.noise = np.array(state["visits"], np.int64), np.array(state["noise"], np.float64)
        self.decisions, self.fallbacks = (int(count) for count in np.asarray(state["counts"], np.int64))
