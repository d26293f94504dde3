"""Trimmed mean and median, coordinate by coordinate.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
2018, definitions 1 and 2. Both see every client alike, whatever the number of samples that it reports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dqnfed_flwr.methods._base import RoundRows, VectorMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import Profile, RunSettings
from dqnfed_flwr.types import Float64Array, RoundBatch

if TYPE_CHECKING:
    from torch import Tensor


ROUNDING = 1e-9
"""What share * K may fall short of a whole number for rounding."""


class TrimmedMeanSettings(Group):
    """Trimmed mean."""

    share: float = own(0.2, "beta, share of the values cut off at either end", ge=0, lt=0.5)


class CoordinateWise(VectorMethod):
    """step = eta * a figure of each column of the rows, computed in float64 on blocks of columns."""

    @abstractmethod
    def figure(self, columns: Float64Array) -> Float64Array:
        """The figure [width] of columns [K, width]."""

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * figure of every column [D]."""
        import torch

        out = np.empty(rows.basis.dim, rows.basis.row(0).dtype)
        for part in rows.column_blocks():
            out[part] = self._row_lr * self.figure(rows.columns(part))
        return torch.from_numpy(out)


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

    def __init__(self, run: RunSettings) -> None:
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
    Profile(name="median", title="Median", build=Median),
    Profile(
        name="trimmed-mean",
        title="Trimmed mean",
        settings=TrimmedMeanSettings,
        build=TrimmedMean,
    ),
)
