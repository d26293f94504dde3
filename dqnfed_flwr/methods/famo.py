"""FAMO: weights learned from how fast the clients' losses fall, and from nothing else.

Liu, Feng, Stone and Liu, "FAMO: Fast Adaptive Multitask Optimization", NeurIPS 2023, Algorithm 1, with the steps on the
logits taken by Adam as in Algorithm 2 of its appendix; there for tasks of one model, here for clients.

Deviations from the paper: the losses after a step are those of the next round, where the server has them at no cost. A
client that was absent in between is compared with the loss of its last round, and its fall is divided by the rounds
since; its logit and Adam's averages for it wait until it is back. A new client enters with the logit 0. The lower
bounds of the losses are the task's floor, 0 where it names none. From published code: the default decay is the
appendix's, not that of the code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import GramMethod, RoundRows, State
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

TINY_LOSS = 1e-8
"""Added to every loss, before its logarithm or reciprocal is taken."""
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8
"""Adam's beta_1, beta_2 and epsilon."""
LOGIT, MEAN, SQUARE, STEPS, LOSS, ROUND = range(6)
"""What is known of a client: its logit, Adam's averages and number of steps, its last logarithmic loss and round."""


class FamoSettings(Group):
    """FAMO."""

    lr: float = expert(0.025, "beta, Adam's rate for the logits; 0 leaves all weights alike", ge=0)
    decay: float = expert(0.001, "gamma, pull of the logits to 0", ge=0)


class Famo(GramMethod):
    """step = eta sum w_k g_k, w_k = (z_k / F_k) / sum_j (z_j / F_j), z the softmax of the logits xi of those present.

    Once the losses F' of the next round are known, Adam takes a step on xi with the gradient

        z_k (D_k - sum_j z_j D_j) + gamma xi_k,    D_k = log F_k - log F'_k,

    z and the sum being over the clients that are compared. A client whose loss fell less than the mean gains weight.
    """

    sees = Sees.NORMS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        settings = run.group_of(FamoSettings)
        self._lr, self._decay = settings.lr, settings.decay
        self._known: dict[int, Float64Array] = {}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Move the logits by what the losses have fallen since, and keep those of this round."""
        logs = dict(zip(batch.clients, np.log(_positive(batch)).tolist(), strict=True))
        seen = [client for client in batch.clients if client in self._known]
        if seen:
            self._move(seen, np.array([logs[client] for client in seen]), batch.round)
        for client in batch.clients:
            entry = self._known.get(client, np.zeros(6)).copy()
            entry[LOSS], entry[ROUND] = logs[client], batch.round
            self._known[client] = entry

    def _move(self, clients: list[int], logs: Float64Array, number: int) -> None:
        """A step of Adam on the logits of clients seen before, whose logarithmic losses are `logs` now [n]."""
        held = np.stack([self._known[client] for client in clients], axis=1)
        falls = (held[LOSS] - logs) / np.maximum(number - held[ROUND], 1)
        shares = _softmax(held[LOGIT])
        slope = shares * (falls - shares @ falls) + self._decay * held[LOGIT]
        held[MEAN] = FIRST * held[MEAN] + (1 - FIRST) * slope
        held[SQUARE] = SECOND * held[SQUARE] + (1 - SECOND) * slope**2
        held[STEPS] += 1
        mean, square = held[MEAN] / (1 - FIRST ** held[STEPS]), held[SQUARE] / (1 - SECOND ** held[STEPS])
        held[LOGIT] -= self._lr * mean / (np.sqrt(square) + TINY)
        self._known.update(zip(clients, held.T.copy(), strict=True))

    def weights(self, batch: RoundBatch) -> Combination:
        """eta w_k."""
        shares = _softmax(np.array([self._known[client][LOGIT] for client in batch.clients]))
        weights = shares / _positive(batch)
        weights /= weights.sum()
        notes = {"largest_weight": float(weights.max()), "largest_share": float(shares.max())}
        return Combination(self._row_lr * weights, notes=notes)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The clients seen, each with what is known of it [n, 7]."""
        rows = [(client, *known) for client, known in sorted(self._known.items())]
        return {"known": np.array(rows, np.float64).reshape(-1, 7)}

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        self._known = {int(client): np.array(known) for client, *known in state["known"].tolist()}


def _positive(batch: RoundBatch) -> Float64Array:
    """What the losses [K] are above their least value."""
    return np.asarray(np.maximum(batch.losses - batch.floor, 0.0) + TINY_LOSS)


def _softmax(logits: Float64Array) -> Float64Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


class _Famo(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return "" if floor else "takes logarithms of losses"


METHODS = (_Famo(name="famo", title="FAMO", settings=FamoSettings, build=Famo),)
