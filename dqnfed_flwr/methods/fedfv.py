"""FedFV: conflicts between gradients are projected away before they are averaged.

Wang, Fan, Qi, Wen, Wang and Yu, "Federated Learning with Fair Averaging", IJCAI 2021, Algorithms 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from dqnfed_flwr.linalg.min_norm import CUTOFF, ScaledGram, Status
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.guidance import VANISHING
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees


class FedFvSettings(Group):
    """FedFV."""

    alpha: float = own(0.1, "share of the clients, of highest loss, left unprojected", ge=0, le=1)
    tau: int = expert(
        1,
        "rounds for which the gradients of absent clients count",
        read=lambda run: run.settings.sampled < run.settings.clients,
        ge=0,
        le=100,
    )


class FedFV(Method):
    """Mean of the clients' rows after each was projected off those it conflicts with.

    The ceil(alpha (K - 1)) clients of largest loss keep their rows. Every other g_i is projected off each g_j with
    g_i . g_j < 0, in order of rising loss. The mean of the results is then projected off the rows of clients that
    were absent for up to tau rounds: oldest round first, off the sum of those rows of that round that conflict with
    it. The result gets the length of the plain mean.

    All of it is inner products, so that vectors are carried as coefficients over the rows.

    Deviations from the paper: equal losses are ordered by client; absent clients count from the second round on, not
    from round tau; a mean that the projections cancel gives no step (`stationary`) and not a quotient of roundings.
    From published code: the rows of this round's own clients are not projected off again; the loss is that before
    local training.
    """

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        settings = run.group_of(FedFvSettings)
        self._alpha = settings.alpha
        self._absent = AbsentClients(settings.tau, run.settings.sampled, run.settings.clients)
        self._memories = (self._absent,)
        self.reference_rows, self.sees = self._absent.room, Sees.PRODUCTS | self._absent.sees

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Remember the rows, and find those of clients that are absent now."""
        self._absent.observe(batch, rows)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows and of the absent clients' rows."""
        count = len(batch.clients)
        slots = [*rows.slots, *self._absent.place(rows)]
        gram = rows.gram(slots)
        order = sorted(range(count), key=lambda k: (batch.losses[k], batch.clients[k]))
        kept = set(order[count - math.ceil(self._alpha * (count - 1) - 1e-9) :])
        mean = np.mean([_unit_vector(k, gram) if k in kept else project(k, order, gram) for k in range(count)], axis=0)
        rounds = [item.round for item in self._absent.absent]
        mean, conflicts = project_off_absent(mean, gram, rounds)
        plain = np.zeros(len(slots))
        plain[:count] = 1 / count
        scaled = ScaledGram.of(batch.gram)
        length, status = _length(mean, gram), Status.CONVERGED
        if length == 0 or _length(plain, gram) == 0:
            mean, length, status = np.zeros(len(slots)), 1.0, Status.STATIONARY
        weights = np.zeros(rows.capacity)
        weights[slots] = self._row_lr * _length(plain, gram) / length * mean
        notes = {"absent": float(len(rounds)), "absent_conflicts": float(conflicts)} if rounds else {}
        return Combination(
            weights, rank=scaled.rank(CUTOFF), condition=scaled.condition(CUTOFF), status=status, notes=notes
        )


def project(row: int, order: Sequence[int], gram: Float64Array) -> Float64Array:
    """Coefficients of row `row` after it was projected off each row of `order` that it conflicts with, in turn."""
    vector = _unit_vector(row, gram)
    for other in order:
        product = float(gram[other] @ vector)
        if other != row and product < 0:
            vector[other] -= product / gram[other, other]
    return vector


def project_off_absent(mean: Float64Array, gram: Float64Array, rounds: Sequence[int]) -> tuple[Float64Array, int]:
    """Project `mean` off the last rows of `gram`, those of absent clients, one round after the other.

    `mean` are coefficients over all B rows [B], `gram` their inner products [B, B], `rounds` the round of each absent
    client's row, rising. Returned are the projected mean, and how many rows of absent clients conflicted.
    """
    first, conflicts = len(gram) - len(rounds), 0
    for _, group in groupby(range(len(rounds)), key=lambda number: rounds[number]):
        products = gram @ mean
        rows = [first + number for number in group if products[first + number] < 0]
        if rows:
            conflict = np.zeros(len(gram))
            conflict[rows] = 1.0
            square = float(conflict @ gram @ conflict)
            if square > 0:
                mean = mean - float(products @ conflict) / square * conflict
            conflicts += len(rows)
    return mean, conflicts


def _unit_vector(row: int, gram: Float64Array) -> Float64Array:
    vector = np.zeros(len(gram))
    vector[row] = 1.0
    return vector


def _length(vector: Float64Array, gram: Float64Array) -> float:
    """|vector @ rows|; 0 where the rows cancel up to rounding."""
    square = float(vector @ gram @ vector)
    parts = float(np.abs(vector) @ np.sqrt(np.diag(gram))) ** 2
    return math.sqrt(square) if square > VANISHING * parts else 0.0


METHODS = (Profile(name="fedfv", title="FedFV", settings=FedFvSettings, build=FedFV),)
