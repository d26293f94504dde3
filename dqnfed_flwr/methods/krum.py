"""Krum and Multi-Krum: the rows that lie closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS 2017, section 4 (Krum) and section 5 (Multi-Krum).
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.linalg.min_norm import CUTOFF
from dqnfed_flwr.linalg.scaling import ScaledGram
from dqnfed_flwr.methods._base import GramMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import Profile, RunSettings
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch

FEWER_BYZANTINE = "fewer-byzantine"
"""Status: too few clients for the f that was asked for."""


class KrumSettings(Group):
    """Krum and Multi-Krum."""

    byzantine: int = own(1, "f, clients that may be hostile", ge=0)
    keep: int = own(1, "m, rows that are averaged; 1 is Krum", ge=1)


class Krum(GramMethod):
    """step = eta * mean of the m rows with the lowest scores; of equal scores the first clients' count as lower.

    score_k = sum of the squared distances of row k to the K - f - 2 rows nearest to it. Its proof needs
    K >= 2 f + 3 clients. With fewer of them the largest f that fits is taken, and the round has the status
    `fewer-byzantine`; below three clients no f fits, and a row is compared with one other. Without enough rows for m
    all are averaged.

    Deviations from the paper: that fallback. From published code: distances enter squared (torchjd 0.18 adds
    the distances themselves), and the rows chosen are averaged as equals (flwr weighs them by samples, so that a
    client may buy influence with the number that it reports).
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self._settings = run.group_of(KrumSettings)

    def weights(self, batch: RoundBatch) -> Combination:
        """eta / m for the rows chosen, else 0."""
        count = len(batch.clients)
        byzantine = max(min(self._settings.byzantine, (count - 3) // 2), 0)
        keep = min(self._settings.keep, count)
        chosen = np.argsort(krum_scores(batch.gram, byzantine), kind="stable")[:keep]
        weights = np.zeros(count)
        weights[chosen] = self._row_lr / keep
        scaled = ScaledGram.of(batch.gram)
        fits = byzantine == self._settings.byzantine and count >= 3
        return Combination(
            weights,
            rank=scaled.rank(CUTOFF),
            condition=scaled.condition(CUTOFF),
            status="converged" if fits else FEWER_BYZANTINE,
            notes={"byzantine": float(byzantine), "kept": float(keep)},
        )


def krum_scores(gram: Float64Array, byzantine: int) -> Float64Array:
    """Sum of the squared distances of each row to the K - f - 2 nearest others, at least one where there is one [K].

    Parameters
    ----------
    gram : Float64Array
        [K, K].
    byzantine : int
        f.
    """
    squares = np.diag(gram)
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, -1.0)  # before any other
    nearest = np.sort(distances, axis=1)[:, 1 : 1 + max(len(gram) - byzantine - 2, 1)]
    return np.asarray(nearest.sum(axis=1))


METHODS = (
    Profile(
        name="krum",
        title="Krum",
        settings=KrumSettings,
        build=Krum,
    ),
)
