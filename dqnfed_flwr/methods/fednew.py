"""FedNew: Newton's step by one pass of ADMM a round, without sending a Hessian.

Elgabli, Ben Issaid, Bedi, Rajawat, Bennis and Aggarwal, "FedNew: A Communication-Efficient and Privacy-Preserving
Newton-Type Method for Federated Learning", ICML 2022, Algorithm 1 (FedNew) and 2 (Q-FedNew).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config.methods import FedNewSettings
from dqnfed_flwr.linalg.hessian_blocks import check_dense
from dqnfed_flwr.methods._base import GramMethod, RoundRows, State
from dqnfed_flwr.methods._taken import Taken
from dqnfed_flwr.types import Combination, Extras, RoundBatch


class FedNew(GramMethod):
    """step = y = sum p_k y_k, the rows being the clients' y_k = (H_k + (alpha + rho) I)^-1 (g_k - u_k + rho y).

    Deviations from the paper: means are by sample share; conjugate gradients in place of the inverse (`cg`); with
    sampling, which the paper does not treat, y is the mean over the clients present and a dual moves only when its
    client hears of the step that its own reply went into. Deviations from published code: the ridge of the loss
    counts once a client, not once more in the sum of the clients' matrices, and the Hessian is that of the loss; a
    matrix that is not positive definite is repaired and counted, not pseudo-inverted.

    Parameters
    ----------
    settings : FedNewSettings
        The form; the client reads the rest.
    """

    def __init__(self, settings: FedNewSettings) -> None:
        self._exact = settings.form == "exact"
        self._taken = Taken()

    def extras(self, dim: int) -> Extras:
        """Figures of the clients' solves.

        Raises
        ------
        ConfigError
            If the exact form would need too large a matrix.
        """
        if self._exact:
            check_dense(dim)
        return Extras(figures=("iterations", "repaired"))

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """Which reply of the client counted last."""
        return self._taken.directives(client)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """These clients' y_k go into the step."""
        self._taken.note(batch.clients, batch.round)

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        notes: dict[str, float] = {}
        if "repaired" in batch.figures:
            notes["cg_iterations"] = float(batch.figures["iterations"].max())
            notes["not_positive"] = float(np.count_nonzero(batch.figures["repaired"]))
        return Combination(batch.shares.copy(), notes=notes)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Which replies counted."""
        return {"taken": self._taken.export()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._taken.restore(state["taken"])
