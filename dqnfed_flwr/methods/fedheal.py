"""FedHEAL: coordinates whose sign a client keeps, and weights by how far the clients go.

Chen, Huang and Ye, "Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity", CVPR 2024:
parameter-harmonised local updates (masks) and equalised aggregation (weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Float64Array, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor


MOST_VISITS = np.iinfo(np.uint16).max
"""Visits after which a client's counts are halved."""


class FedHealSettings(Group):
    """FedHEAL."""

    threshold: float = expert(0.3, "tau, smallest sign share with which a coordinate is kept", ge=0, le=1)
    beta: float = expert(0.4, "weight of the newest round in the running shares", ge=0, le=1)


@dataclass(slots=True)
class _Record:
    """What is known of a client.

    Attributes
    ----------
    visits : int
        Rounds that it took part in.
    positive : NDArray[np.uint16]
        In how many of them each coordinate of its row was not negative [D].
    delta, total : float
        Running share of masked norms, and the weight that it added up to.
    delta_mass, mass : float
        The same for a client whose share is 1: what `total` is measured by.
    """

    visits: int
    positive: NDArray[np.uint16]
    delta: float
    total: float
    delta_mass: float
    mass: float


class FedHeal(VectorMethod):
    """step = eta * masked rows, averaged per coordinate over the clients that keep it.

    A client keeps a coordinate if its sign now is that of a share of at least tau of the client's earlier rounds;
    in its first round it keeps all. With d_k the norm of the masked row,

        delta_k <- (1 - beta) delta_k + beta d_k / sum d,    w_k <- w_k + delta_k    (from delta_k = 0, w_k = 1/K)

    and per coordinate the weights w_k of those who keep it, over their sum; nothing moves where none does. A
    coordinate that is exactly zero counts as positive.

    Deviations from the rule as its authors publish it: with sampling, w_k is measured by what a client of its number
    of visits could have, so that one that comes late is not weighed by its age; with full participation this changes
    nothing. From published code: rounds are counted for each client and not for the server; d_k is one Euclidean norm
    and not a sum of the tensors' norms; sum d is over the clients of the round; a share of exactly tau suffices.
    """

    sees = Sees.COLUMNS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        settings = run.group_of(FedHealSettings)
        self._threshold, self._beta = settings.threshold, settings.beta
        self._records: dict[int, _Record] = {}
        self._kept = 1.0

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Count the signs of the round, and weigh the clients."""
        for client in batch.clients:
            self._meet(client, rows.dim, 1 / len(batch.clients))
        squares = np.zeros(len(batch.clients))
        kept = 0
        for part, values, positive in self._blocks(rows):
            for row, client in enumerate(batch.clients):
                self._records[client].positive[part] += positive[row]
            mask = self._mask(batch, part, positive)
            squares += np.sum(np.square(values, where=mask, out=np.zeros_like(values)), axis=1)
            kept += int(mask.sum())
        self._kept = kept / (len(batch.clients) * rows.dim)
        norms = np.sqrt(squares)
        shares = norms / norms.sum() if norms.any() else np.full(norms.size, 1 / norms.size)
        for client, share in zip(batch.clients, shares.tolist(), strict=True):
            self._weigh(self._records[client], share)

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * masked mean [D]."""
        records = [self._records[client] for client in batch.clients]
        weights = np.array([record.total / record.mass for record in records])[:, None]

        def mean(values: Float64Array, mask: NDArray[np.bool_]) -> Float64Array:
            present = weights * mask
            total = present.sum(axis=0)
            return np.asarray(np.divide((present * values).sum(axis=0), total, np.zeros_like(total), where=total > 0))

        return rows.assemble(
            (part, self._row_lr * mean(values, self._mask(batch, part, positive)))
            for part, values, positive in self._blocks(rows)
        )

    def notes(self) -> dict[str, float]:
        """Share of the coordinates that were kept."""
        return {"kept": self._kept}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Counts [C, D] as uint16 and figures [C, 5] of the C clients seen so far."""
        if not self._records:
            return {}
        records = self._records.values()
        return {
            "clients": np.array(list(self._records)),
            "positive": np.stack([record.positive for record in records]),
            "figures": np.array([[r.visits, r.delta, r.total, r.delta_mass, r.mass] for r in records], np.float64),
        }

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._records = {}
        for place, client in enumerate(state.get("clients", ())):
            visits, *rest = (float(figure) for figure in state["figures"][place])
            positive = np.array(state["positive"][place], np.uint16)
            self._records[int(client)] = _Record(int(visits), positive, *rest)

    def _meet(self, client: int, dim: int, weight: float) -> None:
        """Count a visit, the client's first one perhaps."""
        record = self._records.setdefault(client, _Record(0, np.zeros(dim, np.uint16), 0.0, weight, 0.0, 1.0))
        if record.visits == MOST_VISITS:
            record.visits //= 2
            record.positive //= 2
        record.visits += 1

    def _weigh(self, record: _Record, share: float) -> None:
        record.delta = (1 - self._beta) * record.delta + self._beta * share
        record.delta_mass = (1 - self._beta) * record.delta_mass + self._beta
        record.total += record.delta
        record.mass += record.delta_mass

    def _blocks(self, rows: RoundRows) -> Iterator[tuple[slice, Float64Array, NDArray[np.bool_]]]:
        """Columns, their values [K, width] and whether these are not negative."""
        for part in rows.column_blocks():
            values = rows.columns(part)
            yield part, values, values >= 0

    def _mask(self, batch: RoundBatch, part: slice, positive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Who keeps what [K, width], from the counts that have taken in this round already."""
        mask = np.ones_like(positive)
        for row, client in enumerate(batch.clients):
            record, now = self._records[client], positive[row]
            earlier = record.visits - 1
            if earlier:
                before = record.positive[part] - now
                mask[row] = np.where(now, before, earlier - before) / earlier >= self._threshold
        return mask


METHODS = (Profile(name="fedheal", title="FedHEAL", settings=FedHealSettings, build=FedHeal),)
