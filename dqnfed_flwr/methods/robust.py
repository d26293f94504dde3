"""Robust aggregation: Krum and Multi-Krum; trimmed mean and median, coordinate by coordinate.

Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS 2017, section 4 (Krum) and section 5 (Multi-Krum): the rows that lie closest to their neighbours.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
2018, definitions 1 and 2: trimmed mean and median.

All see every client alike, whatever the number of samples that it reports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dqnfed_flwr.linalg.min_norm import CUTOFF, ScaledGram
from dqnfed_flwr.methods._base import GramMethod, RoundRows, VectorMethod
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-9
"""What share * K may fall short of a whole number for rounding."""
FEWER_BYZANTINE = "fewer-byzantine"
"""Status: too few clients for the f that was asked for."""


class KrumSettings(Group):
    """Krum and Multi-Krum."""

    byzantine: int = own(1, "f, clients that may be hostile", ge=0)
    keep: int = expert(1, "m, rows that are averaged; 1 is Krum", ge=1)


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

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self.one_row = run.group_of(KrumSettings).keep == 1

    def weights(self, batch: RoundBatch) -> Combination:
        """eta / m for the rows chosen, else 0."""
        settings, count = self._run.group_of(KrumSettings), len(batch.clients)
        byzantine = max(min(settings.byzantine, (count - 3) // 2), 0)
        keep = min(settings.keep, count)
        chosen = np.argsort(krum_scores(batch.gram, byzantine), kind="stable")[:keep]
        weights = np.zeros(count)
        weights[chosen] = self._row_lr / keep
        scaled = ScaledGram.of(batch.gram)
        fits = byzantine == settings.byzantine and count >= 3
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


class TrimmedMeanSettings(Group):
    """Trimmed mean."""

    share: float = own(0.2, "beta, share of the values cut off at either end", ge=0, lt=0.5)


class CoordinateWise(VectorMethod):
    """step = eta * a figure of each column of the rows, computed in float64 on blocks of columns."""

    sees = Sees.COLUMNS

    @abstractmethod
    def figure(self, columns: Float64Array) -> Float64Array:
        """The figure [width] of columns [K, width]."""

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * figure of every column [D]."""
        return rows.assemble((part, self._row_lr * self.figure(rows.columns(part))) for part in rows.column_blocks())


class Median(CoordinateWise):
    """step = eta * median over clients; the mean of the two in the middle where their number is even. No deviations."""

    def figure(self, columns: Float64Array) -> Float64Array:
        """Median."""
        return np.asarray(np.median(columns, axis=0))


class TrimmedMean(CoordinateWise):
    """step = eta * mean over clients without the floor(beta K) lowest and highest values of each coordinate.

    With beta K < 1 nothing is cut and this is the plain mean; the note `trimmed` says how many were cut at either end.
    No deviations.
    """

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._share = run.group_of(TrimmedMeanSettings).share
        self._trimmed = 0

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * trimmed mean [D]."""
        clients = len(batch.clients)
        self._trimmed = min(int(self._share * clients + ROUNDING), (clients - 1) // 2)
        return super().step(batch, rows)

    def figure(self, columns: Float64Array) -> Float64Array:
        """Mean of the values in the middle."""
        kept = slice(self._trimmed, len(columns) - self._trimmed)
        return np.asarray(np.sort(columns, axis=0)[kept].mean(axis=0))

    def notes(self) -> Mapping[str, float]:
        """Values cut off at either end."""
        return {"trimmed": float(self._trimmed)}


METHODS = (
    Profile(name="krum", title="Krum", settings=KrumSettings, build=Krum),
    Profile(name="median", title="Median", build=Median),
    Profile(name="trimmed-mean", title="Trimmed mean", settings=TrimmedMeanSettings, build=TrimmedMean),
)
