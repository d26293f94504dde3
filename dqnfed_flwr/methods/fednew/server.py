"""The server of FedNew; `methods/fednew` names the paper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.hessian_blocks import check_dense
from dqnfed_flwr.methods._base import GramMethod, RoundRows, State, Taken
from dqnfed_flwr.methods.fednew import FedNewSettings
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.types import Combination, Extras, RoundBatch


class FedNew(GramMethod):
    """step = y = sum p_k y_k, the rows being the clients' y_k = (H_k + (alpha + rho) I)^-1 (g_k - u_k + rho y).

    Deviations from the paper: means are by sample share; conjugate gradients in place of the inverse (`cg`); with
    sampling, which the paper does not treat, y is the mean over the clients present. The duals' mean is 0 only as long
    as all whose replies made a step hear of it; where one of them is absent from the next round, all duals begin anew
    at 0, and this is counted (`duals_anew`). Deviations from published code: the ridge of the loss counts once a
    client, not once more in the sum of the clients' matrices, and the Hessian is that of the loss; a matrix that is not
    positive definite is repaired and counted, not pseudo-inverted.
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self._exact = run.group_of(FedNewSettings).form == "exact"
        self._taken = Taken()
        self._last: frozenset[int] = frozenset()  # whose replies counted last
        self._anew = False

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
        """These clients' y_k go into the step. Their duals go on if those of the step before are all among them."""
        clients = frozenset(batch.clients)
        self._anew = not self._last <= clients
        if self._anew:
            self._taken.forget()
        else:
            self._taken.note(clients, batch.round)
        self._last = clients

    def weights(self, batch: RoundBatch) -> Combination:
        """p_k."""
        notes = {"duals_anew": float(self._anew)}
        if "repaired" in batch.figures:
            notes["cg_iterations"] = float(batch.figures["iterations"].max())
            notes["not_positive"] = float(np.count_nonzero(batch.figures["repaired"]))
        return Combination(batch.shares.copy(), notes=notes)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Which replies counted."""
        return {"taken": self._taken.export(), "last": np.array(sorted(self._last), dtype=np.int64)}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._taken.restore(state["taken"])
        self._last = frozenset(int(client) for client in state["last"])
