"""AFL: agnostic federated learning, a game between the model and the weights of the clients.

Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019, Algorithm 1 (Stochastic-AFL).

Deviations from the paper: a row is the displacement of `local.epochs` of SGD, so that AFL does as much local work as
FedAvg; the paper's form, one gradient a round, is `local.work: gradient`. The last model is returned, not the mean of
all. Where clients are sampled, the weights of those present are restricted, renormalised and moved among
themselves; the total of the absent ones stays. A client seen for the first time enters with its share of the samples of
all clients seen, itself included. A round in which all clients present have weight 0 goes by sample shares (note
`restart`).
Deviations from published code: the weights bear on the step; the projection is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.box_qp import project_simplex
from dqnfed_flwr.methods._base import GramMethod, RoundRows, State
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees


class HeldWeights:
    """The weights of all clients seen; they sum to 1.

    Attributes
    ----------
    restart : bool
        Whether all clients present had weight 0, so that this round goes by their samples.
    """

    def __init__(self) -> None:
        self.restart = False
        self._weights: dict[int, float] = {}
        self._samples: dict[int, float] = {}
        self._total = 0.0

    def take(self, batch: RoundBatch, samples: Float64Array) -> Float64Array:
        """The weights of the clients present [K], normalised to 1; `samples` [K] > 0 are those a new one counts by."""
        self._welcome(batch, samples)
        held = np.array([self._weights[client] for client in batch.clients])
        self._total = float(held.sum())
        self.restart = self._total <= 0
        return samples / samples.sum() if self.restart else held / self._total

    def put(self, batch: RoundBatch, weights: Float64Array) -> None:
        """Let the clients present share their total by `weights` [K] from the next round on."""
        self._weights.update(zip(batch.clients, (self._total * weights).tolist(), strict=True))

    def _welcome(self, batch: RoundBatch, samples: Float64Array) -> None:
        """Give clients that were never seen their weight, and scale down the others."""
        new = {c: float(n) for c, n in zip(batch.clients, samples, strict=True) if c not in self._weights}
        self._samples |= new
        total = sum(self._samples.values())
        entering = {client: count / total for client, count in new.items()}
        rest = 1 - sum(entering.values())
        self._weights = {client: weight * rest for client, weight in self._weights.items()} | entering

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Client, samples and weight of all seen [n, 3]."""
        rows = [(client, self._samples[client], weight) for client, weight in sorted(self._weights.items())]
        return {"seen": np.array(rows, np.float64).reshape(-1, 3)}

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        self._samples = {int(client): samples for client, samples, _ in state["seen"].tolist()}
        self._weights = {int(client): weight for client, _, weight in state["seen"].tolist()}


class AflSettings(Group):
    """AFL."""

    gamma: float = own(0.1, "rate of the clients' weights; 0 leaves them at the sample shares", ge=0)


class Afl(GramMethod):
    """step = eta sum lambda_k g_k, then lambda <- Proj(lambda + gamma F) on the simplex; lambda starts at p_k."""

    sees = Sees.NORMS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._gamma = run.group_of(AflSettings).gamma
        self._held = HeldWeights()
        self._memories = (self._held,)
        self._present: Float64Array = np.empty(0)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Fix lambda of the clients present for this round's step, then move it by their losses."""
        self._present = self._held.take(batch, batch.examples)
        self._held.put(batch, project_simplex(self._present + self._gamma * batch.losses))

    def weights(self, batch: RoundBatch) -> Combination:
        """eta lambda_k, as it stood before this round's losses moved it."""
        notes = {"largest_weight": float(self._present.max()), "restart": float(self._held.restart)}
        return Combination(self._row_lr * self._present, notes=notes)


METHODS = (Profile(name="afl", title="AFL", settings=AflSettings, build=Afl),)
