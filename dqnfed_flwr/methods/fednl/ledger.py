"""What the server of FedNL knows of its clients: sums over them, kept up to date by their corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.linalg.hessian_blocks import Compressor
from dqnfed_flwr.methods._base import State, Taken
from dqnfed_flwr.types import FloatArray

MOST_RESTARTS = 3
"""How often a client may lose its Hessian, and with it those of all; one that always does would keep them at 0."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one client sent: C(grad^2 f_k - H_k) as `message`, the error l_k, one a block [B] or one for all [1].

    Its weight n_k is `samples`. The H_k of a client that begins anew is `start` times the identity; None for others.
    Where gradients are continued, `gradient` is g_k less what the sum held for it [1, m], float64.
    """

    client: int
    samples: float
    start: float | None
    message: Mapping[str, FloatArray]
    error: FloatArray
    gradient: Tensor | None


class HessianLedger:
    """Sums over the clients known: sum n_k H_k [B, m, m], n_k, l_k [B].

    For FedNL-PP (`continues`) also sum n_k (g_k + (H_k + l_k I)(theta - w_k)), w_k the model of client k's last round.
    """

    def __init__(self, compressor: Compressor, alpha: float, *, continues: bool) -> None:
        self.taken = Taken()
        self._compressor, self._alpha = compressor, alpha
        self._continues = continues
        self._samples: dict[int, float] = {}
        self._errors: dict[int, Tensor] = {}
        self._restarts: dict[int, int] = {}
        self._total = self._gradients = torch.zeros(0, dtype=torch.float64)

    @property
    def clients(self) -> int:
        """Clients whose Hessians are in the sum."""
        return len(self._samples)

    def admit(self, given: Sequence[Contribution], shape: tuple[int, int]) -> tuple[list[Contribution], bool]:
        """Take new clients up, for blocks of a shape (B, m): who counts in this round, and whether all was forgotten.

        A known client that begins anew has lost its H_k, which cannot be taken out of the sum: all clients begin anew
        then, the others from their next reply on. It may do so `MOST_RESTARTS` times in a run. After that its H_k
        stays as it was, and what it sends is left out.
        """
        again = {one.client for one in given if one.start is not None and one.client in self._samples}
        worn_out = {client for client in again if self._restarts.get(client, 0) >= MOST_RESTARTS}
        given = [one for one in given if one.client not in worn_out]
        lost = bool(again - worn_out)
        for client in again - worn_out:
            self._restarts[client] = self._restarts.get(client, 0) + 1
        if lost:
            self._samples.clear()
            self.taken.forget()
        if not self._samples:
            self._errors.clear()
            self._total = torch.zeros(*shape, shape[1], dtype=torch.float64)
            self._gradients = torch.zeros(1, shape[1] if self._continues else 0, dtype=torch.float64)
        counted = [one for one in given if one.start is not None or one.client in self._samples]
        for one in counted:
            if one.start is not None:
                self._samples[one.client] = one.samples
                self._total.diagonal(dim1=1, dim2=2).add_(one.samples * one.start)
        return counted, lost

    def correct(self, counted: Sequence[Contribution], round_number: int) -> None:
        """H_k += alpha C(...), and the errors and gradients that go with it."""
        for one in counted:
            samples = self._samples[one.client]
            message = {name: torch.tensor(values, dtype=torch.float64) for name, values in one.message.items()}
            matrices = self._compressor.expand(message, self._total.shape[-1])
            self._total.add_(matrices, alpha=self._alpha * samples)
            self._errors[one.client] = torch.tensor(one.error, dtype=torch.float64)
            if one.gradient is not None:
                self._gradients.add_(one.gradient, alpha=samples)
        self.taken.note((one.client for one in counted), round_number)

    def mean(self) -> Tensor:
        """Mean of the H_k [B, m, m]."""
        return self._total / sum(self._samples.values())

    def mean_error(self) -> Tensor:
        """Mean of the l_k [B]."""
        return self._sum_of_errors() / sum(self._samples.values())

    def mean_gradient(self) -> Tensor:
        """Mean of the continued gradients [1, m]."""
        return self._gradients / sum(self._samples.values())

    def move(self, change: Tensor) -> None:
        """Continue the gradients along a change of the model [1, m], by H_k + l_k I."""
        bent = torch.einsum("bij,bj->bi", self._total, change)
        self._gradients += bent + self._sum_of_errors()[:, None] * change

    def _sum_of_errors(self) -> Tensor:
        return torch.stack([self._samples[client] * error for client, error in sorted(self._errors.items())]).sum(dim=0)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The sums, which go on changing here, and what is known of each client."""
        clients = sorted(self._samples)
        errors = [self._errors[client].numpy() for client in clients]
        return {
            "taken": self.taken.export(),
            "clients": np.array(clients, np.int64),
            "samples": np.array([self._samples[client] for client in clients]),
            "errors": np.array(errors, np.float64),
            "restarts": np.array(sorted(self._restarts.items()), np.int64).reshape(-1, 2),
            "hessians": self._total.numpy().copy(),
            "gradients": self._gradients.numpy().copy(),
        }

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        self.taken.restore(state["taken"])
        restarts = np.asarray(state.get("restarts", np.zeros((0, 2))), np.int64)
        self._restarts = {int(client): int(count) for client, count in restarts}
        clients = [int(client) for client in np.asarray(state["clients"], np.int64)]
        self._samples = dict(zip(clients, map(float, np.asarray(state["samples"], np.float64)), strict=True))
        errors = torch.tensor(np.asarray(state["errors"], np.float64))
        self._errors = dict(zip(clients, errors, strict=True))
        self._total = torch.tensor(np.asarray(state["hessians"], np.float64))
        self._gradients = torch.tensor(np.asarray(state["gradients"], np.float64))
