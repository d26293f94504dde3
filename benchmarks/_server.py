"""The server's own code from a reply to a step, and the rows that stand for replies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.linalg.rows import IN_MEMORY, RowSet
from dqnfed_flwr.methods._base import RoundRows, make_method
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.solve import Solved, make_batch, solve
from dqnfed_flwr.types import ClientReply, Float64Array, RoundBatch

Float32Array = NDArray[np.float32]

COMMON = 0.3
"""Mean of all values, a part that all rows share; their unit-diagonal Gramian has a condition number of 1 + 0.09 K."""
EXAMPLES = 500
THETA_NORM = 1.0
"""Of a model that does not exist."""


def drawn_row(client: int, parameters: int) -> Float32Array:
    """Row [D] of `client`, float32: normal values about `COMMON`."""
    row = np.random.default_rng(client).standard_normal(parameters, dtype=np.float32)
    row += np.float32(COMMON)
    return row


def drawn_rates(clients: int) -> Float64Array:
    """d_k [K], within a factor of two."""
    return np.random.default_rng(clients).uniform(1.0, 2.0, clients)


def batch_of(replies: Mapping[int, ClientReply], rows: RoundRows) -> RoundBatch:
    """The figures of a first round in which everybody is heard; clients rise, as do the slots of `rows`."""
    losses = {client: reply.loss for client, reply in replies.items()}
    hearing = Hearing(losses, tuple(losses), dict(zip(losses, rows.slots, strict=True)))
    return make_batch(replies, hearing, rows, 1, THETA_NORM)


class LastReply:
    """A round of DQN-Fed's two-sided form, up to its step.

    Parameters
    ----------
    clients, parameters : int
        K and D.
    memory : RowMemory
        Where the rows lie.
    """

    def __init__(self, clients: int, parameters: int, memory: RowMemory = IN_MEMORY) -> None:
        self._held = RowSet(clients, parameters, memory=memory)
        self._rows = RoundRows(self._held, tuple(range(clients)))
        self._method = make_method(resolve(Settings.from_mapping({"method": "dqn-fed", "dqn-fed.form": "two-sided"})))
        rates = drawn_rates(clients) * parameters
        self._replies = {k: ClientReply(EXAMPLES, loss=1.0, rate=float(rate)) for k, rate in enumerate(rates)}

    def begin(self) -> None:
        """A new round: no reply is there."""
        self._held.clear()

    def take(self, client: int, row: Float32Array | Tensor) -> None:
        """A reply arrives."""
        self._held.put(client, row)

    def finish(self, row: Float32Array) -> Solved:
        """The last reply arrives: its row, the solve, the weighted sum."""
        self.take(len(self._replies) - 1, row)
        return self.solve()

    def solve(self) -> Solved:
        """The step from the rows that are there."""
        return solve(self._method, batch_of(self._replies, self._rows), self._rows)
